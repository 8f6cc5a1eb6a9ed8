"""Several learner ranks: what they tell each other, and that they train as one learner with all their batches would."""

import json

import numpy as np
import pytest
import torch

from seedbed.inference_svc.rank_connections import resolve_rank
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.ranks.ranks import place_of
from seedbed.learner_svc.ranks.start import (
    advertised,
    check_addresses,
    check_versions,
    place,
    settings_of_rank,
    version,
)
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.runtime.tasks import TaskConfig
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


def train_in_parts(ranks, config, minibatches):
    """Updates in minibatches, on the same recorded unrolls in every rank; the weights afterwards."""
    updater = make_updater(policy={"normalise_observation": True}, ranks=ranks, minibatches=minibatches, **config)
    recorder = make_updater(policy={"normalise_observation": True}, **config).policy
    for step in range(NUM_UPDATES // 5):
        batch = make_batch(recorder, seed=step, version=pack_version(EPOCH, max(0, step - 2)))
        now = pack_version(EPOCH, step)
        updater.update(batch, step=step, trained_steps=100 * step, max_policy_lag=20, version_now=now)
    return updater.state()[0]["policy.flat"].tolist()


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_ranks_with_the_same_batch_train_as_one_with_it(tmp_path, config):
    """In minibatches, which each rank cuts in the same order, so that every sum is twice that of one learner."""
    alone = run_ranks(train_in_parts, 1, tmp_path, config, 3)[0]
    pair = run_ranks(train_in_parts, 2, tmp_path, config, 3)
    weights, reference = np.array(pair[0]), np.array(alone)
    assert pair[0] == pair[1]
    assert np.linalg.norm(weights - reference) <= 1e-6 * np.linalg.norm(reference)


def count_tasks(ranks):
    """What one update counts of each of two tasks, whose lanes are not evenly spread over the ranks."""
    tasks = {name: TaskConfig.model_validate({"env": {"id": name}}) for name in ("easy", "hard")}
    updater = make_updater(tasks=tasks, ranks=ranks)
    batch = make_batch(updater.policy, lanes=8, version=pack_version(EPOCH, 0))
    share = 8 // ranks.size
    lanes = torch.arange(ranks.rank * share, (ranks.rank + 1) * share)
    result = updater.update(
        batch.lanes(lanes), step=0, trained_steps=0, max_policy_lag=20, version_now=pack_version(EPOCH, 0),
        task_B=np.array([0, 0, 0, 1, 0, 1, 1, 1])[lanes],
    )  # fmt: skip
    return result.task_counts, result.valid_steps


def test_the_counts_of_tasks_are_of_all_ranks(tmp_path):
    """Lanes and trained transitions, as one learner counts them."""
    (tasks, steps) = run_ranks(count_tasks, 1, tmp_path)[0]
    assert [lanes for lanes, _ in tasks] == [4, 4]
    assert sum(trained for _, trained in tasks) == steps
    assert run_ranks(count_tasks, 2, tmp_path) == [[tasks, steps]] * 2


def exchange(ranks):
    """One of each message."""
    mine = torch.full((3,), float(ranks.rank + 1))
    told = ranks.tell(b"from the chief" if ranks.is_chief else b"ignored")
    state = {"a": torch.full((2,), float(ranks.rank)), "b": torch.zeros((), dtype=torch.int64) + ranks.rank}
    ranks.copy_from_chief(state)
    return (
        ranks.sum(mine).tolist(), ranks.max(mine).tolist(), ranks.mean(mine).tolist(),
        [told.tolist() for told in ranks.gather([7.0] * (ranks.rank + 1))],
        [data.decode() for data in ranks.gather_bytes(b"x" * ranks.rank)],
        told.decode(),
        {name: tensor.tolist() for name, tensor in state.items()},
    )  # fmt: skip


def test_every_rank_learns_the_same_from_the_others(tmp_path):
    """Sums, what each gave, and what the chief said."""
    expected = [
        [6.0] * 3, [3.0] * 3, [2.0] * 3, [[7.0], [7.0, 7.0], [7.0, 7.0, 7.0]], ["", "x", "xx"], "from the chief",
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


def make_settings(sections):
    """A learner's settings of an environment that nobody makes."""
    return LearnerSettings.model_validate({"env": {"id": "E"}} | sections)


def test_ranks_that_torchrun_starts_with_the_same_words_have_ports_names_and_files_of_their_own(tmp_path):
    """The chief keeps those that were given; a port that the system chooses stays so."""
    settings = make_settings(
        {
            "learner": {"bind": "tcp://0.0.0.0:5556", "advertise": "tcp://10.0.0.6:7000"},
            "runtime": {"metrics_address": "127.0.0.1:0", "log_file": str(tmp_path / "log.jsonl")},
        }
    )
    common = {"WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert place(settings, common | {"RANK": "0", "LOCAL_RANK": "0"}) == settings
    third = place(settings, common | {"RANK": "3", "LOCAL_RANK": "1"})
    assert (third.learner.bind, third.learner.advertise) == ("tcp://0.0.0.0:5557", "tcp://10.0.0.6:7001")
    assert third.runtime.metrics_address == "127.0.0.1:0"
    assert (third.runtime.name, third.runtime.log_file) == ("learner-3", tmp_path / "log-3.jsonl")
    assert place(settings, common | {"RANK": "3"}) == settings
    with pytest.raises(ConfigError):
        place(settings, common | {"RANK": "3", "LOCAL_RANK": "9"})


@pytest.mark.parametrize("advertise", ["10.0.0.6:5556", "tcp://10.0.0.6", "tcp://10.0.0.6:0", "tcp://a:65535"])
def test_an_address_that_inference_cannot_dial_is_refused_at_the_ranks_start(advertise):
    """Inference would end by it. The last one has no port left for a second rank of its machine."""
    variables = {"WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "3", "LOCAL_RANK": "1"}
    with pytest.raises(ConfigError, match=r"learner\.advertise"):
        place(make_settings({"learner": {"advertise": advertise}}), variables)


def test_two_ranks_that_would_be_dialled_at_one_address_are_refused():
    """By every rank; the chief's address counts."""
    check_addresses(["tcp://*:5556", "tcp://*:5557", "tcp://b:5556"])
    for addresses in (["tcp://*:5556", "tcp://*:5556"], ["tcp://a:1", "tcp://b:1", "tcp://b:1"]):
        with pytest.raises(ConfigError):
            check_addresses(addresses)


def test_ranks_of_different_versions_are_refused():
    """By every rank, whichever has the other version."""
    check_versions([version()] * 3)
    with pytest.raises(ConfigError, match="rank 2 has version"):
        check_versions([version(), version(), "0.0.1-0"])


def test_a_chief_with_settings_that_a_rank_does_not_know_is_of_another_version():
    """Its error names the setting and what to do."""
    told = make_settings({}).model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"learner\.depth"):
        settings_of_rank(make_settings({}), {**told, "learner": {**told["learner"], "depth": 3}})


@pytest.mark.parametrize(
    ("num_gpus", "device", "variables", "expected"),
    [
        (2, "auto", {"RANK": "3", "LOCAL_RANK": "1"}, "cuda:1"),
        (2, "cuda", {"RANK": "2", "LOCAL_RANK": "0"}, "cuda:0"),
        (2, "auto", {"RANK": "1"}, "cuda:1"),
        (2, "auto", {"RANK": "0"}, "cuda:0"),
        (2, "cpu", {"RANK": "1", "LOCAL_RANK": "1"}, "cpu"),
        (2, "cuda:0", {"RANK": "1", "LOCAL_RANK": "1"}, "cuda:0"),
        (1, "auto", {"RANK": "1", "LOCAL_RANK": "1"}, "auto"),
        (0, "auto", {"RANK": "1", "LOCAL_RANK": "1"}, "auto"),
    ],
)
def test_each_rank_of_a_machine_has_a_gpu_of_its_own(monkeypatch, num_gpus, device, variables, expected):
    """Where there are several, and unless the settings name one or the CPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    settings = make_settings({"learner": {"device": device}})
    common = {"WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert place(settings, common | variables).learner.device == expected


def test_a_learner_that_trains_alone_keeps_its_device(monkeypatch):
    """The first GPU is meant by `auto`, also where there are several."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    settings = make_settings({})
    assert place(settings, {}) == settings


def test_inference_is_told_where_a_rank_is():
    """By the host that it reached the chief at, where that is the rank's too."""
    settings = make_settings({})
    assert advertised(settings, "tcp://127.0.0.1:7", "here", host="there") == "tcp://127.0.0.1:7"
    assert advertised(settings, "tcp://0.0.0.0:7", "here", host="there") == "tcp://there:7"
    address = advertised(settings, "tcp://0.0.0.0:7", "here", host="here")
    assert resolve_rank(address, "tcp://10.0.0.5:5556") == "tcp://10.0.0.5:7"
    assert resolve_rank(address, "tcp://[::1]:5556") == "tcp://[::1]:7"
    chosen = make_settings({"learner": {"advertise": "tcp://rank-1.learner:5556"}})
    assert advertised(chosen, "tcp://0.0.0.0:7", "here", host="there") == "tcp://rank-1.learner:5556"


def test_a_rank_takes_the_chiefs_settings_at_its_own_place():
    """As the chief tells them, through JSON."""
    chief = make_settings(
        {"learner": {"batch": 7, "bind": "tcp://0.0.0.0:1"}, "algorithm": {"name": "appo", "lam": 0.5}}
    )
    own = make_settings({"learner": {"batch": 99, "bind": "tcp://0.0.0.0:2", "device": "cpu"}})
    found = settings_of_rank(own, json.loads(json.dumps(chief.model_dump(mode="json"))))
    assert (found.learner.batch, found.learner.bind, found.learner.device) == (7, "tcp://0.0.0.0:2", "cpu")
    assert found.algorithm == chief.algorithm


def test_without_variables_a_learner_is_alone():
    """As torchrun is not needed for one."""
    assert place_of({}) == (0, 1)
