"""Environments that are too large are refused before anything is built for them."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from seedbed.learner_svc.config import LearnerConfig
from seedbed.learner_svc.link.sizes import check_size
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.step_link import SPEC

GIB = 1 << 30


def a_spec(elements: int):
    return replace(SPEC, observation=space_from_gymnasium(gymnasium.spaces.Box(-1, 1, (elements,), np.float32)))


@pytest.mark.parametrize(
    ("elements", "available", "fits"),
    [
        (4, 8 * GIB, True),
        (1 << 16, 8 * GIB, True),  # 8 MiB an unroll, 256 MiB a batch
        (1 << 18, 8 * GIB, True),
        (1 << 18, 4 * GIB, False),  # an unroll fits a message, batches do not fit the memory
        (1 << 18, None, True),  # nobody knows how much there is
        (1 << 22, None, False),  # an unroll of one lane fits no message
    ],
)
def test_what_fits(elements: int, available: int | None, fits: bool) -> None:
    """Unrolls against a frame, batches against half of the memory that is left."""
    config = LearnerConfig(unroll_length=31, batch=32, buffers=2)
    problem = check_size(a_spec(elements), config, available)
    assert (problem is None) == fits
    assert problem is None or problem.code == "spec"
