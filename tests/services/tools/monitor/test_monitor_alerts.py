"""What the monitor thinks of a run: health of its services, how long it stood still, and what to look at."""

import os

import numpy as np
import pytest

from seedbed.services.tools.cli.board import ServiceFigures
from seedbed.services.tools.cli.run_state import RunStatus, State
from seedbed.services.tools.monitor.alerts import FIGURES, Level, Reading, judge_disk, judge_run
from seedbed.services.tools.monitor.curves import Curves
from seedbed.services.tools.monitor.folder import Death, Status, WatchedFolder
from seedbed.services.tools.monitor.health import Health, map_services
from seedbed.services.tools.monitor.pages import Page, PageState, read_page
from seedbed.services.tools.monitor.reading import stalled_s
from seedbed.services.tools.monitor.table import COLUMNS
from seedbed.shared.figures.columns import DROPPED_SHARE, LAG_MAX, LOG_RHO_LAG0
from seedbed.shared.protocol.messages import RunState
from seedbed.shared.runtime.metrics import Metrics
from tests.support.run_folders import log_launcher, row, write_run, write_status

NOW = 1_000_000.0


def reading(figures=None, **changes):
    quiet = {
        "name": "run", "is_live": True, "state": RunState.TRAINING, "stalled_s": 1.0, "row_every_s": 1.0,
        "max_policy_lag": 8.0, "crashes": (), "deaths": (), "failure": None, "services": (), "problems": (),
        "broken_lines": 0,
    }  # fmt: skip
    known = {LAG_MAX: 3.0, DROPPED_SHARE: 0.0, LOG_RHO_LAG0: 1e-6}
    return Reading(figures=known | (figures or {}), **(quiet | changes))


def failure(age_s):
    return RunStatus(
        state=State.FAILED, at=NOW - age_s, service="learner", reason="died 5 times", last_words="token=abc went wrong"
    )


def codes(figures=None, **changes):
    return [alert.code for alert in judge_run(reading(figures, **changes), NOW)]


def deaths(name, *ages_s):
    return tuple(Death(at=NOW - age_s, service=name, exit="exit 1") for age_s in ages_s)


def test_a_run_that_trains_raises_no_alert():
    """Nor does one that is not known well yet."""
    assert codes() == []
    assert codes(dict.fromkeys(FIGURES), state=None, stalled_s=None, max_policy_lag=None) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"stalled_s": 61.0}, ["no_progress"]),
        ({"stalled_s": 59.0}, []),
        ({"stalled_s": 200.0, "row_every_s": 100.0}, []),  # nobody could know yet
        ({"stalled_s": 500.0, "state": RunState.FINISHING}, []),  # it evaluates
        ({"stalled_s": 500.0, "is_live": False}, []),
        ({"figures": {LAG_MAX: 8.0}}, []),
        ({"figures": {LAG_MAX: 9.0}}, ["lag"]),
        ({"figures": {LAG_MAX: 9.0, DROPPED_SHARE: 0.2}}, ["lag"]),
        ({"figures": {DROPPED_SHARE: 0.009}}, []),
        ({"crashes": ("non-finite-step7.safetensors",), "is_live": False}, ["non_finite"]),
        ({"deaths": deaths("actor-0", 10, 100, 299)}, ["flapping"]),
        ({"deaths": deaths("actor-0", 10, 100, 301)}, []),
        ({"deaths": deaths("actor-0", 10, 20) + deaths("actor-1", 10, 20)}, []),
        ({"figures": {LOG_RHO_LAG0: 0.1}}, []),  # rounding of bf16, or a memory that older weights have made: less
        ({"figures": {LOG_RHO_LAG0: 0.16}}, ["disagreement"]),
        ({"figures": {LOG_RHO_LAG0: 0.16}, "is_live": False}, []),
        ({"failure": failure(age_s=60.0), "is_live": False}, ["failed"]),
        ({"failure": failure(age_s=90_000.0), "is_live": False}, []),  # somebody knows by now
        ({"problems": ("run.json: not a JSON object",)}, ["unreadable"]),
        ({"broken_lines": 2}, ["unreadable"]),
    ],
)
def test_what_is_wrong_is_told_when_it_is(changes, code):
    """Each at its bound, and not below."""
    assert codes(**changes) == code


def test_an_alert_names_what_and_what_to_do():
    """The service, how often, its end, and where its last words are."""
    (alert,) = judge_run(reading(deaths=deaths("actor-0", 1, 2, 3)), NOW)
    assert "actor-0 died 3 times" in alert.text
    assert "exit 1" in alert.text
    assert "logs/actor-0.stderr" in alert.remedy
    assert "docker-compose logs" in alert.remedy  # where there is no such file


def test_a_failed_run_is_told_with_its_cause_and_without_secrets():
    """What its service said last may be anything."""
    (alert,) = judge_run(reading(failure=failure(age_s=1.0), is_live=False), NOW)
    assert "learner died 5 times" in alert.text
    assert "abc" not in alert.text


