"""The page in a real browser: alerts, comparison, live pictures, a restart of the monitor, a long run, a phone."""

import itertools
import json
import time
from contextlib import ExitStack

import numpy as np
import pytest

from seedbed.learner_svc.run.history import History
from seedbed.services.tools.monitor.health import STARTING_S
from seedbed.shared.figures.panels import PANELS
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.pictures import pack_picture
from seedbed.shared.runtime.metrics import Metrics, describe_picture
from tests.support.browser import BROWSER, browsing
from tests.support.monitor_process import running
from tests.support.run_folders import CONFIG, HEADER, log_launcher, row, write_run, write_status, write_tasks_run

for module in ("starlette", "uvicorn"):
    pytest.importorskip(module, reason="the extra `monitor` is not installed")
pytestmark = [pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"), pytest.mark.timeout(240)]

TEXT = "(document.body?.innerText ?? '')"
DRAWN = "performance.getEntriesByName('drawn')"  # when all curves were there, since the navigation began, ms
NUM_PLOTS = "document.querySelectorAll('#charts canvas').length"
CANVAS = "document.querySelector('.screen canvas')"
NO_SIDEWAYS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests; each opens its own page in it."""
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def live(tmp_path):
    """A run that trains, with a learner and an inference that answer."""
    folder = tmp_path / "runs"
    run = write_run(folder / "live", [row(n) for n in range(1, 40)])
    with ExitStack() as stack:
        for name, role, incarnation in (("learner", "learner", 0xA1), ("inference-0", "inference", 0xB2)):
            metrics = stack.enter_context(Metrics(role, name, incarnation))
            metrics.read_gauge("learner_state", "State.", lambda: 1)
            metrics.read_histogram("learner_policy_lag", "Lag.", (0, 1, 3), lambda: ((50, 30, 15, 5), 100.0))
            numbers = itertools.count(1)
            metrics.page("/picture", lambda numbers=numbers: picture(next(numbers)))
            metrics.serve("127.0.0.1:0")
            write_status(run, name, role, incarnation=incarnation, metrics=metrics.address)
        yield folder, run


def picture(number):
    """A new one each time: a bar that grows."""
    pixels = np.full((20, 30, 3), 255, np.uint8)
    pixels[:, : number % 30] = (200, 30, 30)
    return describe_picture(0xB2, number, pack_version(1, 12), 0.1), pack_picture(pixels)


def test_every_kind_of_alert_is_seen_with_what_to_do(live, browser):
    """No progress, lag over its bound, not finite, flapping, silent: as text, the errors first."""
    folder, run = live
    (run / "metrics.csv").write_text(
        (run / "metrics.csv").read_text() + "".join(f"{s},1,40,3900,3900,20,,1,99,0\n" for s in (60, 120, 180))
    )
    (run / "crash").mkdir()
    (run / "crash" / "step-12.safetensors").write_bytes(b"")
    now = time.time()
    log_launcher(run, [(now - 200, "service_started", {"name": "actor-0"})])
    log_launcher(
        run, [(now - age, "service_died", {"name": "actor-0", "exit": "exit 1"}) for age in (STARTING_S + 9, 66, 63)]
    )
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/")
        browser.wait(f"{TEXT}.includes('no step was acted or trained for')", "no progress")
        text = browser.evaluate("document.getElementById('alerts').innerText")
    for said in (
        "live: no step was acted or trained for", "1 update(s) had a loss or gradient that was not finite",
        "actor-0 died 3 times in 5 minutes", "policy lag reaches 99 updates, over its bound of 8",
        "ended, or not answering", "lower algorithm.learning_rate",
    ):  # fmt: skip
        assert said in text
    levels = browser.evaluate("[...document.querySelectorAll('.alert')].map((a) => a.className.split(' ')[1])")
    assert levels == sorted(levels)  # errors before warnings


def test_live_pictures_move_on_a_canvas(live, browser):
    """And say whose policy plays."""
    folder, _ = live
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/")
        browser.wait(f"{TEXT}.includes('policy of update 12 · now')", "a caption")
        red = (
            f"{CANVAS}.getContext('2d').getImageData(0, 0, 30, 20).data.filter((v, i) => i % 4 === 1 && v < 99).length"
        )
        first = browser.wait(red, "a picture")
        browser.wait(f"{red} !== {first}", "another picture")
        assert browser.evaluate(f"[{CANVAS}.width, {CANVAS}.height]") == [30, 20]


def test_a_resumed_run_shows_live_pictures_and_its_video_when_it_has_ended(live, browser):
    """One panel at a time, though the page stays open; the old video is there all along."""
    folder, run = live
    (run / "policy.mp4").write_bytes(b"")
    panels = "[...document.querySelectorAll('#screens figure')].map((f) => f.querySelector('video, canvas').tagName)"
    services = {file: file.read_text() for file in (run / "services").iterdir()}

    def end():
        write_run(run, [row(n) for n in range(1, 40)], finished=True)
        for file in services:
            file.unlink()

    end()
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=live")
        browser.wait(f"{panels}.join() === 'VIDEO'", "the video")
        for file, text in services.items():
            file.write_text(text)
        browser.wait(f"{panels}.join() === 'CANVAS' && {TEXT}.includes('policy of update 12')", "live pictures")
        end()
        browser.wait(f"{panels}.join() === 'VIDEO'", "the video again")


def test_the_page_goes_on_by_itself_when_the_monitor_was_restarted(live, browser):
    """It says so meanwhile; nobody has to reload it, and the choice of runs stays."""
    folder, run = live
    with running(folder) as (_, where):
        address = f"http://{where[0]}:{where[1]}/"
        browser.open(address)
        browser.wait(f"{TEXT}.includes('connected') && document.querySelectorAll('canvas').length > 3", "a page")
        browser.evaluate("window.isTheSamePage = true")
    browser.wait("document.getElementById('connection').textContent.includes('does not answer; trying again')")
    with (run / "metrics.csv").open("a") as file:
        file.writelines(row(n) for n in range(40, 60))
    with running(folder, f"monitor.port={where[1]}"):
        browser.wait("document.getElementById('connection').textContent === 'connected'", "it is back")
        browser.wait(f"{TEXT}.includes('29.5')", "rows that came meanwhile")
        assert browser.evaluate("window.isTheSamePage")


def test_an_update_leaves_alone_what_has_not_changed(live, browser):
    """The focus stays, a press that an update interrupts is a click, nothing is read out twice."""
    folder, run = live
    (run / "crash").mkdir()
    (run / "crash" / "step-12.safetensors").write_bytes(b"")
    said = {"name": "actor-0", "level": "info"}
    log_launcher(run, [(1e9, "service_started", said), (1e9 + 1, "service_died", said)])
    line, box, leave = "#logs .line", "#runs input[data-run=live]", "#legend button"
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=live")
        browser.wait(f"{TEXT}.includes('was not finite') && !!document.querySelector('{leave}')", "an alert")
        browser.evaluate("document.getElementById('logs').open = true")
        browser.wait(f"document.querySelectorAll('{line}').length === 2", "log lines")
        browser.evaluate(
            f"window.kept = [...document.querySelectorAll('{line}, {box}, {leave}, .alert')];"
            f"document.querySelector('{leave}').focus()"
        )
        with (run / "metrics.csv").open("a") as file:
            file.writelines(row(n) for n in range(40, 60))
        log_launcher(run, [(1e9 + 2, "service_started", said)])
        browser.wait(f"document.querySelectorAll('{line}').length === 3", "the new line")
        browser.wait("document.querySelector('#runs').innerText.includes('29.5')", "the new figure")
        assert browser.evaluate("window.kept.length") >= 5
        assert browser.evaluate("window.kept.every((element) => element.isConnected)")
        assert browser.evaluate(f"document.activeElement === document.querySelector('{leave}')")
        browser.evaluate(f"document.querySelector('{box}').scrollIntoView()")
        x, y = browser.evaluate(
            f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector('{box}').getBoundingClientRect())"
        )
        press = {"x": x, "y": y, "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type="mousePressed", **press)
        with (run / "metrics.csv").open("a") as file:
            file.writelines(row(n) for n in range(60, 80))
        browser.wait("document.querySelector('#runs').innerText.includes('39.5')", "a figure while the mouse is down")
        browser.call("Input.dispatchMouseEvent", type="mouseReleased", **press)
        browser.wait("document.querySelectorAll('#legend li').length === 0", "the run is no longer shown")


def test_several_runs_are_compared_in_one_chart(live, browser):
    """Each in its colour, with its values in every chart and its name once above; the address keeps the choice."""
    folder, _ = live
    write_run(folder / "other", [row(n) for n in range(1, 80)], finished=True)
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=live&run=other")
        browser.wait("document.querySelectorAll('#legend li').length === 2", "two runs in the legend")
        assert browser.evaluate("[...document.querySelectorAll('#legend .label')].map((l) => l.textContent)") == [
            "live", "other",
        ]  # fmt: skip
        shown = "[...document.querySelectorAll('#charts figure:first-child .entry')].map((e) => e.title)"
        browser.wait(f"JSON.stringify({shown}) === JSON.stringify(['live', 'other'])", "a value of each")
        browser.wait("!!document.querySelector('#charts figure:first-child canvas')", "a chart")


def test_a_run_of_several_tasks_has_a_chart_with_a_line_for_each(browser, tmp_path):
    """And its evaluations; other runs have none, and it goes when the run is no longer shown."""
    folder = tmp_path / "runs"
    write_tasks_run(folder / "games", {"pong": 21.0, "freeway": 34.0, "seaquest": 8.25})
    write_tasks_run(folder / "single", {"pong": 3.5})
    write_run(folder / "plain", [row(n) for n in range(1, 9)], finished=True)
    titles = "[...document.querySelectorAll('#charts h3')].filter((h) => h.textContent === 'Return by task').length"
    chart = "document.querySelector('#charts figure:nth-child(2)')"
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=games&run=single&run=plain")
        browser.wait(f"{titles} === 1 && !!{chart}.querySelector('canvas')", "a chart of the tasks")
        assert browser.evaluate(f"[...{chart}.querySelectorAll('.label')].map((l) => l.textContent)") == [
            "pong", "freeway", "seaquest",
        ]  # fmt: skip
        assert browser.evaluate(f"[...{chart}.querySelectorAll('.value')].map((v) => v.textContent)") == [
            "21", "21", "34", "34", "8.25", "8.25",
        ]  # fmt: skip
        assert "games" in browser.evaluate(f"{chart}.querySelector('figcaption').textContent")
        browser.evaluate("document.querySelector('#runs input[data-run=games]').click()")
        browser.wait(f"{titles} === 0", "no chart of tasks")
        browser.evaluate("document.querySelector('#runs input[data-run=games]').click()")
        browser.wait(f"{titles} === 1 && !!{chart}.querySelector('canvas')", "it is back")
        assert not [said for said in browser.logged if f":{where[1]}/" in said]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(live, browser, scheme, tmp_path):
    """At 360 pixels, with long names, alerts, a picture, and every chart there is."""
    folder, run = live
    write_whole_rows(run, range(1, 40))
    write_tasks_run(folder / "games", {"a-task-with-a-name-of-64-letters" * 2: 21.0, "pong": 21.0})
    write_run(folder / ("a-run-with-a-name-that-somebody-thought-was-helpful-" * 3), [row(n) for n in range(1, 9)])
    (run / "crash").mkdir()
    (run / "crash" / ("x" * 150 + ".safetensors")).write_bytes(b"")
    browser.size(360, 740, is_phone=True)
    browser.prefer(scheme)
    try:
        with running(folder) as (_, where):
            browser.open(f"http://{where[0]}:{where[1]}/#run=live&run=games")
            browser.wait(f"{TEXT}.includes('policy of update 12') && {NUM_PLOTS} === {num_panels() + 1}", "every chart")
            assert browser.evaluate(NO_SIDEWAYS)
    finally:
        browser.size(1200, 900)


def test_normalised_scores_have_a_chart_where_a_run_has_them(live, browser):
    """In per cent; without them there is no empty chart."""
    folder, _ = live
    history = History(write_run(folder / "game", [], finished=True), updates=0, tensorboard=False)
    generator = np.random.default_rng(1)
    for number in range(1, 4):
        history.append(whole_row(number, generator) | {"eval_normalised": 0.5})
    history.close()
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=live")
        browser.wait(f"{NUM_PLOTS} > 0", "curves")
        assert not browser.evaluate(f"{TEXT}.includes('Normalised score')")
        browser.open(f"http://{where[0]}:{where[1]}/?other#run=game")
        browser.wait(f"{TEXT}.includes('Normalised score') && {TEXT}.includes('50 %')", "the score")


def write_told_run(folder, name, *, seed, outlier):
    """An ended run with a statistic of its own and a log; one value lies far from the others."""
    run = write_run(folder / name, [], finished=True)
    (run / "config.toml").write_text(CONFIG.replace("seed = 3", f"seed = {seed}"))
    (run / "summary.json").write_text('{"finished": true, "eval_return_mean": 9.5, "episode_success_mean": 0.8}')
    rows = [row(n, lag_max=outlier if n == 9 else 2.0 + n % 3).strip() + f",{n / 50},\n" for n in range(1, 41)]
    (run / "metrics.csv").write_text(f"{HEADER},episode_success_mean,eval_success_mean\n" + "".join(rows))
    log_launcher(run, [(1e9, "service_started", {"name": "learner", "level": "info", "said": f"<b>{seed}</b>"})])
    return run


def test_runs_are_found_sorted_and_told_apart_by_their_settings(browser, tmp_path):
    """A word leaves those that have it; a head turns the order; the settings that differ stand below the name."""
    folder = tmp_path / "runs"
    for number, name in enumerate(("one", "two", "three")):
        write_told_run(folder, name, seed=number, outlier=2.0)
    (folder / "two" / "summary.json").write_text('{"finished": true, "eval_return_mean": 99}')
    failed = {"state": "failed", "at": time.time(), "service": "actor-0", "reason": "died", "last_words": "a\nb<i>"}
    (folder / "three" / "summary.json").unlink()
    (folder / "three" / "state.json").write_text(json.dumps(failed | {"epoch": 0}))
    rows = "[...document.querySelectorAll('#runs tbody b')].map((b) => b.textContent).join(' ')"
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=three&by=evaluated")
        browser.wait(f"{rows}.startsWith('two')", "sorted as the address says")
        text = browser.wait(f"{TEXT}.includes('run.seed = 1') && {TEXT}", "what sets a run apart")
        assert "actor-0 died: a" in text
        browser.wait("document.querySelector('#ended pre')?.textContent === 'a\\nb<i>'", "its last words")
        browser.evaluate("document.querySelector('[data-column=evaluated]').click()")
        browser.wait(f"{rows}.startsWith('one')", "the other way round")
        box = "document.getElementById('find')"
        browser.evaluate(f"{box}.value = 'FAILED'; {box}.dispatchEvent(new Event('input'))")
        browser.wait(f"{rows} === 'three'", "one is left")
        assert browser.evaluate("location.hash").endswith("by=-evaluated&find=FAILED")


def test_settings_logs_and_verdict_are_shown_where_they_are_opened(browser, tmp_path):
    """Of all runs shown; only what differs, until somebody wants all; lines are text and never markup."""
    folder = tmp_path / "runs"
    for seed, name in enumerate(("one", "two")):
        write_told_run(folder, name, seed=seed, outlier=2.0)
    keys = "[...document.querySelectorAll('#settings tbody th')].map((th) => th.textContent).join(' ')"
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=one&run=two")
        browser.wait(f"{DRAWN}.length === 1", "curves")
        browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        browser.wait(f"{keys} === 'run.seed'", "the setting that differs")
        browser.evaluate("document.getElementById('differences').click()")
        browser.wait(f"{keys}.includes('env.id')", "all settings")
        browser.wait("document.querySelector('#logs .line')?.textContent.includes('said=<b>0</b>')", "a line")
        browser.wait("document.querySelectorAll('#verdicts .map').length === 2", "a verdict on each")
        assert not [said for said in browser.logged if f":{where[1]}/" in said]


def test_a_statistic_of_the_environments_own_has_a_card_and_a_column(browser, tmp_path):
    """And one value far from the others is left out of its chart, until somebody wants it."""
    folder = tmp_path / "runs"
    write_told_run(folder, "one", seed=1, outlier=5000.0)
    left_out = (
        "[...document.querySelectorAll('#charts figure')]"
        ".find((card) => card.querySelector('h3').textContent === 'Policy lag').querySelector('.warn').textContent"
    )
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/#run=one&smoothing=0.6")
        browser.wait(f"{DRAWN}.length === 1", "curves")
        titles = browser.evaluate("[...document.querySelectorAll('#charts h3')].map((h) => h.textContent)")
        assert titles[:2] == ["Return", "success"]
        assert browser.evaluate("!!document.querySelector('[data-column=success]')")
        assert browser.evaluate(left_out) == "outliers: 1 above"
        browser.evaluate("document.getElementById('whole').click()")
        assert browser.evaluate(left_out) == ""
        scale = browser.evaluate(
            "import('/static/scale.js').then((s) => [s.fence([...Array(40).keys(), 900]), s.fence([1, 2, 900]),"
            " s.smooth([0, null, 4], 0.5), s.within([...Array(40).keys(), -99])[40]])"
        )
        assert scale == [[0, 39], [1, 900], [0, None, pytest.approx(8 / 3)], 0]
        assert browser.evaluate(
            "import('/static/format.js').then((f) => [7.186e-7, -1435, 0.5, 123456, 0].map((x) => f.figure(x)))"
        ) == ["7.19e-7", "-1,435", "0.5", "123K", "0"]


def test_a_chart_has_room_for_its_shaded_band(browser, tmp_path):
    """Not for few extremes far from the others, which its head counts; nor for a band that smoothing leaves out."""
    folder = tmp_path / "runs"
    write_run(folder / "one", [row(1)])
    chart = (
        "import('/static/chart.js').then(({ Chart }) => {"
        " const chart = new Chart({ title: 'chart', unit: '' });"
        " document.body.append(chart.figure);"
        " const x = [...Array(100).keys()];"
        " const high = x.map((n) => (n === 50 ? 900 : 10));"
        " const item = { run: 'one', name: '', style: 'line', color: '--run0', unit: '',"
        "                x, y: x.map((n) => 5 + (n % 3) / 10), low: x.map(() => 0), high };"
        " chart.update([item], { axis: 'seconds', smoothing: SMOOTHING, isWhole: false });"
        " return new Promise((resolve) => requestAnimationFrame(() => {"
        "   const { min, max } = chart.plot.scales.y;"
        "   resolve([min, max, chart.left.textContent]);"
        " }));"
        "})"
    )
    with running(folder) as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/")
        browser.wait(f"{TEXT}.includes('connected')", "the page")
        least, greatest, said = browser.evaluate(chart.replace("SMOOTHING", "0"))
        assert (least, said) == (0, "outliers: 1 above")
        assert 10 <= greatest < 12
        least, greatest, said = browser.evaluate(chart.replace("SMOOTHING", "0.5"))
        assert 4 < least < greatest < 6
        assert said == ""


def test_a_folder_without_runs_says_what_makes_one(browser, tmp_path):
    """And shows neither an empty table nor a broken page."""
    (tmp_path / "runs").mkdir()
    with running(tmp_path / "runs") as (_, where):
        browser.open(f"http://{where[0]}:{where[1]}/")
        browser.wait(f"{TEXT}.includes('seedbed train cartpole')", "what to do")
        assert not [said for said in browser.logged if f":{where[1]}/" in said]  # others are of pages before


def test_a_run_of_ten_million_steps_is_there_within_a_second(browser, tmp_path):
    """By the browser's own clock, from the navigation's start to the drawn curves, once the monitor has read it.

    As long as a learner writes rows for it: 10 M steps at 3000 a second, one row a second, all of its columns.
    """
    run = tmp_path / "runs" / "long"
    write_run(run, [])
    write_whole_rows(run, range(1, 3334))
    with running(tmp_path / "runs") as (_, where):
        address = f"http://{where[0]}:{where[1]}/"
        browser.open(address)
        browser.wait(f"{TEXT}.includes('10M') && {DRAWN}.length === 1", "curves")
        assert browser.evaluate(NUM_PLOTS) == num_panels()
        seconds = []
        for _ in range(5):  # the machine may be busy: the best tells what the page needs
            browser.call("Network.clearBrowserCache")
            browser.open(f"{address}?again={len(seconds)}")
            browser.wait(f"location.search.includes('again={len(seconds)}') && {DRAWN}.length === 1", "curves again")
            seconds.append(browser.evaluate(f"{DRAWN}[0].startTime") / 1e3)
    assert min(seconds) < 1.0, seconds


def write_whole_rows(run, seconds):
    """In place of the run's table one with all columns, as a learner that trains 3000 steps a second writes it."""
    history = History(run, updates=0, tensorboard=False)
    generator = np.random.default_rng(1)
    for number in seconds:
        history.append(whole_row(number, generator))
    history.close()


def num_panels():
    """How many charts a run has whose rows are `whole_row`s."""
    filled = {name for name, value in whole_row(60, np.random.default_rng(1)).items() if value is not None}
    return sum(not panel.is_optional or any(line.column.name in filled for line in panel.lines) for panel in PANELS)


def whole_row(number, generator):
    """A row as `Figures.row` makes them, after `number` seconds."""
    noise = generator.random
    return {
        "seconds": float(number), "epoch": 1, "updates": number * 9, "trained_steps": number * 3000,
        "env_steps": number * 3000 + 40, "episodes": number * 4, "return_mean": -21 + 42 * number / 3333 + noise(),
        "length_mean": 900 + 90 * noise(), "env_steps_per_s": 3000 + 100 * noise(),
        "trained_steps_per_s": 3000 + 100 * noise(), "updates_per_s": 9.0, "update_busy_share": 0.8 + noise() / 9,
        "batch_wait_ms": 9 * noise(), "dropped_steps": 0, "lost_epoch_steps": 0, "aborted_episodes": 0,
        "loss": noise(), "policy_loss": noise(), "value_loss": noise(), "entropy": noise(), "grad_norm": noise(),
        "learning_rate": 1e-3 * noise(), "kl": noise() / 99, "log_rho_mean_abs_lag0": 1e-6 * noise(),
        "explained_variance": noise(),
        "rho_clipped_share": noise(),
        "lag_mean": 2 + noise(), "lag_max": 5.0, "valid_share": 0.99, "dropped_share": 0.0, "update_ms": 90 + noise(),
        "inference_services": 1.0, "inference_batch_fill": 40 + noise(), "inference_lanes": 64.0,
        "inference_queue_wait_ms": noise(), "inference_forward_ms": 5 * noise(), "inference_env_busy_share": noise(),
        "eval_return_mean": -20 + number / 99 if number % 60 == 0 else None, "learner_loop_lag_ms": noise(),
    }  # fmt: skip
