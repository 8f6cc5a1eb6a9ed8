"""Which recipe suits which spaces, and how lanes suit a machine."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from seedbed.actor_svc.backends.backend import About
from seedbed.services.tools.cli.probe.record import Probe, from_json, to_json
from seedbed.services.tools.cli.recommend import choose_recipe
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.runtime.recipes import read_recipe
from tests.support.specs import make_spec

NUMBERS = spaces.Box(-1, 1, (3,), np.float32)
CHOICE = spaces.Discrete(2)


def image(*shape: int) -> spaces.Box:
    """uint8."""
    return spaces.Box(0, 255, shape, np.uint8)


def spec_of(observation: gymnasium.Space, action: gymnasium.Space = CHOICE, layout: str = "HWC") -> EnvSpec:
    """A specification with these spaces."""
    return make_spec(observation, action, env_id="any", image=layout)


def probe(tick_s: float, *, backend: str = "gymnasium", is_vector: bool = False, lanes: int = 1) -> Probe:
    """An environment of some speed."""
    about = About(layers=("A", "B"), is_vector=is_vector)
    return Probe(spec=spec_of(NUMBERS), backend=backend, about=about, lanes=lanes, tick_s=tick_s)


@pytest.mark.parametrize(
    ("observation", "action", "name"),
    [
        (NUMBERS, CHOICE, "vector-discrete"),
        (NUMBERS, spaces.MultiDiscrete([2, 3]), "vector-discrete"),
        (NUMBERS, spaces.MultiBinary(4), "vector-discrete"),
        (NUMBERS, NUMBERS, "vector-continuous"),
        (NUMBERS, spaces.Tuple([CHOICE, NUMBERS]), "vector-continuous"),
        (spaces.Discrete(16), CHOICE, "vector-discrete+categories"),
        (spaces.Tuple([spaces.Discrete(32), spaces.MultiBinary(2)]), NUMBERS, "vector-continuous+categories"),
        (spaces.Dict(a=spaces.Discrete(3), b=NUMBERS), CHOICE, "vector-discrete"),
        (image(84, 84), CHOICE, "image-discrete"),
        (image(96, 96, 3), NUMBERS, "image-continuous"),
        (image(64, 64, 3), CHOICE, "image-discrete"),
        (image(7, 7, 3), CHOICE, "image-discrete+grid"),
        (spaces.Dict(camera=image(96, 96, 3), speed=NUMBERS), CHOICE, "image-discrete"),
    ],
)
def test_a_recipe_is_chosen_by_what_the_spaces_are(observation, action, name):
    """Kind first, then what is special about the observations."""
    assert choose_recipe(spec_of(observation, action)).name == name


def test_small_images_are_told_from_many_channels():
    """Two gray frames are no color, whatever their size."""
    gray = choose_recipe(spec_of(image(2, 48, 48), layout="CHW"), has_accelerator=True)
    assert gray.name == "image-discrete"
    assert choose_recipe(spec_of(image(3, 48, 48), layout="CHW"), has_accelerator=True).name == "image-discrete+color"


def test_atari_and_memory_are_told():
    """They are no matter of spaces."""
    assert choose_recipe(spec_of(image(84, 84)), is_atari=True, memory=True).name == "image-discrete+atari+memory"
    assert choose_recipe(spec_of(NUMBERS), memory=True).settings["policy"]["lstm"] > 0


def test_the_reason_says_what_was_found():
    """In words that name sizes."""
    said = choose_recipe(spec_of(spaces.Dict(a=image(9, 9, 3), b=NUMBERS), spaces.Discrete(5))).reason
    assert said == "an image of 9×9×3 and 3 numbers in, one of 5 actions out"


def lanes_of(settings) -> tuple[int, int]:
    """Actors, and lanes of all of them."""
    actors = settings.get("launch", {}).get("actors", 1)
    return actors, actors * settings["actor"]["groups"] * settings["actor"]["lanes"]


def test_a_slow_environment_is_spread_over_the_cores():
    """With as many lanes in all: they belong to how the recipe learns."""
    plain = lanes_of(read_recipe("vector-discrete"))
    slow = choose_recipe(probe(5e-3).spec, probe(5e-3), cores=4).settings
    assert lanes_of(slow) == (4, plain[1])
    quick = choose_recipe(probe(5e-5).spec, probe(5e-5), cores=4).settings
    assert lanes_of(quick) == plain


def test_lanes_that_are_stepped_in_one_call_are_more():
    """And so is the batch, so that no row comes older."""
    recipe = read_recipe("vector-discrete")
    found = probe(1e-4, backend="vector", is_vector=True)
    fitted = choose_recipe(found.spec, found, cores=4).settings
    factor = lanes_of(fitted)[1] / lanes_of(recipe)[1]
    assert factor > 1
    assert fitted["learner"]["batch"] == recipe["learner"]["batch"] * factor
    pool = probe(1e-4, backend="envpool", is_vector=True)  # it steps its lanes one by one, in threads
    assert lanes_of(choose_recipe(pool.spec, pool, cores=4).settings) == lanes_of(recipe)


def test_agents_that_come_together_stay_together():
    """Lanes are a multiple of theirs, in evaluations too."""
    found = probe(1e-2, backend="function", lanes=3)
    settings = choose_recipe(found.spec, found, cores=64).settings
    assert settings["actor"]["lanes"] % 3 == settings["eval"]["lanes"] % 3 == 0
    assert settings["eval"]["lanes"] >= read_recipe("vector-discrete")["eval"]["lanes"]


@pytest.mark.parametrize(
    ("limit", "discount"), [(None, 0.99), (20, 0.95), (200, 0.975), (500, 0.99), (1000, 0.995), (27_000, 0.995)]
)
def test_the_discount_looks_ahead_a_fifth_of_the_longest_episode(limit, discount):
    """Within bounds, and not where nobody knows how long an episode can be."""
    found = Probe(
        spec=spec_of(NUMBERS), backend="gymnasium", about=About(max_episode_steps=limit), lanes=1, tick_s=1e-5
    )
    assert choose_recipe(found.spec, found).settings["algorithm"]["discount"] == pytest.approx(discount)
    atari = choose_recipe(found.spec, found, is_atari=True)
    assert atari.settings["algorithm"]["discount"] == 0.99  # whose limit no game reaches


BOARD = spaces.Box(-1, 1, (8, 8), np.int8)


@pytest.mark.parametrize(
    ("observation", "seen", "codes"),
    [
        (image(7, 7, 3), [(0, 10)], 16),  # MiniGrid: bounds that say nothing, values that do
        (image(7, 7, 3), [(0, 200)], 0),  # a thumbnail
        (image(84, 84, 3), [(0, 3)], 0),  # a screen that is black yet
        (spaces.Box(0, 20, (9, 9), np.uint8), [(0, 1)], 21),
        (BOARD, [(0, 0)], 3),
        (spaces.Dict(board=BOARD, speed=NUMBERS), [(-1, 1), (-0.5, 0.5)], 3),
        (spaces.Box(0, 3, (64, 64, 8), np.int8), [(0, 3)], 0),  # too many inputs
        (spaces.Box(0, 3, (9,), np.int8), [(0, 3)], 0),  # quantities, for all that is known
        (NUMBERS, [(0, 1)], 0),
    ],
)
def test_grids_whose_cells_hold_few_values_are_codes(observation, seen, codes):
    """As many as their bounds allow; where these say nothing, sixteen, if no greater value was seen."""
    found = Probe(
        spec=spec_of(observation, layout="HW" if len(observation.shape or ()) == 2 else "HWC"),
        backend="gymnasium", about=About(), lanes=1, tick_s=1e-5, seen=tuple(seen),
    )  # fmt: skip
    recipe = choose_recipe(found.spec, found)
    assert recipe.settings["policy"].get("grid_codes", 0) == codes
    assert (f"{codes} codes" in recipe.reason) == bool(codes)


def test_a_probe_says_the_same_at_the_other_end():
    """As it travels from the process that made it."""
    given = replace(probe(1e-3, backend="function", lanes=2), seen=((-1.0, 0.5), (np.inf, -np.inf)))
    assert from_json(to_json(given)) == given
    assert given.stepped_by == "a function, one by one: A<B>"