def test_errors_come_before_warnings():
    """Whatever was found first."""
    found = judge_run(reading({LAG_MAX: 20.0}, stalled_s=100.0, broken_lines=1), NOW)
    assert [alert.level for alert in found] == [Level.ERROR, Level.WARNING, Level.WARNING]


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        (100 * 2**30, 200 * 2**30, None),
        (3 * 2**30, 1000 * 2**30, None),  # a small share of a large disk is enough
        (2**30, 1000 * 2**30, Level.WARNING),
        (2**30, 4 * 2**30, None),
        (2**27, 4 * 2**30, Level.ERROR),
        (2**27, 2**28, Level.ERROR),
    ],
)
def test_a_disk_that_is_nearly_full_is_told(free, total, level):
    """By what is left, and by its share."""
    assert [alert.level for alert in judge_disk(free, total)] == ([level] if level else [])


def table_of(trained):
    """One row a second."""
    rows = np.full((len(trained), len(COLUMNS)), np.nan)
    rows[:, COLUMNS.index("seconds")] = np.arange(len(trained))
    rows[:, COLUMNS.index("trained_steps")] = rows[:, COLUMNS.index("env_steps")] = trained
    curves = Curves(COLUMNS)
    curves.add(rows)
    return curves


@pytest.mark.parametrize(
    ("trained", "stalled"),
    [([0, 10, 20], 5.0), ([0, 10, 20, 20, 20], 7.0), ([0], 5.0), ([7, 7, 7], 7.0), ([0, 10, 20, 20, 30], 5.0)],
)
def test_a_run_stands_still_since_its_last_step(tmp_path, trained, stalled):
    """By its rows, and by how long none was written."""
    facts = WatchedFolder(write_run(tmp_path / "run", [row(1)])).read()
    assert stalled_s(table_of(trained), facts, facts.changed_at + 5.0) == pytest.approx(stalled)


def test_a_run_without_rows_stands_still_since_its_start(tmp_path):
    """Waiting for an actor for ever is no progress either."""
    run = write_run(tmp_path / "run", [])
    log_launcher(run, [(NOW - 90, "service_started", {"name": "learner"})])
    assert stalled_s(table_of([]), WatchedFolder(run).read(), NOW) == pytest.approx(90)


@pytest.mark.parametrize(
    ("answer", "is_over", "health"),
    [
        (PageState.UP, False, Health.UP),
        (PageState.UP, True, Health.UP),
        (PageState.GONE, False, Health.GONE),
        (PageState.GONE, True, Health.ENDED),
        (PageState.SILENT, False, Health.SILENT),
        (PageState.ELSEWHERE, False, Health.UNKNOWN),
    ],
)
def test_the_health_of_a_service_follows_from_the_visit(tmp_path, answer, is_over, health):
    """A port where somebody else answers is a service that is gone."""
    run = write_run(tmp_path / "run", [])
    write_status(run, "learner", "learner", incarnation=7, metrics="127.0.0.1:1")
    (found,) = map_services(WatchedFolder(run).read(), {7: Page(answer=answer)}, {}, is_over=is_over, now=NOW)
    assert (found.name, found.role, found.health, found.incarnation) == ("learner", "learner", health, "7")


def test_a_service_between_two_lives_is_starting_and_later_gone(tmp_path):
    """The launcher removes its status file; how often it died is remembered."""
    run = write_run(tmp_path / "run", [])
    started = (NOW - 200, "service_started", {"name": "eval-0"})
    died = [(NOW - age, "service_died", {"name": "eval-0", "exit": "killed by SIGKILL"}) for age in (90, 50)]
    log_launcher(run, [started, *died])
    (found,) = map_services(WatchedFolder(run).read(), {}, {}, is_over=False, now=NOW)
    assert (found.role, found.health, found.restarts) == ("actor", Health.STARTING, 2)
    assert found.last_death.exit == "killed by SIGKILL"
    (later,) = map_services(WatchedFolder(run).read(), {}, {}, is_over=False, now=NOW + 20)
    assert later.health == Health.GONE


def test_the_map_follows_the_data_and_has_each_ones_figures(tmp_path):
    """Environments, inference, learner; what was dropped comes with its reason, the most first."""
    run = write_run(tmp_path / "run", [])
    with Metrics("inference", "inference-0", 0xAB) as metrics:
        metrics.read_counter("lost_groups", "Groups.", lambda: 2)
        metrics.read_counter("unrolls_resent", "Unrolls.", lambda: 5)
        metrics.read_counter("discarded_lanes", "Lanes.", lambda: 0)
        metrics.counter("refused_peers", "Peers.", ("reason",)).labels("unknown key").inc(3)
        metrics.serve("127.0.0.1:0")
        statuses = [("learner", "learner", 1), ("inference-0", "inference", 0xAB), ("actor-0", "actor", 2)]
        for name, role, incarnation in statuses:
            write_status(run, name, role, incarnation=incarnation, metrics=metrics.address)
        facts = WatchedFolder(run).read()
        pages = {status.incarnation: read_page(status) for status in facts.statuses}
    figures = {"inference-0": ServiceFigures(cpu_percent=50.0, loop_lag_ms=1.0, memory_bytes=2.0**20)}
    found = map_services(facts, pages, figures, is_over=False, now=NOW)
    assert [(item.name, item.health) for item in found] == [
        ("actor-0", Health.GONE), ("inference-0", Health.UP), ("learner", Health.GONE),
    ]  # fmt: skip
    assert (found[1].cpu_percent, found[1].memory_bytes, found[0].cpu_percent) == (50.0, 2.0**20, None)
    assert [(drop.count, drop.reason) for drop in found[1].drops] == [
        (5, "unrolls sent again"), (3, "peers refused: unknown key"), (2, "groups whose lease ended"),
    ]  # fmt: skip


