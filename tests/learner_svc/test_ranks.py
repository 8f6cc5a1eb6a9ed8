"""Several learner ranks: what they tell each other, and that they train as one learner with all their batches would."""

import numpy as np
import pytest
import torch

from seedbed.learner_svc.ranks.ranks import place_of
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.messages import pack_version
from tests.support.experience import EPOCH, make_batch, make_updater
from tests.support.ranks import run_ranks

NUM_UPDATES = 50
COMMON = {"learning_rate": 3e-4, "normalise_advantage": True, "value_normalisation": "popart"}
CASES = {
    "vtrace": {"name": "vtrace", **COMMON},
    "vtrace, adaptive entropy": {"name": "vtrace", "entropy_target": 0.4, "entropy_cost": 0.01, "kl_cost": 0.1},
    "appo": {"name": "appo", **COMMON, "passes": 2, "kl_target": 0.01},
    "appo, gae": {"name": "appo", **COMMON, "targets": "gae", "value_clip": 0.2, "dual_clip": 2.0},
}


def train(ranks, config, lanes):
    """Fifty updates on recorded unrolls, of which this rank has its share of the lanes; the state afterwards."""
    updater = make_updater(policy={"normalise_observation": True}, ranks=ranks, **config)
    recorder = make_updater(policy={"normalise_observation": True}, **config).policy
    share = lanes // ranks.size
    mine = torch.arange(ranks.rank * share, (ranks.rank + 1) * share)
    metrics, counts = {}, []
    for step in range(NUM_UPDATES):
        batch = make_batch(recorder, lanes=lanes, seed=step, version=pack_version(EPOCH, max(0, step - 2)))
        result = updater.update(
            batch.lanes(mine), step=step, trained_steps=100 * step, max_policy_lag=20,
            version_now=pack_version(EPOCH, step),
        )  # fmt: skip
        metrics = {name: value for name, value in result.metrics.items() if name != "update_ms"}
        counts.append((result.valid_steps, result.dropped_steps, result.lag_sum, result.lag_histogram))
    return {name: array.tolist() for name, array in updater.state()[0].items()}, metrics, counts


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_two_ranks_train_as_one_with_twice_the_batch(tmp_path, config):
    """Weights, optimiser and statistics after fifty updates, and what is counted and reported."""
    alone = run_ranks(train, 1, tmp_path, config, 8)[0]
    pair = run_ranks(train, 2, tmp_path, config, 8)
    for name in pair[0][0]:
        assert pair[0][0][name] == pair[1][0][name], name
    weights, reference = (np.array(run[0]["policy.flat"]) for run in (pair[0], alone))
    assert np.linalg.norm(weights - reference) <= 1e-6 * np.linalg.norm(reference)
    assert pair[0][2] == pair[1][2] == alone[2]
    assert pair[0][1] == pytest.approx(alone[1], rel=1e-3, abs=1e-5)


def exchange(ranks):
    """One of each message."""
    mine = torch.full((3,), float(ranks.rank + 1))
    told = ranks.tell(b"from the chief" if ranks.is_chief else b"ignored")
    state = {"a": torch.full((2,), float(ranks.rank)), "b": torch.zeros((), dtype=torch.int64) + ranks.rank}
    ranks.copy_from_chief(state)
    return (
        ranks.sum(mine).tolist(), ranks.max(mine).tolist(), ranks.mean(mine).tolist(),
        ranks.gather([ranks.rank, 7.0]).tolist(), [data.decode() for data in ranks.gather_bytes(b"x" * ranks.rank)],
        told.decode(),
        {name: tensor.tolist() for name, tensor in state.items()},
    )  # fmt: skip


def test_every_rank_learns_the_same_from_the_others(tmp_path):
    """Sums, what each gave, and what the chief said."""
    expected = [
        [6.0] * 3, [3.0] * 3, [2.0] * 3, [[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]], ["", "x", "xx"], "from the chief",
        {"a": [0.0, 0.0], "b": 0},
    ]  # fmt: skip
    assert run_ranks(exchange, 3, tmp_path) == [expected] * 3


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "two"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "70000"},
    ],
)
def test_a_wrong_environment_is_refused(environment):
    """Before anything waits for ranks that cannot come."""
    with pytest.raises(ConfigError):
        place_of(environment)


def test_without_variables_a_learner_is_alone():
    """As torchrun is not needed for one."""
    assert place_of({}) == (0, 1)
