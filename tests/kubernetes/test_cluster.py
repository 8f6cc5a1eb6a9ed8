"""The manifests of compose/kubernetes/ in a real cluster: a whole run, then a long one that is scaled and broken.

Each step prints how long it took. `tests/test_kubernetes_files.py` checks without a cluster what the manifests say.
"""

import json
import time
from contextlib import contextmanager

import pytest
import yaml

from tests.support.deployment import wait_until
from tests.support.kubernetes_run import MANIFESTS, NAMESPACE, WAIT_S, ExternalMetric, Run, measure

pytestmark = pytest.mark.timeout(1800)
SOLVED_S = 600.0
LONG = (
    "RUN__UNTIL_RETURN=10000", "EVAL__EVERY_S=0", "ACTOR__LANES=32", "LEARNER__BATCH=32",
    "LEARNER__METRICS_EVERY_S=0.5", "LEARNER__CHECKPOINT_EVERY_S=2", "LEARNER__MAX_POLICY_LAG=1000",
)  # fmt: skip
ENDLESS = ("RUN__STEPS=0", *LONG)


@pytest.fixture
def timed(capsys):
    """A context manager that prints how long something took."""

    @contextmanager
    def stopwatch(what):
        began = time.monotonic()
        yield
        with capsys.disabled():
            print(f"\n  {time.monotonic() - began:6.1f} s  {what}", end="", flush=True)

    return stopwatch


def test_two_ranks_solve_cartpole_and_the_run_stays_when_the_pods_are_gone(cluster, tmp_path, timed):
    """Both ranks train; at the end all pods wait to be removed."""
    with Run(cluster, tmp_path, "EVAL__EVERY_S=5", ranks=2) as run:
        with timed("from `kubectl apply` until both ranks, inference, actor, evaluator and monitor are ready"):
            run.apply()
            for name, number in (("learner", 2), ("inference", 1), ("actor", 1), ("evaluator", 1)):
                run.wait_ready(name, number)
            wait_until(lambda: run.monitor_life() >= 0, "the page answers", WAIT_S)
        with timed("until an evaluation of 100 episodes has reached 475"):
            wait_until(lambda: run.summary().get("finished"), "the run ends", SOLVED_S)
        assert run.summary()["reason"] == "until_return"
        assert run.summary()["eval_return_mean"] >= 475
        assert any(event.get("rank") == 1 for event in events(run, "learner-1", "policy_ready"))
        with timed("until every service but the monitor waits to be removed"):
            for name in ("learner", "inference", "actor", "evaluator"):
                run.wait_ready(name, 0)
        assert run.monitor_life() >= 0
        assert run.state() == "finished"
        with timed("until all pods are removed; the claims stay"):
            run.remove_pods()
        claims = {item["metadata"]["name"]: item["status"]["phase"] for item in cluster.get("persistentvolumeclaims")}
        assert claims == {"runs-learner-0": "Bound", "runs-learner-1": "Bound"}
        assert run.summary()["finished"]


def events(run, name, kind):
    """Those of a kind in the log of a pod, or of one of a Deployment's."""
    found = [json.loads(line) for line in run.logs(name).splitlines() if line.startswith("{")]
    return [event for event in found if event.get("event") == kind]


def num_ranks(run):
    """How many learners have met, as the chief last said it."""
    return events(run, "learner-0", "ranks_met")[-1]["number"]


def test_a_long_run_is_scaled_and_broken_and_goes_on(cluster, tmp_path, tmp_path_factory, timed):
    """A rank is added, pods are killed, one is evicted, environments get another key, and the run ends and goes on."""
    autoscaler = yaml.safe_load((MANIFESTS / "autoscaling" / "actors.yaml").read_text())
    metric = autoscaler["spec"]["metrics"][0]["external"]["metric"]["name"]
    with (
        ExternalMetric(cluster, tmp_path_factory.mktemp("metric"), metric) as waiting,
        Run(cluster, tmp_path, *ENDLESS, ranks=1, autoscaled=True) as run,
    ):
        waiting.set("1150m")  # as the autoscaler wants it
        with timed("until one learner trains"):
            run.apply()
            run.wait_trained()
        add_rank(run, timed)
        with timed("until Prometheus computes the autoscaler's metric from the page of the monitor"):
            ratio = measure(run, tmp_path_factory.mktemp("prometheus"))
        assert 0.9 < ratio <= 50  # 1: no wait; 50: the rule's limit
        scale_actors(run, waiting, timed)
        kill_pods(run, timed)
        evict_ranks(run, timed)
        replace_key(run, timed)
        extend(run, timed)
        with timed("until everything is removed"):
            run.remove()
        assert not cluster.get("namespace", NAMESPACE)


