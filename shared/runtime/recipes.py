"""Recipes: default settings for a kind of environment, in TOML files of `shared/recipes`, laid under an experiment.

A recipe is named by its kind and what comes on top: `image-discrete+atari+memory` is the settings of `all.toml`, over
them those of `image-discrete.toml`, over them `atari.toml`'s and `memory.toml`'s. A file holds `about`, one line for
people, and sections as an experiment has them. What an experiment says itself always counts more.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from seedbed.shared.errors import ConfigError

Tables = Mapping[str, Mapping[str, Any]]  # section → key → value

FOLDER = Path(__file__).resolve().parents[1] / "recipes"
FOUNDATION = "all"
KINDS = ("vector-discrete", "vector-continuous", "image-discrete", "image-continuous")
FACETS = ("categories", "grid", "color", "atari", "memory")  # in the order in which they are laid over each other
PASSES = ("reuse", "minibatches", "queue_batches")  # of [learner], chosen for the recipe's algorithm
AUTO, NONE = "auto", "none"
MEMORY = "memory"


def check_name(name: str) -> str:
    """Return the name unchanged if `run.recipe` may have it: a recipe's, "", "none", "auto" or "auto+memory".

    Raises: ValueError naming what is known.
    """
    kind, *facets = name.split("+")
    if kind == AUTO:
        known: tuple[str, ...] = (MEMORY,)
    else:
        known = FACETS
        if kind not in (*KINDS, "", NONE) or (kind in ("", NONE) and facets):
            raise ValueError(f"no recipe is called so; known: {AUTO}, {NONE}, {', '.join(KINDS)}")
    for facet in facets:
        if facet not in known:
            raise ValueError(f"+{facet} cannot be added to recipe {kind!r}; known: {', '.join('+' + x for x in known)}")
    return name


def kind_of(name: str) -> str:
    """Return the kind in a recipe's name: the part before the first "+"."""
    return name.partition("+")[0]


def is_named(name: Any) -> bool:
    """Whether this names a recipe whose settings can be read, unlike "auto", "none" and the empty name."""
    return isinstance(name, str) and kind_of(name) in KINDS


def is_open(name: Any) -> bool:
    """Whether this asks for a recipe that is still to be chosen: "auto", with or without +memory."""
    return name in (AUTO, f"{AUTO}+{MEMORY}")


def read_recipe(name: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a recipe, section by section. Raises: ConfigError for a name that no recipe may have."""
    try:
        kind, *facets = check_name(name).split("+")
    except ValueError as error:
        raise ConfigError(f"[run] recipe: {error}") from error
    tables: dict[str, dict[str, Any]] = {}
    for part in (FOUNDATION, kind, *sorted(facets, key=FACETS.index)):
        tables = lay(read_part(part)[1], over=tables)
    return tables


@cache
def read_part(part: str) -> tuple[str, Tables]:
    """Read one recipe file and return what it is for, in one line, and its sections."""
    tables = tomllib.loads((FOLDER / f"{part}.toml").read_text(encoding="utf-8"))
    return str(tables.pop("about")), tables


def lay(tables: Mapping[str, Any], *, over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of `over` with those of `tables` laid over them, key by key: `tables` wins.

    Settings of another algorithm are not kept: where `tables` names another than `over`, the latter's [algorithm] is
    left out, and how often its [learner] uses a batch. So are `network_kwargs` below another `policy.network`, and
    `value_network` below an LSTM.
    """
    joined = fitting_algorithm(over, tables.get("algorithm"))
    for section, table in tables.items():
        below = joined.get(section)
        if isinstance(table, Mapping) and isinstance(below, Mapping):
            joined[section] = {**_fitting(section, below, table), **table}
        else:
            joined[section] = table
    return joined


def fitting_algorithm(tables: Mapping[str, Any], above: Any) -> dict[str, Any]:
    """Return these sections without settings of another algorithm than the section [algorithm] `above` them names."""
    fitting = dict(tables)
    if _is_other_algorithm(above, tables.get("algorithm")):
        fitting["algorithm"] = {}
        fitting["learner"] = {key: value for key, value in tables.get("learner", {}).items() if key not in PASSES}
    return fitting


def _is_other_algorithm(above: Any, below: Any) -> bool:
    if not isinstance(above, Mapping) or not isinstance(below, Mapping):
        return False
    return "name" in below and above.get("name", below["name"]) != below["name"]


def _fitting(section: str, below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a lower section that still make sense with the values laid over it."""
    if section == "policy" and above.get("lstm"):
        below = {key: value for key, value in below.items() if key != "value_network"}  # a memory serves both
    if section == "policy" and above.get("network", below.get("network")) != below.get("network"):
        return {key: value for key, value in below.items() if key != "network_kwargs"}
    return below
