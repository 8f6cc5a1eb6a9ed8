"""Which processes a run consists of."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from seedbed.services.tools.cli.experiment import load_experiment
from seedbed.services.tools.cli.machine import cgroup_quota, service_environment, usable_cores
from seedbed.services.tools.cli.plan import (
    Addresses,
    Process,
    limit_threads,
    plan_run,
    split_threads,
)
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import LaunchConfig
from seedbed.shared.runtime.load_config import parse_value

ADDRESSES = Addresses(learner="tcp://127.0.0.1:1000", inference=("tcp://127.0.0.1:1001", "tcp://127.0.0.1:1002"))


@pytest.fixture
def make_plan(tmp_path):
    """Plan a run with some settings."""

    def make(*words: str, cores: int = 8, addresses: Addresses = ADDRESSES) -> dict[str, Process]:
        file = tmp_path / "small.toml"
        file.write_text('[run]\nrecipe = "none"\n[env]\nid = "CartPole-v1"\n')
        experiment = load_experiment(file, words, run_dir=tmp_path / "run", resume=False)
        return {process.name: process for process in plan_run(experiment, addresses, cores)}

    return make


def words_of(process: Process) -> dict[str, object]:
    """The settings on a process's command line."""
    pairs = [word.split("=", 1) for word in process.command if "=" in word]
    return {key: parse_value(value) for key, value in pairs}


def test_all_services_of_an_experiment_are_planned(make_plan):
    """Learner first, then inference, training actors, evaluation actors."""
    plan = make_plan("launch.actors=3", "launch.inference=2", "launch.eval_actors=1")
    assert list(plan) == ["learner", "inference-0", "inference-1", "actor-0", "actor-1", "actor-2", "eval-0"]
    assert [plan[name].role for name in plan] == ["learner", "inference", "inference", *["actor"] * 4]


def test_addresses_are_handed_on(make_plan):
    """Leaves dial in: inference knows the learner, actors know every inference, each beginning at another."""
    plan = make_plan("launch.actors=2", "launch.inference=2")
    assert words_of(plan["learner"])["learner.bind"] == ADDRESSES.learner
    assert words_of(plan["inference-1"])["inference.bind"] == ADDRESSES.inference[1]
    assert words_of(plan["inference-1"])["inference.upstream"] == [ADDRESSES.learner]
    assert words_of(plan["actor-0"])["actor.upstream"] == list(ADDRESSES.inference)
    assert words_of(plan["actor-1"])["actor.upstream"] == list(reversed(ADDRESSES.inference))


def test_each_inference_service_takes_the_next_gpu_after_those_of_the_learner_ranks(make_plan):
    """Of a machine that has several. An experiment that names one is followed."""
    plan = make_plan("launch.inference=2")
    assert [words_of(plan[f"inference-{index}"])["inference.gpu"] for index in (0, 1)] == [1, 2]
    ranks = replace(ADDRESSES, ranks=("tcp://127.0.0.1:1003",), meeting="tcp://127.0.0.1:1004")
    plan = make_plan("launch.inference=2", "launch.learners=2", addresses=ranks)
    assert [words_of(plan[f"inference-{index}"])["inference.gpu"] for index in (0, 1)] == [2, 3]
    assert "inference.gpu" not in words_of(make_plan("inference.gpu=0")["inference-0"])


def test_evaluation_actors_say_so(make_plan):
    """Their mode is evaluation, everyone else's is training."""
    plan = make_plan()
    assert words_of(plan["eval-0"])["actor.mode"] == "eval"
    assert words_of(plan["actor-0"])["actor.mode"] == "train"


def test_every_task_has_actors_of_its_own(make_plan):
    """As many as launch says or the task itself; each knows which task it steps."""
    plan = make_plan("tasks.a.weight=1", "tasks.b.actors=2", "launch.inference=2", "learner.max_policy_lag=100")
    names = ["actor-a-0", "actor-b-0", "actor-b-1", "eval-a-0", "eval-b-0"]
    assert list(plan)[3:] == names
    said = [(words_of(plan[name])["actor.task"], words_of(plan[name])["actor.mode"]) for name in names]
    assert said == [("a", "train"), ("b", "train"), ("b", "train"), ("a", "eval"), ("b", "eval")]
    assert len({tuple(words_of(plan[name])["actor.upstream"]) for name in names}) == 2, "spread over both replicas"


