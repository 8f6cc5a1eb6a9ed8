"""The monitor as a process: its page, its answers, who it turns away, and what broken folders do to it: nothing."""

import http.client
import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from seedbed.services.tools.cli.app import main as seedbed
from seedbed.services.tools.monitor.config import TOKEN_VARIABLE
from seedbed.services.tools.monitor.pages import Visitor
from seedbed.services.tools.monitor.watch import MAX_RUNS, RunWatch
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.metrics import Metrics
from tests.support.clock import Clock
from tests.support.monitor_process import running
from tests.support.run_folders import CONFIG, HEADER, log_launcher, row, write_run, write_status

for module in ("starlette", "uvicorn"):
    pytest.importorskip(module, reason="the extra `monitor` is not installed")

from seedbed.services.tools.monitor.listening import MAX_CONNECTIONS  # noqa: E402  (needs both)
from seedbed.services.tools.monitor.service import find_runs  # noqa: E402
from seedbed.services.tools.monitor.service import main as monitor  # noqa: E402

TOKEN = "1234567890123456e7"


def get(where, path, method="GET", **headers):
    """Status, headers and body of one answer."""
    connection = http.client.HTTPConnection(*where, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def get_json(where, path, **headers):
    status, _, body = get(where, path, **headers)
    assert status == 200, body
    return json.loads(body)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of every kind: finished, live, broken, empty, oddly named; and a secret beside them."""
    folder = tmp_path_factory.mktemp("monitored") / "runs"
    write_run(folder / "good", [row(n, evaluated="50" if n == 9 else "") for n in range(1, 11)], finished=True)
    write_run(folder / "a b&<i>é#?", [row(1)], finished=True)
    broken = write_run(folder / "broken", [row(1), "1,2\n", row(2)], finished=False)
    (broken / "summary.json").write_text("{")
    (broken / "config.toml").write_bytes(b"\xff = [")
    (folder / "no-table").mkdir()
    (folder / "no-table" / "config.toml").write_text("")
    (folder / "no-table" / "metrics.csv").mkdir()
    (folder / "not-a-run").mkdir()
    (folder.parent / "secret").mkdir()
    write_run(folder.parent / "secret" / "run", [row(1)])
    write_told_run(folder)
    live = write_run(folder / "live", [row(n, lag_max=99.0) for n in range(1, 5)])
    with ExitStack() as stack:
        for name, role, incarnation in (("learner", "learner", 0xA1), ("inference-0", "inference", 0xB2)):
            metrics = stack.enter_context(Metrics(role, name, incarnation))
            if role == "learner":
                metrics.read_gauge("learner_state", "State.", lambda: 1)
                metrics.read_counter("learner_trained_steps", "Steps.", lambda: 1234)
            metrics.serve("127.0.0.1:0")
            write_status(live, name, role, incarnation=incarnation, metrics=metrics.address)
        write_status(live, "actor-0", "actor", incarnation=0xC3, metrics=metrics.address)  # the port is another's now
        yield folder


@pytest.fixture(scope="module")
def local(runs):
    """A monitor on loopback, without a token."""
    with running(runs) as (_, where):
        yield where


def test_the_page_and_its_files_are_there_with_their_types(local):
    """Nothing comes from anywhere else, so it works offline."""
    status, headers, body = get(local, "/")
    assert (status, headers.get_content_type()) == (200, "text/html")
    page = Path(__file__).parents[4] / "services" / "tools" / "monitor" / "page"
    for file in page.rglob("*.*"):
        status, headers, content = get(local, f"/static/{file.relative_to(page)}")
        assert (status, content) == (200, file.read_bytes())
        if file.suffix == ".js":
            assert headers.get_content_type() in ("text/javascript", "application/javascript")
    assert b"http://" not in body
    assert b"https://" not in body


@pytest.mark.parametrize("path", ["/", "/api/runs", "/metrics", "/static/app.js", "/absent", "/api/runs/absent"])
def test_every_answer_is_strict_with_browsers(local, path):
    """No foreign scripts, frames, types or origins."""
    _, headers, _ = get(local, path, Origin="http://evil.example")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Access-Control-Allow-Origin"] is None
    assert headers["Server"] is None


def test_all_runs_are_listed_as_they_are(local):
    """Broken ones too, with what is wrong."""
    view = get_json(local, "/api/runs")
    found = {run["name"]: run for run in view["runs"]}
    assert set(found) == {"told", "good", "a b&<i>é#?", "broken", "no-table", "live"}
    assert found["good"]["state"] == "finished"
    assert found["good"]["figures"]["eval_return_mean"] == 9.5
    assert (found["live"]["state"], found["live"]["services_up"]) == ("training", 2)
    assert found["live"]["figures"]["trained_steps"] == 1234
    told = " | ".join(f"{alert['run']} {alert['code']} {alert['text']}" for alert in view["alerts"])
    assert "broken unreadable cannot read config.toml" in told
    assert "broken unreadable cannot read summary.json" in told
    assert "live lag policy lag reaches 99" in told
    assert "live silent actor-0" in told


def test_nothing_in_one_run_takes_down_the_page(tmp_path):
    """Characters and names that no encoding has room for, numbers and tables beyond all measure: told, or left out."""
    folder = tmp_path / "runs"
    write_run(folder / "good", [row(1)], finished=True)
    odd = write_run(folder / "odd", [row(1)])
    (odd / "config.toml").write_text(f"[run]\n{'.'.join('a' * 3000)} = 1\n")
    (odd / "run.json").write_text('{"created": "\\ud800"}')
    (odd / "summary.json").write_text(json.dumps({"policy_lag_histogram": {"0": 1, "9" * 30: 1}}))
    failed = {"state": "failed", "at": time.time(), "service": "learner", "reason": "no \udcff", "epoch": 0}
    (odd / "state.json").write_text(json.dumps(failed))
    write_status(odd, os.fsdecode(b"\xff"), "learner", incarnation=0xA1, metrics="127.0.0.1:1")
    (odd / "crash").mkdir()
    for name in (b"crash/\xff.safetensors", b"policy-\xff.mp4"):
        (odd / os.fsdecode(name)).write_bytes(b"")
    log_launcher(odd, [(1e9, "said", {"name": "learner", "level": "info", "file": "\udcff", "exception": 7})])
    (odd / "logs" / os.fsdecode(b"\xff.stderr")).write_text("words")
    far = write_run(folder / "far", [row(1)])
    (far / "state.json").write_text('{"state": "failed", "epoch": 0, "at": 1%s}' % ("0" * 400))
    with running(folder) as (_, where):
        view = get_json(where, "/api/runs")
        assert {run["name"] for run in view["runs"]} == {"good", "odd", "far"}
        assert "learner no ?" in [run["cause"] for run in view["runs"] if run["name"] == "odd"]
        assert "cannot read config.toml" in json.dumps(view["alerts"])
        for name in ("good", "odd", "far"):
            for rest in ("", "/curves", "/settings", "/verdict", "/logs"):
                assert get(where, f"/api/runs/{name}{rest}")[0] == 200
        assert get(where, "/metrics")[0] == 200


def test_curves_come_as_numbers_and_marks(local):
    """Axes, lines, and evaluations where there was one."""
    view = get_json(local, "/api/runs/good/curves")
    assert view["columns"]["trained_steps"] == [[100.0 * n for n in range(1, 11)]]
    assert view["columns"]["eval_return_mean"] == [[None] * 8 + [50.0, None]]
    assert (view["rows"], view["rows_per_point"], view["share_read"]) == (10, 1, 1.0)


def test_a_broken_table_is_drawn_as_far_as_it_goes(local):
    """And one that cannot be read is told."""
    assert get_json(local, "/api/runs/broken/curves")["columns"]["trained_steps"] == [[100.0, 200.0]]
    assert "metrics.csv" in get_json(local, "/api/runs/no-table/curves")["problem"]


def test_the_services_of_a_run_are_told(local):
    """Up, and one whose port is somebody else's now."""
    view = get_json(local, "/api/runs/live")
    assert {item["name"]: item["health"] for item in view["services"]} == {
        "actor-0": "gone", "inference-0": "up", "learner": "up",
    }  # fmt: skip


def test_names_with_anything_in_them_work(local):
    """As long as they are quoted."""
    assert get_json(local, "/api/runs/a%20b%26%3Ci%3E%C3%A9%23%3F/curves")["rows"] == 1


@pytest.mark.parametrize(
    "name",
    ["..", "../secret/run", "..%2Fsecret%2Frun", "%2e%2e/secret/run", "good/../../secret/run", ".", "not-a-run", "%00",
     "good%00", "/etc", "%2Fetc", "..\\secret", "%ff", "x" * 3000],
)  # fmt: skip
@pytest.mark.parametrize("rest", ["", "/curves", "/logs", "/videos/policy.mp4"])
def test_a_name_leads_nowhere_but_to_a_run(local, name, rest):
    """Names are looked up, never joined to a path."""
    status, _, body = get(local, f"/api/runs/{name}{rest}")
    assert status == 404
    assert b"columns" not in body


@pytest.mark.parametrize(
    "path", ["/static/../service.py", "/static/%2e%2e/service.py", "/static//etc/passwd", "/static/"]
)
def test_only_the_pages_own_files_are_served(local, path):
    """Nothing around them."""
    assert get(local, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_there_is_nothing_to_change(local, method):
    """It only reads."""
    assert get(local, "/api/runs", method)[0] == 405


def write_told_run(runs):
    """A run that says much of itself: how it failed, its settings, statistics, logs, a video."""
    run = write_run(runs / "told", [])
    cells = [row(n, evaluated="1").strip() + f",{n / 20},{1000 * n},0.9,0.5\n" for n in range(1, 11)]
    (run / "metrics.csv").write_text(f"{HEADER},episode_success_mean,trained_steps_per_s,update_busy_share,kl\n")
    with (run / "metrics.csv").open("a") as file:
        file.writelines([*cells, row(11).strip() + ",0.55,0,0,0.5\n"])
    (run / "config.toml").write_text(CONFIG.replace("seed = 3", "seed = 4") + '\n[algorithm]\nsecret = "hunter2"\n')
    (run / "services").mkdir()
    (run / "services" / "experiment.toml").write_text("[actor]\nlanes = 12\n[run]\nseed = 9\n")
    failed = {
        "state": "failed",
        "at": time.time(),
        "service": "learner",
        "reason": "died",
        "last_words": "token=hunter2\nx",
    }
    (run / "state.json").write_text(json.dumps(failed | {"epoch": 0}))
    log_launcher(run, [(1e9, "service_started", {"name": "learner", "level": "info", "password": "hunter2"})])
    (run / "policy.mp4").write_bytes(bytes(range(200)))
    (run / "policy-linked.mp4").symlink_to(runs.parent / "secret" / "run" / "metrics.csv")


def test_a_failed_run_says_why_and_an_ended_one_how_fast_it_was(local):
    """Its cause in the list, its last words beside its services; a rate is of when it trained, not of its last row."""
    (listed,) = [run for run in get_json(local, "/api/runs")["runs"] if run["name"] == "told"]
    assert (listed["state"], listed["is_live"]) == ("failed", False)
    assert listed["cause"].startswith("learner died: token=")
    assert get_json(local, "/api/runs/told")["ended"]["last_words"].endswith("\nx")
    get_json(local, "/api/runs/told/curves")  # so that its table is read
    (listed,) = [run for run in get_json(local, "/api/runs")["runs"] if run["name"] == "told"]
    assert listed["figures"]["trained_steps_per_s"] == 10_000.0
    assert listed["statistics"] == {"success": [0.55, None]}
    assert ["run.seed", "4"] in listed["differs"]


def test_settings_logs_and_verdict_of_a_run_are_there_without_secrets(local):
    """What was told to it, what it said, what limits it."""
    pages = [get_json(local, f"/api/runs/told{rest}") for rest in ("/settings", "/logs?level=debug", "/verdict", "")]
    for setting in (["env.id", "Toy-v0"], ["run.seed", "4"], ["actor.lanes", "12"]):
        assert setting in pages[0]["settings"]
    assert pages[1]["lines"][0]["text"].startswith("service_started")
    assert (pages[2]["bottleneck"], pages[2]["busy"]["learner"]) == ("learner", 0.9)
    for page in (*pages, get_json(local, "/api/runs")):
        assert "hunter2" not in json.dumps(page)
    assert "problem" in get_json(local, "/api/runs/no-table/verdict")


def test_a_video_of_an_ended_run_is_sent_in_the_ranges_that_a_player_asks_for(local):
    """By a name from the list; a link that leads out of the folder is no video, nor is any other file."""
    assert get_json(local, "/api/runs/told")["videos"] == ["policy.mp4"]
    status, headers, body = get(
        local, "/api/runs/told/videos/policy.mp4", Range="bytes=100-119", Accept_Encoding="gzip"
    )
    assert (status, body, headers.get_content_type()) == (206, bytes(range(100, 120)), "video/mp4")
    for name in ("policy-linked.mp4", "config.toml", "..%2Fconfig.toml", "%2e%2e", ""):
        assert get(local, f"/api/runs/told/videos/{name}")[0] == 404


def test_connections_that_ask_for_nothing_shut_nobody_out(local):
    """More than the page takes at a time, some of them with half a request."""
    with ExitStack() as stack:
        for number in range(2 * MAX_CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(local, timeout=20))
            if number % 2:
                idle.sendall(b"GET / HTTP/1.1\r\n")
        assert get(local, "/")[0] == 200


def test_what_is_known_already_is_not_sent_again(local):
    """By its ETag; curves of a run that stands still do not change."""
    _, headers, body = get(local, "/api/runs/good/curves")
    status, _, again = get(local, "/api/runs/good/curves", If_None_Match=headers["ETag"])
    assert (status, again) == (304, b"")
    assert len(body) > 0


def test_a_foreign_host_name_is_turned_away(local):
    """DNS rebinding: the page of a stranger, pointed at loopback."""
    assert get(local, "/api/runs", Host="evil.example")[0] == 421
    assert get(local, "/api/runs", Host=f"localhost:{local[1]}")[0] == 200


def test_prometheus_finds_all_services_in_one_place(local):
    """Labelled; those that are not there are not."""
    status, headers, body = get(local, "/metrics")
    text = body.decode()
    assert (status, headers.get_content_type()) == (200, "text/plain")
    labels = 'incarnation="a1",name="learner",run="live",service="learner"'
    assert f"seedbed_learner_trained_steps_total{{{labels}}} 1234.0" in text
    assert 'seedbed_monitor_up{name="actor-0",run="live",service="actor"} 0.0' in text
    assert 'seedbed_monitor_alerts{alert="lag",level="warning",run="live"} 1.0' in text
    assert 'incarnation="c3"' not in text
    assert 'service="monitor"' in text


def test_beyond_loopback_a_token_is_made_told_once_and_asked_for(runs):
    """Page, data and metrics; the cookie works without it."""
    with running(runs, "monitor.host=0.0.0.0") as (said, where):
        token = said.strip().rpartition("?token=")[2]
        assert len(token) >= 32
        for path in ("/", "/api/runs", "/metrics", "/static/app.js", "/absent"):
            assert get(where, path)[0] == 401
        assert get(where, "/?token=wrong")[0] == 401
        status, headers, _ = get(where, f"/?token={token}")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert get(where, "/", Cookie=cookie)[0] == 200
        assert get(where, "/metrics", Authorization=f"Bearer {token}", Host="anything.example")[0] == 200


def test_a_given_token_is_asked_for_and_never_printed(runs):
    """On loopback too, if one was given; as it stands, even if it looks like a number."""
    with running(runs, token=TOKEN) as (said, where):
        assert TOKEN not in said
        assert TOKEN_VARIABLE in said
        assert get(where, "/")[0] == 401
        assert get(where, "/", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_token_file_is_made_once_and_used_again(runs, tmp_path):
    """For its owner alone; what it holds is what is asked for, and is never printed."""
    file = tmp_path / "shared" / "token"
    tokens = []
    for _ in range(2):
        with running(runs, f"monitor.token_file={file}") as (said, where):
            tokens.append(file.read_text())
            assert str(file) in said
            assert tokens[-1] not in said
            assert get(where, "/metrics")[0] == 401
            assert get(where, "/metrics", Authorization=f"Bearer {tokens[-1]}")[0] == 200
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) >= 32
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("content", "mode", "said"), [("short", 0o600, "at least 16"), ("x" * 40, 0o604, "chmod")])
def test_a_token_file_that_protects_nothing_is_refused(content, mode, said, tmp_path, capsys, monkeypatch):
    """Too short, or open to everybody; the token itself is not shown."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    assert monitor([f"monitor.runs={tmp_path}", f"monitor.token_file={file}"]) == 78
    text = capsys.readouterr().err
    assert said in text
    assert content not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["monitor.runs=absent"], "monitor.runs: absent is no folder"),
        (["monitor.host=192.0.2.1"], "cannot bind 192.0.2.1:8080"),
        (["monitor.prot=1"], "did you mean 'port'"),
        (["monitor.port=99999"], "[monitor] port"),
    ],
)
def test_a_users_mistake_stops_it_with_a_clear_word(words, message, capsys, tmp_path, monkeypatch):
    """Before anything is served."""
    monkeypatch.chdir(tmp_path)
    assert monitor(words) == 78
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("token", ["hunter2", "[1, 2, 3, 4]", "true", "pässword-pässword"])
def test_a_token_that_could_be_guessed_or_not_sent_is_refused(token, monkeypatch, capsys, tmp_path):
    """And not shown."""
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    assert monitor([f"monitor.runs={tmp_path}"]) == 78
    text = capsys.readouterr().err
    assert TOKEN_VARIABLE in text
    assert token not in text


def test_a_run_in_the_place_of_the_runs_folder_is_told(runs, capsys):
    """With the folder that was meant."""
    assert seedbed(["monitor", "--runs", str(runs / "good"), "--port", "0"]) == 78
    assert str(runs) in capsys.readouterr().err


@pytest.fixture
def locked(tmp_path):
    """A folder that the present user may not read; no root, who may, for as long as the test takes."""
    folder, user = tmp_path / "runs", os.geteuid()
    folder.mkdir(0o000)
    if user == 0:
        os.seteuid(1000)
    yield folder
    os.seteuid(user)


def test_a_runs_folder_that_may_not_be_read_is_told_with_what_to_do(locked):
    """As one of a clone that only its owner can read."""
    with pytest.raises(ConfigError, match=r"may not read .*chmod -R a\+rX"):
        find_runs(locked)


def test_runs_are_listed_by_their_start_the_newest_first(tmp_path):
    """Whatever is written into them later; a file and a dangling link among them are passed over."""
    for number, name in enumerate(("old", "new", "middle")):
        run = write_run(tmp_path / "runs" / name, [row(1)])
        os.utime(run / "config.toml", (0, 1000 * (5, 9, 7)[number]))
        (run / "note").write_text("")
    (tmp_path / "runs" / "file").write_text("")
    (tmp_path / "runs" / "link").symlink_to("absent")
    with Visitor() as visitor:
        view = RunWatch(tmp_path / "runs", visitor).overview()
    assert [item["name"] for item in view["runs"]] == ["new", "middle", "old"]
    assert view["problem"] == ""


def test_a_run_that_trains_is_shown_however_many_began_after_it(tmp_path):
    """The list is still in the order in which they began; one that ended long ago is left out."""
    folder = tmp_path / "runs"
    for name in ("ended", "live"):
        os.utime(write_run(folder / name, [row(1)]) / "config.toml", (0, 1000))
    os.utime(folder / "ended" / "metrics.csv", (0, 2000))
    for number in range(MAX_RUNS - 1):
        (folder / str(number)).mkdir()
        (folder / str(number) / "config.toml").write_text("")
        os.utime(folder / str(number) / "config.toml", (0, 3000 + number))
    with Visitor() as visitor:
        view = RunWatch(folder, visitor).overview()
    names = [run["name"] for run in view["runs"]]
    assert names == [*(str(number) for number in reversed(range(MAX_RUNS - 1))), "live"]
    assert view["num_left_out"] == 1


def test_runs_of_seeds_are_runs_like_others(tmp_path):
    """Named with their folder, as `seedbed runs` names them, and served by that name."""
    folder = tmp_path / "runs"
    for number in (1, 2):
        write_run(folder / "toy" / f"seed-{number}", [row(1)], finished=True)
    (folder / "toy" / "seed-2" / "policy.mp4").write_bytes(b"video")
    (folder / "toy" / "seeds.json").write_text("{}")
    with running(folder) as (_, where):
        assert {run["name"] for run in get_json(where, "/api/runs")["runs"]} == {"toy/seed-1", "toy/seed-2"}
        for name in ("toy/seed-2", "toy%2Fseed-2"):
            assert get_json(where, f"/api/runs/{name}")["name"] == "toy/seed-2"
            assert get_json(where, f"/api/runs/{name}/curves")["rows"] == 1
            assert get(where, f"/api/runs/{name}/videos/policy.mp4")[2] == b"video"
        for name in ("toy", "toy/seed-3", "toy/seed-1/curves/curves", "toy/../toy/seed-1", "toy//seed-1"):
            assert get(where, f"/api/runs/{name}")[0] == 404


class TickingClock:
    """Two seconds pass with each look."""

    def __init__(self):
        self.now = 1e6

    def __call__(self):
        self.now += 2.0
        return self.now


def test_runs_come_grow_and_go_while_somebody_watches(tmp_path):
    """No error in between, and nothing of a deleted run stays."""
    with Visitor() as visitor:
        watch = RunWatch(tmp_path / "runs", visitor, clock=TickingClock())
        assert watch.overview()["runs"] == []
        run = write_run(tmp_path / "runs" / "one", [row(1)])
        assert [item["name"] for item in watch.overview()["runs"]] == ["one"]
        assert watch.curves("one")["rows"] == 1
        with (run / "metrics.csv").open("a") as file:
            file.write(row(2))
        assert watch.curves("one")["rows"] == 2
        (run / "metrics.csv").unlink()
        assert watch.curves("one")["rows"] == 0
        (run / "config.toml").unlink()
        run.rmdir()
        assert watch.curves("one") is None
        assert watch.overview()["runs"] == []


def test_a_run_that_is_being_written_is_live_until_it_says_that_it_finished(tmp_path):
    """Even where its services cannot be seen from here."""
    run = write_run(tmp_path / "runs" / "one", [row(1)])
    changed = (run / "metrics.csv").stat().st_mtime
    with Visitor() as visitor:
        for age_s, finished, state in ((5, None, "training"), (60, None, "interrupted"), (5, True, "finished")):
            write_run(run, [row(1)], finished=finished)
            os.utime(run / "metrics.csv", (changed, changed))
            watch = RunWatch(tmp_path / "runs", visitor, wall_clock=lambda age_s=age_s: changed + age_s)
            assert watch.overview()["runs"][0]["state"] == state


def test_figures_of_a_run_survive_the_death_of_one_of_its_services_and_a_wall_clock_that_is_set_back(tmp_path):
    """Rates need two looks at the same service; another one's end does not begin them anew."""
    clock, wall_clock = Clock(0.0), Clock(1e9)
    run = write_run(tmp_path / "runs" / "one", [row(1)])
    steps = iter(range(0, 10_000, 100))
    with Visitor() as visitor, Metrics("learner", "learner", 0xA1) as learner:
        actor = Metrics("actor", "actor-0", 0xC3)
        with actor:
            learner.read_counter("learner_trained_steps", "Steps.", lambda: next(steps))
            for metrics, name, incarnation in ((learner, "learner", 0xA1), (actor, "actor-0", 0xC3)):
                metrics.serve("127.0.0.1:0")
                write_status(run, name, name.partition("-")[0], incarnation=incarnation, metrics=metrics.address)
            watch = RunWatch(tmp_path / "runs", visitor, clock=clock, wall_clock=wall_clock)
            watch.overview()
            clock.now, wall_clock.now = 2.0, 1e9 - 3600.0
            assert watch.overview()["runs"][0]["services_up"] == 2
        clock.now = 4.0
        seen = watch.overview()["runs"][0]
        assert seen["services_up"] == 1
        assert seen["figures"]["trained_steps_per_s"] == pytest.approx(50.0)


def test_in_a_container_the_address_that_is_published_decides_who_may_look(runs):
    """Its port is bound openly there. Published on loopback: no token, but this machine's names; else a token."""
    with running(runs, "monitor.host=0.0.0.0", "monitor.published=127.0.0.1") as (said, where):
        assert "token" not in said
        assert get(where, "/")[0] == 200
        assert get(where, "/", Host="evil.example")[0] == 421
    published = ("monitor.published=192.0.2.1", "monitor.published_port=9000")
    with running(runs, "monitor.host=0.0.0.0", *published) as (said, where):
        assert "http://192.0.2.1:9000/?token=" in said
        assert get(where, "/")[0] == 401
