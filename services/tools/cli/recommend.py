"""Which recipe suits an environment, by what its spaces are, and how its lanes suit this machine.

| observation | action | kind |
|---|---|---|
| no image | no Box | vector-discrete |
| no image | a Box | vector-continuous |
| an image | no Box | image-discrete |
| an image | a Box | image-continuous |

On top come `categories` where every observation is one, `grid` for images under 20 pixels a side, `color` for images
in color of up to 72 where there is an accelerator, `atari` for ALE's games, and `memory` where it is asked for. The
settings are in `shared/recipes`; a few are fitted to what a probe found: the longest episode, the machine's speed,
grids whose cells hold codes.
"""

import math
from dataclasses import dataclass
from typing import Any

from seedbed.services.tools.cli.probe.record import Probe
from seedbed.shared.policy.scaling import is_grid
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import Leaf
from seedbed.shared.runtime.recipes import MEMORY, Tables, lay, read_recipe

GRID_SIDE = 20  # pixels: what impala_shallow needs at least
CODES = 16  # of a grid whose bounds say nothing: values that were seen to lie below are taken for codes
MAX_CODES = 32  # of one whose bounds are narrow
MAX_CODE_COLUMNS = 16384  # inputs of the network, one for each code of each cell
COLOR_SIDE = 72
HORIZONS = 5  # the discount looks ahead a fifth of the longest episode,
MIN_DISCOUNT, MAX_DISCOUNT = 0.95, 0.995  # that is 20 to 200 steps: farther is noise, nearer is blind
SLOW_LANE_S = 1e-3  # a lane whose step takes longer is stepped by every core
FAST_TICK_S = 1e-3  # a call that steps all lanes and takes less is worth more lanes
MORE_LANES = 2  # how many times as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A choice: which settings, and why these."""

    name: str  # of `seedbed.shared.runtime.recipes`
    reason: str  # for people
    settings: Tables  # that count less than whatever the user says


def choose_recipe(
    spec: EnvSpec,
    probe: Probe | None = None,
    *,
    memory: bool = False,
    is_atari: bool = False,
    cores: int = 1,
    has_accelerator: bool = False,
) -> Recipe:
    """The recipe for an environment.

    Args:
      probe: how fast it is, for the fit to this machine; none: the lanes as the recipe's files say.
      memory: with an LSTM.
      cores: that may step environments.
      has_accelerator: large networks are affordable.
    """
    images = [leaf for leaf in spec.observation.leaves() if leaf.image]
    facets = _facets(spec, images, is_atari=is_atari, is_color_affordable=has_accelerator)
    if memory:
        facets.append(MEMORY)
    kind = f"{'image' if images else 'vector'}-{'continuous' if _is_continuous(spec) else 'discrete'}"
    name = "+".join([kind, *facets])
    settings, reason = read_recipe(name), describe_spaces(spec)
    if probe is not None:
        settings = lay(fit_lanes(settings, probe, cores), over=settings)
        settings = lay(fit_codes(probe), over=settings)
        if codes := settings["policy"].get("grid_codes"):
            reason += f"; cells are taken for {codes} codes"
        if not is_atari:
            settings = lay(fit_discount(probe), over=settings)
    return Recipe(name=name, reason=reason, settings=settings)


def _facets(spec: EnvSpec, images: list[Leaf], *, is_atari: bool, is_color_affordable: bool) -> list[str]:
    """What the observations are beyond their kind."""
    if is_atari:
        return ["atari"]
    if images:
        if min(min(_sides(leaf)) for leaf in images) < GRID_SIDE:
            return ["grid"]
        is_color = all(max(_sides(leaf)) <= COLOR_SIDE and _channels(leaf) == 3 for leaf in images)
        return ["color"] if is_color and is_color_affordable else []
    return ["categories"] if all(leaf.nvec or leaf.kind == "multi_binary" for leaf in spec.observation.leaves()) else []


def _sides(leaf: Leaf) -> tuple[int, ...]:
    """Height and width of an image, pixels."""
    return {"HW": leaf.shape, "HWC": leaf.shape[:2], "CHW": leaf.shape[1:]}[leaf.image]


def _channels(leaf: Leaf) -> int:
    return {"HW": 1, "HWC": leaf.shape[-1], "CHW": leaf.shape[0]}[leaf.image]


def _is_continuous(spec: EnvSpec) -> bool:
    return any(leaf.kind == "box" for leaf in spec.action.leaves())


def describe_spaces(spec: EnvSpec) -> str:
    """Observations and actions in a few words: "8 numbers in, 4 actions to choose from"."""
    return f"{_observed(spec)} in, {_acted(spec)} out"