def test_lanes_that_are_too_many_for_their_share_are_refused(make_plan):
    """A tenth of the batches is used ten times as slowly."""
    words = ("tasks.a.weight=9", "tasks.b.lanes=8", "learner.batch=16", "actor.lanes=8", "launch.actors=1")
    with pytest.raises(ConfigError, match=r"16 lanes of task b, which has 10\.0% of a batch"):
        make_plan(*words, "learner.max_policy_lag=11")
    assert make_plan(*words, "learner.max_policy_lag=12")


def test_each_service_has_its_own_status_and_log(make_plan):
    """No two write into one file."""
    plan = make_plan("launch.actors=2")
    for key in ("runtime.status_file", "runtime.log_file"):
        assert len({words_of(process)[key] for process in plan.values()}) == len(plan)


def test_niceness_follows_the_direction_of_waiting(make_plan):
    """The learner goes first, environments last."""
    plan = make_plan()
    assert [words_of(plan[name])["runtime.nice"] for name in ("learner", "inference-0", "actor-0")] == [0, 2, 10]


def test_settings_of_the_experiment_are_kept(make_plan):
    """The launcher's own choice of threads and niceness gives way."""
    plan = make_plan("runtime.threads=3", "runtime.nice=5")
    assert "runtime.threads" not in words_of(plan["learner"])
    assert "runtime.nice" not in words_of(plan["actor-0"])
    assert plan["learner"].environment["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("cores", "inference", "expected"),
    [(1, 1, (1, 1)), (2, 1, (1, 1)), (8, 1, (4, 2)), (16, 2, (8, 2)), (64, 1, (32, 16))],
)
def test_cores_are_divided(cores, inference, expected):
    """Half to the learner, a quarter to inference, the rest to environments; never nothing."""
    threads = split_threads(LaunchConfig(inference=inference), cores)
    assert (threads.learner, threads.inference) == expected


def test_threads_that_the_experiment_names_are_taken():
    """A measured split beats a rule of thumb."""
    threads = split_threads(LaunchConfig(learner_threads=2, inference_threads=1), 2)
    assert (threads.learner, threads.inference) == (2, 1)


def test_a_service_that_is_started_alone_takes_its_share_too():
    """Unless whoever starts it says otherwise."""
    shares = split_threads(LaunchConfig(), usable_cores())
    for role, threads in (("learner", shares.learner), ("inference", shares.inference), ("actor", 1)):
        environment: dict[str, str] = {}
        limit_threads(environment, role)
        assert environment == {"OMP_NUM_THREADS": str(threads)}
    given = {"OMP_NUM_THREADS": "7"}
    limit_threads(given, "inference")
    assert given == {"OMP_NUM_THREADS": "7"}


@pytest.mark.parametrize(("text", "quota"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("nonsense", None)])
def test_a_containers_quota_is_read(tmp_path, text, quota):
    """Version 2 control groups; anything else means no limit."""
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert cgroup_quota(file) == quota
    assert cgroup_quota(tmp_path / "absent") is None


def test_settings_in_variables_do_not_reach_the_services():
    """They are in the snapshot; other variables pass."""
    given = {"SEEDBED_RUN__SEED": "2", "seedbed_actor__lanes": "3", "PATH": "/bin", "SEEDBED_HOME": "x"}
    assert service_environment(given) == {"PATH": "/bin", "SEEDBED_HOME": "x"}


def test_words_survive_odd_paths(tmp_path):
    """A folder's name may hold quotes, spaces and equals signs."""
    folder = tmp_path / 'a "b" = c'
    folder.mkdir()
    file = folder / "small.toml"
    file.write_text('[env]\nid = "CartPole-v1"\n')
    experiment = load_experiment(file, [], run_dir=folder / "run", resume=False)
    learner = plan_run(experiment, ADDRESSES, 2)[0]
    assert words_of(learner)["runtime.status_file"] == str(learner.status_file(folder / "run"))
    assert Path(learner.command[4]).is_relative_to(folder)
    assert tomllib.loads(f"x = {learner.command[-1].partition('=')[2]}")


def test_inference_is_told_the_groups_of_a_deterministic_run(make_plan):
    """Of all training actors; without the mode nothing is said."""
    one = Addresses(learner=ADDRESSES.learner, inference=ADDRESSES.inference[:1])
    plan = make_plan("run.deterministic=true", "launch.actors=3", "actor.groups=2", addresses=one)
    assert words_of(plan["inference-0"])["inference.lockstep_groups"] == 6
    assert "inference.lockstep_groups" not in words_of(make_plan(addresses=one)["inference-0"])
