"""What a checkpoint's policy is read as, and what is said of one that cannot be read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seedbed.learner_svc.run.checkpoint import Checkpoint
from seedbed.learner_svc.run.saved_policy import read_policy
from seedbed.shared.errors import CheckpointError
from seedbed.shared.policy.weights import make_manifest
from tests.support.experience import RECORDING, make_policy


def of_today() -> Checkpoint:
    """One that this version would write, as far as its policy goes."""
    policy, weights = make_policy(lstm=4)
    manifest = make_manifest(policy, RECORDING).to_json()
    return Checkpoint(
        path=Path("run/checkpoints/1.json"), kind="latest", serial=1, step=1, meta={"manifest": manifest},
        arrays={"policy.flat": weights.flat.numpy()},
    )  # fmt: skip


def test_the_policy_comes_back_with_its_weights():
    """Built as it was, not yet filled."""
    checkpoint = of_today()
    saved = read_policy(checkpoint)
    assert saved.manifest.to_json() == checkpoint.meta["manifest"]
    assert saved.policy.config.lstm == 4
    np.testing.assert_array_equal(saved.flat, checkpoint.arrays["policy.flat"])


def test_another_versions_layout_is_refused_for_good_with_what_to_do():
    """No restart reads it: the launcher gives up at once."""
    checkpoint = of_today()
    body = json.loads(checkpoint.meta["manifest"])
    older = replace(checkpoint, meta={"manifest": json.dumps(body | {"format": 1})})
    with pytest.raises(CheckpointError, match=r"1\.json: .* format 1, .*[Ss]tart a new run.*versions\.json") as caught:
        read_policy(older)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        ({"meta": {}}, "lacks 'manifest'"),
        ({"arrays": {}}, r"lacks 'policy\.flat'"),
        ({"arrays": {"policy.flat": np.zeros(3, np.float32)}}, "3 weights, its policy has"),
    ],
)
def test_what_is_not_there_is_named(lack, said):
    """Never a KeyError."""
    with pytest.raises(CheckpointError, match=said):
        read_policy(replace(of_today(), **lack))