def _observed(spec: EnvSpec) -> str:
    parts: list[str] = []
    leaves = spec.observation.leaves()
    parts += [f"an image of {'×'.join(map(str, leaf.shape))}" for leaf in leaves if leaf.image]
    numbers = sum(leaf.num_elements for leaf in leaves if leaf.kind == "box" and not leaf.image)
    categories = sum(len(leaf.nvec) or leaf.num_elements for leaf in leaves if leaf.nvec or leaf.kind == "multi_binary")
    texts = sum(leaf.kind == "text" for leaf in leaves)
    for count, one in ((numbers, "number"), (categories, "category"), (texts, "text")):
        if count:
            parts.append(_counted(count, one))
    return " and ".join(parts) or "nothing"


def _acted(spec: EnvSpec) -> str:
    parts: list[str] = []
    for leaf in spec.action.leaves():
        if leaf.kind == "discrete":
            parts.append(f"one of {leaf.num_categories} actions")
        elif leaf.nvec:
            parts.append(_counted(len(leaf.nvec), "choice"))
        elif leaf.kind == "multi_binary":
            parts.append(_counted(leaf.num_elements, "switch"))
        else:
            parts.append(_counted(leaf.num_elements, "continuous action"))
    return " and ".join(parts)


def _counted(count: int, one: str) -> str:
    many = f"{one[:-1]}ies" if one.endswith("y") else f"{one}es" if one.endswith(("ch", "x")) else f"{one}s"
    return f"{count} {one if count == 1 else many}"


def fit_discount(probe: Probe) -> dict[str, dict[str, Any]]:
    """A discount that suits how long episodes can be, where that is known.

    Source: the heuristic of Hansen et al. 2024, arXiv 2310.16828, appendix (TD-MPC2).
    """
    limit = probe.about.max_episode_steps
    if limit is None:
        return {}
    discount = min(max(1.0 - HORIZONS / limit, MIN_DISCOUNT), MAX_DISCOUNT)
    return {"algorithm": {"discount": round(discount, 4)}}


def fit_codes(probe: Probe) -> dict[str, dict[str, Any]]:
    """How many codes the cells of grids hold, by their bounds or else by what was seen; nothing where it is too much.

    A grid is an integer Box of rank 2 or 3; of images, those that are too small to be pictures.
    """
    leaves = probe.spec.observation.leaves()
    grids = [(leaf, seen) for leaf, seen in zip(leaves, probe.seen, strict=bool(probe.seen)) if is_grid(leaf)]
    if any(leaf.image and min(_sides(leaf)) >= GRID_SIDE for leaf, _ in grids):
        return {}
    codes = max((_codes(leaf, *seen) for leaf, seen in grids), default=0)
    columns = codes * sum(leaf.num_elements for leaf, _ in grids)
    return {"policy": {"grid_codes": codes}} if 0 < columns <= MAX_CODE_COLUMNS else {}


def _codes(leaf: Leaf, least: float, greatest: float) -> float:
    """How many different values a grid's cells may have; infinity for more than codes would be."""
    low, high = int(leaf.low_array().min()), int(leaf.high_array().max())
    if high - low < MAX_CODES:
        return high - low + 1
    return CODES if low <= least and greatest - low < CODES else math.inf


def fit_lanes(recipe: Tables, probe: Probe, cores: int) -> dict[str, dict[str, Any]]:
    """Actors, lanes and batch as this machine steps them best, where that differs from the recipe.

    | environment | rule |
    |---|---|
    | stepped one by one, more than a millisecond a step | as many lanes in all, spread over one actor for each core |
    | all lanes in one call of less than a millisecond | twice the lanes, and twice the batch, so that lag stays |
    | any other | the recipe's lanes in one actor |

    Groups, those of evaluations too, are multiples of what comes together, such as the agents of one world.
    """
    lanes, batch = int(recipe["actor"]["lanes"]), int(recipe["learner"]["batch"])
    is_one_call = probe.backend in ("vector", "function") and probe.about.is_vector
    is_slow = probe.tick_s / probe.lanes > SLOW_LANE_S and not probe.about.is_vector
    factor = MORE_LANES if is_one_call and probe.tick_s < FAST_TICK_S else 1
    actors = min(cores, max(1, lanes // probe.lanes)) if is_slow else 1
    share = probe.lanes * math.ceil(lanes * factor / actors / probe.lanes)
    fitted: dict[str, dict[str, Any]] = {}
    if (actors, share) != (1, lanes):
        fitted |= {"actor": {"lanes": share}, "launch": {"actors": actors}}
    if factor > 1:
        fitted["learner"] = {"batch": batch * factor}
    if (eval_lanes := int(recipe["eval"]["lanes"])) % probe.lanes:
        fitted["eval"] = {"lanes": probe.lanes * math.ceil(eval_lanes / probe.lanes)}
    return fitted
