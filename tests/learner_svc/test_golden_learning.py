"""Acting and learning give what was recorded: bit for bit where it was recorded, and the same figures everywhere."""

import json

import pytest

from tests.golden.learning import LEARNING, RECORDED, record_pinned

TOLERANCE = 1e-3  # elsewhere: other processors round otherwise, over six updates


@pytest.fixture(scope="module")
def now():
    """What this code does."""
    return record_pinned()


@pytest.fixture(scope="module")
def recorded():
    """What the code did when it was recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", LEARNING)
def test_what_is_acted_recorded_and_learned_is_what_it_was(now, recorded, case):
    """Unrolls, batches, weights, the optimiser's state and figures of every update."""
    ours, golden = now["cases"][case], recorded["cases"][case]
    ours = ours | {"figures": {name: ours["figures"][name] for name in golden["figures"]}}  # there may be new ones
    if now["machine"] == recorded["machine"]:
        assert ours == golden
    assert ours["figures"] == pytest.approx(golden["figures"], rel=TOLERANCE, abs=TOLERANCE)
