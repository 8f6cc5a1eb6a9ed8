"""A monitor beside a run that trains: what it serves to Prometheus and Grafana is what their files ask for."""

import http.client
import json
import re
import signal
from pathlib import Path

import pytest

from docs.generator import reference
from tests.support.deployment import DEADLINE_S, living, wait_until
from tests.support.monitor_process import running

for module in ("starlette", "uvicorn"):
    pytest.importorskip(module, reason="the extra `monitor` is not installed")

COMPOSE = Path(__file__).parents[2] / "compose"
FIGURES = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()
TABLES = [reference.TABLES[f"{role}_metrics"]() for role in ("actor", "inference", "learner", "service", "monitor")]
BOARD = COMPOSE / "grafana" / "dashboards" / "seedbed.json"
ALERTS = COMPOSE / "prometheus-alerts.yml"
METRIC = re.compile(r"\b(?:seedbed|process|python)_[a-z0-9_]+\b")
LABELS = {"run", "service", "name", "incarnation", "alert", "level", "le", "job", "statistic", "column"}


def get(where, path):
    """The body of an answer."""
    connection = http.client.HTTPConnection(*where, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.fixture
def watched(deployment, tmp_path):
    """A folder of runs with the deployment's in it, as the launcher would have laid it out."""
    run = tmp_path / "runs" / "live"
    (run / "services").mkdir(parents=True)
    for name in ("config.toml", "metrics.csv"):
        (run / name).symlink_to(deployment.run_dir / name)
    for service in deployment.services:
        (run / "services" / f"{service.name}.json").symlink_to(service.status_file)
    return tmp_path / "runs"


def asked_for(expressions):
    """Names of the metrics in PromQL expressions."""
    found = {name for expression in expressions for name in METRIC.findall(expression)}
    assert len(found) > 3
    return found


def board_expressions():
    """Every query of the dashboard, variables too."""
    board = json.loads(BOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*queries, *(variable["query"]["query"] for variable in board["templating"]["list"])]


def alert_expressions():
    """Every expression of the alert rules, without their texts."""
    lines = ALERTS.read_text().splitlines()
    return [line for line in lines if re.match(r"\s+(expr:|sum by|/ sum by)", line)]


def test_every_metric_that_the_dashboard_and_the_rules_name_is_served(watched):
    """With real services behind it; and it carries every label that they choose by. Each is explained."""
    expressions = [*board_expressions(), *alert_expressions()]
    with running(watched) as (_, where):
        page = wait_until(lambda: p if "seedbed_acted_steps_total{" in (p := get(where, "/metrics")) else "", "a page")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    served = {f"{name}{end}" for name, kind in kinds.items() for end in ("", "_bucket", "_sum", "_count")
              if not end or kind == "histogram"}  # fmt: skip
    assert asked_for(expressions) - served == set()
    explained = set(METRIC.findall("".join([FIGURES, *TABLES])))
    assert {name for name in kinds if name.startswith("seedbed_") and not name.endswith("_created")} <= explained
    chosen = {label for text in expressions for group in re.findall(r"(?:by|on) \(([^)]*)\)", text)
              for label in group.replace(" ", "").split(",")}  # fmt: skip
    shown = {label for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]
             for label in re.findall(r"{{(\w+)}}", target["legendFormat"])}  # fmt: skip
    assert chosen | shown <= LABELS


def test_each_service_is_told_apart_by_its_labels(watched, deployment):
    """Run, role, name and incarnation, in the monitor's words and not the service's."""
    with running(watched) as (_, where):
        page = wait_until(lambda: p if "seedbed_acted_steps_total{" in (p := get(where, "/metrics")) else "", "a page")
    labels = f'incarnation="{deployment.inference.incarnation:x}",name="inference",run="live",service="inference"'
    assert re.search(rf"^seedbed_acted_steps_total{{{labels}}} [1-9]", page, re.MULTILINE)
    assert 'seedbed_monitor_up{name="learner",run="live",service="learner"} 1.0' in page