def add_rank(run, timed):
    """The second rank comes first, and waits for a chief that knows of it."""
    epoch, _ = run.progress()
    run.change(*ENDLESS, ranks=2)
    with timed("from `kubectl apply` of a second learner rank until both train"):
        run.apply()
        run.wait_trained(epoch + 1)
    assert num_ranks(run) == 2


def scale_actors(run, waiting, timed):
    """The learner waits for most of the time, then never."""
    with timed("from a learner that waits until the autoscaler's 4 actors are ready"):
        waiting.set("20")
        run.wait_ready("actor", 4)
    run.wait_trained()
    with timed("from a learner that never waits until there is 1 actor"):
        waiting.set("100m")
        wait_until(lambda: len(run.cluster.pods("actor")) == 1, "one actor is left", WAIT_S)
    waiting.set("1150m")
    run.wait_trained()


def kill_pods(run, timed):
    """Without a moment's notice."""
    for name, number in (("actor", 1), ("inference", 1), ("evaluator", 1)):
        run.wait_ready(name, number)
        lives = run.lives(name)
        with timed(f"from a killed pod of {name} until another one is ready and training goes on"):
            (pod,) = run.cluster.ready(name)
            kill(run, pod)
            run.wait_ready(name, number, without=lives)
            run.wait_trained()
    life, (epoch, _) = run.monitor_life(), run.progress()
    with timed("from a killed process of the monitor until its page answers again"):
        run.cluster.kill_process("learner-0", "SEEDBED_MONITOR__RUNS")
        wait_until(lambda: run.monitor_life() > life, "the page answers", WAIT_S)
    run.wait_trained()
    assert run.progress()[0] == epoch
    for rank in (1, 0):
        for what, end in (("pod", kill), ("process", kill_learner)):
            run.wait_ready("learner", 2)
            epoch, _ = run.progress()
            with timed(f"from a killed {what} of learner rank {rank} until both train again"):
                end(run, f"learner-{rank}")
                run.wait_trained(epoch + 1)


def kill(run, pod):
    """Delete a pod without the time to leave."""
    run.cluster.kubectl("delete", "--namespace", NAMESPACE, "pod", pod, "--force", "--grace-period=0", "--wait=false")


def kill_learner(run, pod):
    """Kill the learner alone, so that its container is started again in the same pod."""
    run.cluster.kill_process(pod, "SEEDBED_LEARNER__BIND")


def evict_ranks(run, timed):
    """As a drained node does it: the second rank is asked for too early, and its budget forbids it."""
    run.wait_ready("learner", 2)
    epoch, _ = run.progress()
    with timed("from an evicted learner rank until both train again"):
        assert evict(run, "learner-1")
        assert not evict(run, "learner-0")
        run.wait_trained(epoch + 1)


def evict(run, pod):
    """Whether a pod's eviction was accepted."""
    about = {"name": pod, "namespace": NAMESPACE}
    said = run.cluster.kubectl(
        "create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "--filename=-", check=False,
        stdin=json.dumps({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": about}),
    )  # fmt: skip
    assert '"Success"' in said or "TooManyRequests" in said, said
    return '"Success"' in said


def replace_key(run, timed):
    """Inference refuses the old key without a restart, and restarted environments have the new one."""
    run.wait_ready("actor", 1)
    lives, inference = run.lives("actor"), run.lives("inference")
    run.replace_environments_key("second")
    with timed("from `kubectl apply` of another key for environments until the old one is refused"):
        run.apply()
        wait_until(lambda: events(run, "deployment/inference", "keys_revoked"), "inference revokes the key", WAIT_S)
    with timed("from `kubectl rollout restart` until an actor with the new key is ready and training goes on"):
        restart = ("rollout", "restart", f"--namespace={NAMESPACE}", "deployment/actor", "deployment/evaluator")
        run.cluster.kubectl(*restart)
        run.wait_ready("actor", 1, without=lives)
        run.wait_trained()
    assert run.lives("inference") == inference


def extend(run, timed):
    """`kubectl apply` replaces ranks that have finished, and one that was refused, by those that can train."""
    run.change("RUN__STEPS=1", *LONG, ranks=2)
    with timed("from `kubectl apply` of a limit that was reached until the run has finished"):
        run.apply()
        wait_until(lambda: run.state() == "finished", "the run ends", WAIT_S)
    epoch, _ = run.progress()
    run.change(*ENDLESS, "LEARNER__KEEP_CHECKPOINTS=many", ranks=2)
    run.apply()
    wait_until(lambda: "SEEDBED_LEARNER__KEEP_CHECKPOINTS" in run.logs("learner-1"), "a rank is refused", WAIT_S)
    run.change(*ENDLESS, ranks=2)
    with timed("from `kubectl apply` of a higher limit, after one with a wrong setting, until both ranks train again"):
        run.apply()
        run.wait_trained(epoch + 1)
    assert num_ranks(run) == 2
    assert run.state() == "running"