def test_actors_that_only_inference_knows_are_on_the_map(tmp_path):
    """Summed over its replicas; one without lanes was lost, and one with a page of its own is there once."""
    run = write_run(tmp_path / "run", [])
    pages = {}
    for incarnation, lanes in ((1, {"far": 8.0, "lost": 0.0, "near": 4.0}), (2, {"far": 16.0})):
        with Metrics("inference", f"inference-{incarnation}", incarnation) as metrics:
            metrics.read_gauges("environment_lanes", "Lanes.", "actor", lambda lanes=lanes: lanes)
            metrics.read_counters("environment_restarts", "Lives.", "actor", lambda: {"far": 1})
            metrics.serve("127.0.0.1:0")
            write_status(run, f"inference-{incarnation}", "inference", incarnation=incarnation, metrics=metrics.address)
            status = WatchedFolder(run).read().statuses[-1]
            pages[incarnation] = read_page(status)
    write_status(run, "near", "actor", incarnation=3, metrics="127.0.0.1:1")
    found = map_services(WatchedFolder(run).read(), pages, {}, is_over=False, now=NOW)
    actors = {item.name: (item.health, item.lanes, item.restarts) for item in found if item.role == "actor"}
    assert actors == {
        "far": (Health.UP, 24, 2), "lost": (Health.GONE, 0, 0), "near": (Health.UNKNOWN, None, 0),
    }  # fmt: skip


@pytest.mark.parametrize("address", ["", "10.1.2.3:80", "example.org:80", "127.0.0.1", "127.0.0.1:x", "@127.0.0.1:80"])
def test_only_pages_on_this_machine_are_visited(address):
    """A run folder from elsewhere sends the monitor nowhere."""
    status = Status(name="x", role="actor", incarnation=1, metrics=address, at=0.0)
    assert read_page(status).answer is PageState.ELSEWHERE


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b"[1]"), ("summary.json", b"{"), ("summary.json", b"[" * 100_000), ("run.json", b"\xff"),
        ("config.toml", b"= 3"), ("config.toml", b"\xff\xfe"), ("services/actor-0.json", b"null"),
        ("services/actor-0.json", b'{"incarnation": "x"}'), ("run.json", b" " * (1 << 21)),
        ("summary.json", b'{"seconds": 1%s}' % (b"0" * 400)), ("config.toml", b"[run]\nseed = 1%s" % (b"0" * 400)),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_and_the_rest_is_read(tmp_path, name, content):
    """Once it is whole again, nothing is wrong any more."""
    run = write_run(tmp_path / "run", [row(1)])
    write_status(run, "learner", "learner", incarnation=7, metrics="127.0.0.1:1")
    whole = (run / name).read_bytes() if (run / name).exists() else None
    folder = WatchedFolder(run)
    (run / name).write_bytes(content)
    facts = folder.read()
    assert any(problem.startswith(name.rpartition("/")[2]) for problem in facts.problems)
    assert [status.name for status in facts.statuses] == ["learner"]
    if whole is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(whole)
    assert folder.read().problems == ()


def test_folders_in_the_place_of_files_are_told(tmp_path):
    """And files in the place of folders."""
    run = write_run(tmp_path / "run", [])
    (run / "summary.json").mkdir()
    os.mkfifo(run / "run.json")  # opening it would wait for a writer
    (run / "services").write_text("")
    (run / "logs").mkdir()
    (run / "logs" / "launcher.jsonl").mkdir()
    problems = " ".join(WatchedFolder(run).read().problems)
    assert all(name in problems for name in ("summary.json", "run.json", "services/", "launcher.jsonl"))


def test_a_run_folder_that_is_deleted_while_it_is_read_is_empty(tmp_path):
    """Not an error."""
    facts = WatchedFolder(tmp_path / "absent").read()
    assert (facts.problems, facts.statuses, facts.changed_at) == ((), (), None)


def test_the_launchers_log_may_hold_anything(tmp_path):
    """Lines that are no events tell nothing."""
    run = write_run(tmp_path / "run", [])
    log_launcher(run, [(NOW, "service_died", {"name": "learner", "exit": "exit 1"})])
    with (run / "logs" / "launcher.jsonl").open("ab") as file:
        file.write(b'"service_died"\n{"event": "service_died"}\n{"event": "service_died", "name": 1, "timestamp": 5}\n')
        file.write(b'{"event": "service_died", "name": "x", "timestamp": "yesterday"}\n\xff"service_\n')
    facts = WatchedFolder(run).read()
    assert facts.num_deaths == {"learner": 1}