def test_services_out_of_reach_are_seen_over_the_link(deployment, tmp_path):
    """As in containers: the run folder names none of them, the monitor asks where they answer their peers."""
    run = tmp_path / "runs" / "live"
    run.mkdir(parents=True)
    for name in ("config.toml", "run.json", "metrics.csv"):
        (run / name).symlink_to(deployment.run_dir / name)
    words = [f"monitor.inference={deployment.inference_address}", f"monitor.learner={deployment.learner_address}"]
    with running(tmp_path / "runs", *words) as (_, where):

        def health():  # there may be others, which inference misses since another test
            return {item["name"]: item["health"] for item in json.loads(get(where, "/api/runs/live"))["services"]}

        actor = deployment.actors[0]
        there = {"inference": "up", "learner": "up", actor.name: "up"}
        wait_until(lambda: health().items() >= there.items(), "all are seen")
        page = wait_until(lambda: p if "seedbed_acted_steps_total{" in (p := get(where, "/metrics")) else "", "a page")
        assert f'incarnation="{deployment.learner.incarnation:x}",name="learner",run="live",service="learner"' in page
        assert json.loads(get(where, "/api/runs/live"))["lag"]["is_recent"]
        deployment.inference.kill()
        wait_until(lambda: health()["inference"] == "not answering", "its silence shows")
        deployment.inference.start().wait_ready()
        # It is not among the run's services until the learner has told it whose it is.
        wait_until(lambda: health().get("inference") == "up", "its next life shows")
        wait_until(lambda: health().get(actor.name) == "up", "the actor has found it")
        actor.kill()
        # Inference judges nobody while its own loop is held up, which on a busy machine may be for long.
        wait_until(lambda: health().get(actor.name) == "gone", "inference misses an actor", 3 * DEADLINE_S)
        gone = f'name="{actor.name}",run="live",service="actor"}} 0.0'
        wait_until(lambda: gone in get(where, "/metrics"), "so do those who scrape")
        actor.start()
        wait_until(lambda: health().get(actor.name) == "up", "it is back")
        (seen,) = [item for item in json.loads(get(where, "/api/runs/live"))["services"] if item["name"] == actor.name]
        assert seen["restarts"] >= 1
        assert seen["lanes"] > 0


def test_a_killed_monitor_is_missed_by_nobody(deployment, tmp_path):
    """While it asks both ends for reports and pictures; they go on, and the next one is answered."""
    (tmp_path / "live").mkdir()
    for name in ("config.toml", "run.json", "metrics.csv"):
        (tmp_path / "live" / name).symlink_to(deployment.run_dir / name)
    words = [f"monitor.inference={deployment.inference_address}", f"monitor.learner={deployment.learner_address}"]
    lives = [service.incarnation for service in deployment.services]
    for exit_code in (-signal.SIGKILL, 0):
        with running(tmp_path, *words, exit_code=exit_code) as (_, where):

            def seen(where=where):
                services = json.loads(get(where, "/api/runs/live"))["services"]
                return {item["health"] for item in services if item["role"] != "actor"}

            wait_until(lambda: seen() == {"up"}, "both are seen")
            if exit_code:
                (monitor,) = living(tmp_path)
                monitor.kill()
        deployment.wait_trained(200)
    assert [service.incarnation for service in deployment.services] == lives


def test_the_histogram_of_policy_lag_counts_every_transition_that_was_trained(watched, deployment):
    """None more than there were, in the learner's own buckets."""
    before = deployment.trained_steps()
    with running(watched) as (_, where):
        lag = wait_until(lambda: json.loads(get(where, "/api/runs/live"))["lag"], "a histogram")
    after = deployment.trained_steps()
    assert lag["lows"][:3] == [0, 1, 2]
    assert before * 0.5 <= sum(lag["counts"]) <= after + deployment.learner.metric("learner_dropped_steps_total")


def test_the_datasource_of_the_dashboard_is_the_one_that_is_provisioned():
    """By its uid; and Prometheus finds the rules where compose is to mount them."""
    provisioned = (COMPOSE / "grafana" / "provisioning" / "datasources" / "seedbed.yml").read_text()
    uid = re.search(r"uid: (\S+)", provisioned).group(1)
    assert {panel["datasource"]["uid"] for panel in json.loads(BOARD.read_text())["panels"]} == {uid}
    assert f"/etc/prometheus/{ALERTS.name}" in (COMPOSE / "prometheus.yml").read_text()
