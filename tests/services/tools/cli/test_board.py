"""Figures of a run from samples, and what the terminal makes of them."""

import contextlib
import io
import math
import os

import pytest
from rich.console import Console

from seedbed.services.tools.cli.board import Board
from seedbed.services.tools.cli.scrape import labelled
from seedbed.services.tools.cli.supervisor import Supervisor
from seedbed.services.tools.cli.table import (
    TerminalView,
    count,
    duration,
    number,
    progress,
    render_line,
    render_run,
    render_summary,
    score,
    sparkline,
)
from seedbed.shared.figures import inference, learner
from seedbed.shared.protocol.messages import RunState
from seedbed.shared.runtime.config import RunConfig

ROLES = {"learner": "learner", "inference-0": "inference", "inference-1": "inference", "actor-0": "actor"}


def learner_samples(at: float, *, rate: float = 1000.0, state: int = 1, life: float = 1.0) -> dict[str, float]:
    """A learner's page."""
    return {
        "process_start_time_seconds": life,
        "process_cpu_seconds_total": 0.5 * at,
        "process_resident_memory_bytes": 256 * 2**20,
        "seedbed_loop_lag_seconds": 0.0004,
        "seedbed_learner_state": state,
        "seedbed_learner_seconds": at,
        "seedbed_learner_trained_steps_total": rate * at,
        "seedbed_learner_env_steps_total": 1.1 * rate * at,
        "seedbed_learner_updates_total": 10 * at,
        "seedbed_learner_episodes_total": 3 * at,
        "seedbed_learner_return_mean": 20.0 * at,
        "seedbed_learner_eval_return_mean": math.nan,
        "seedbed_learner_evaluations_total": 0.0,
    }


def inference_samples(at: float, *, rate: float = 600.0, life: float = 1.0) -> dict[str, float]:
    """An inference's page."""
    return {
        "process_start_time_seconds": life,
        "seedbed_acted_steps_total": rate * at,
        "seedbed_batches_total": 10 * at,
        "seedbed_batch_lanes_total": 640 * at,
        "seedbed_queue_wait_seconds_total": 0.02 * at,
        "seedbed_queue_waits_total": 20 * at,
        "seedbed_compute_seconds_total": 0.03 * at,
        "seedbed_lanes": 128,
    }


@pytest.fixture
def board() -> Board:
    """Ten seconds of a run."""
    board = Board(ROLES)
    for at in range(1, 11):
        board.observe("learner", learner_samples(at), at)
        board.observe("inference-0", inference_samples(at), at)
        board.observe("inference-1", inference_samples(at, rate=400.0), at)
    return board


def render(renderable, width: int = 100) -> str:
    """As plain text."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_rates_are_over_the_last_seconds_and_all_replicas(board):
    """Counters become steps per second; replicas are added up."""
    assert board.rate(learner.TRAINED_STEPS) == pytest.approx(1000.0)
    assert board.rate(inference.ACTED_STEPS) == pytest.approx(1000.0)
    assert board.state is RunState.TRAINING


def test_means_are_those_of_the_window(board):
    """Batch fill, wait and forward time per batch, in milliseconds as their columns are."""
    assert board.mean(inference.BATCH_FILL) == pytest.approx(64.0)
    assert board.mean(inference.QUEUE_WAIT) == pytest.approx(1.0)
    assert board.mean(inference.FORWARD) == pytest.approx(3.0)
    assert board.now(inference.LANES) == 256


def test_a_restarted_process_does_not_make_a_negative_rate(board):
    """Its counters begin at 0 again."""
    board.observe("learner", learner_samples(0.1, life=2.0), 11.0)
    assert board.rate(learner.TRAINED_STEPS) is None
    board.observe("learner", learner_samples(1.1, life=2.0), 12.0)
    assert board.rate(learner.TRAINED_STEPS) == pytest.approx(1000.0)


def test_a_process_that_is_gone_is_not_counted(board):
    """Its last rate must not stay in the picture."""
    board.forget("inference-0")
    assert board.rate(inference.ACTED_STEPS) == pytest.approx(400.0)
    assert board.now(inference.LANES) == 128
    assert board.service("inference-0").memory_bytes is None


def test_every_step_is_progress(board):
    """Acted or trained: either counts; a page without news does not."""
    before = board.progress
    board.observe("inference-1", inference_samples(10, rate=400.0), 11)
    board.observe("learner", learner_samples(10), 11)
    assert board.progress == before
    board.observe("inference-1", inference_samples(11, rate=400.0), 12)
    assert board.progress == before + 1
    board.observe("learner", learner_samples(11), 12)
    assert board.progress == before + 2


def test_what_a_learner_restored_is_no_progress(board):
    """One that dies again and again right after its start must be given up."""
    before = board.progress
    for life in range(2, 8):
        board.forget("learner")
        board.observe("learner", learner_samples(10, life=life), 10.0 + life)
    assert board.progress == before
    board.observe("learner", learner_samples(10.5, life=7), 18.0)
    assert board.progress == before + 1


def test_a_new_inference_that_acts_is_progress(board):
    """Its counter begins at 0, so whatever it shows first was acted."""
    before = board.progress
    board.forget("inference-0")
    board.observe("inference-0", inference_samples(0.0, life=2.0), 11)
    assert board.progress == before
    board.observe("inference-0", inference_samples(1.0, life=2.0), 12)
    assert board.progress == before + 1


def test_the_last_figures_of_a_learner_stay_while_it_restarts(board):
    """A picture full of dashes would frighten; its rates are gone all the same."""
    board.forget("learner")
    assert board.total(learner.TRAINED_STEPS) == 10_000
    assert board.last(learner.RETURN_MEAN) == 200.0
    assert board.rate(learner.TRAINED_STEPS) is None
    assert board.service("learner").memory_bytes is None


def test_nothing_is_known_before_the_first_page():
    """No figure is made up."""
    board = Board(ROLES)
    assert board.state is RunState.STARTING
    assert board.rate(learner.TRAINED_STEPS) is None
    assert board.last(learner.RETURN_MEAN) is None
    assert board.mean(inference.QUEUE_WAIT) is None
    assert board.now(inference.LANES) is None


def test_an_evaluation_shows_once_there_was_one(board):
    """Not a number before; what an earlier learner found does not count."""
    assert board.evaluated_return is None
    for evaluations, shown in ((0, None), (1, 123.0)):
        evaluated = {"seedbed_learner_evaluations_total": evaluations, "seedbed_learner_eval_return_mean": 123.0}
        board.observe("learner", learner_samples(11) | evaluated, 11)
        assert board.evaluated_return == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (987, "987"), (45_600, "45.6 K"), (1_234_567, "1.23 M"), (999_999, "1000 K")],
)
def test_counts_are_short(value, text):
    """Three or four figures and a unit."""
    assert count(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (math.nan, "–"), (1.25, "1.2"), (12345.6, "12,345.6")])
def test_numbers_are_readable(value, text):
    """Unknown is a dash, never nan."""
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.954, "0.95"), (-20.25, "-20.2"), (500.0, "500.0")])
def test_returns_keep_the_decimals_that_matter(value, text):
    """0.95 of a task that pays one is not 1."""
    assert score(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (5.9, "5 s"), (125, "2:05"), (3723, "1:02:03")])
def test_durations_are_readable(seconds, text):
    """Seconds, minutes, hours."""
    assert duration(seconds) == text


def test_a_sparkline_rises_with_its_values():
    """Lowest block to highest, newest on the right, never wider than asked."""
    line = sparkline([float(value) for value in range(100)], width=20)
    assert len(line) == 20
    assert line[0] == "▁"
    assert line[-1] == "█"
    assert list(line) == sorted(line)
    assert sparkline([1.0]) == ""
    assert set(sparkline([2.0, 2.0, 2.0])) == {"▁"}


def test_eta_is_by_whichever_limit_comes_first(board):
    """Steps at the present rate, or seconds."""
    assert progress(board, RunConfig(steps=20_000)) == (0.5, pytest.approx(10.0))
    assert progress(board, RunConfig(seconds=40)) == (0.25, 30.0)
    share, left_s = progress(board, RunConfig(steps=20_000, seconds=11))
    assert share == pytest.approx(10 / 11)
    assert left_s == pytest.approx(1.0)
    assert progress(board, RunConfig()) == (0.0, None)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_picture_shows_figures_services_and_events(board, width):
    """At any usual width."""
    supervisor = Supervisor(list(ROLES), final="learner")
    for name in ROLES:
        supervisor.started(name, 0.0)
    supervisor.exited("actor-0", -9, 10.0)
    text = render(render_run("seedbed · small", supervisor, board, RunConfig(steps=20_000), ["a thing"], 10.05), width)
    for expected in (
        "training",
        "1000 steps/s",
        "ETA 10 s",
        "200.0",
        "64 of 256",
        "killed by SIGKILL",
        "a thing",
        "20.0 K",
    ):
        assert expected in text
    assert all(len(line) <= width for line in text.splitlines())


def test_the_final_evaluation_shows_its_progress(board):
    """By the replica that has played most, in the picture and in the line."""
    board.observe("learner", learner_samples(11, state=int(RunState.FINISHING)), 11)
    for name, played in (("inference-0", 43), ("inference-1", 7)):
        board.observe(name, inference_samples(11) | {"seedbed_eval_played": played, "seedbed_eval_asked": 100}, 11)
    picture = render_run("small", Supervisor(list(ROLES), final="learner"), board, RunConfig(seconds=10), [], 12.0)
    for text in (render(picture), render_line(board, RunConfig(seconds=10))):
        assert "episode 43 of 100" in text
        assert "ETA" not in text


def test_groups_that_a_deterministic_run_waits_for_are_counted(board):
    """In the picture and in the line, as long as they keep the others waiting."""
    supervisor, run = Supervisor(list(ROLES), final="learner"), RunConfig(seconds=10)
    for now, awaited in ((11, 0), (12, 2)):
        board.observe("inference-0", inference_samples(now) | {"seedbed_awaited_groups": awaited}, now)
        for text in (render(render_run("small", supervisor, board, run, [], now)), render_line(board, run)):
            assert ("waits for 2 groups" in text) == (awaited == 2)


def test_without_a_terminal_there_are_lines(board):
    """One now and then, and one for each event."""
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    supervisor = Supervisor(list(ROLES), final="learner")
    with TerminalView(console, "small", board, RunConfig(seconds=60)) as view:
        view.refresh(supervisor, 100.0)
        view.refresh(supervisor, 101.0)
        view.happened("actor-0 died: [/tmp/sim.cc:5] no [game]")  # as an error of a library may read
        view.refresh(supervisor, 106.0)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "trained 10.0 K (1000/s)" in lines[0]
    assert lines[1].endswith("actor-0 died: [/tmp/sim.cc:5] no [game]")


def test_lines_that_nobody_can_take_end_nothing(board):
    """`tee` dies of the same Ctrl-C as a run's start; a log's disk may be full."""
    reader, writer = os.pipe()
    os.close(reader)
    supervisor = Supervisor(list(ROLES), final="learner")
    for file in (os.fdopen(writer, "w", buffering=1), open("/dev/full", "w", buffering=1)):  # noqa: SIM115  closing fails
        with TerminalView(Console(file=file), "small", board, RunConfig(seconds=60)) as view:
            view.refresh(supervisor, 100.0)
            view.happened("stopping in order")
        with contextlib.suppress(OSError):
            file.close()


def test_in_a_terminal_the_picture_is_drawn_in_place(board):
    """And taken away at the end, for the summary to stand alone."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    supervisor = Supervisor(list(ROLES), final="learner")
    with TerminalView(console, "small", board, RunConfig(seconds=60)) as view:
        view.refresh(supervisor, 100.0)
    assert "small" in console.file.getvalue()


def test_a_small_terminal_shows_the_run_and_whoever_is_not_up(board):
    """What does not fit would be cut off: services that are well share a line."""
    names = [f"actor-{number}" for number in range(20)]
    board = Board({"learner": "learner", "inference-0": "inference"} | dict.fromkeys(names, "actor"))
    supervisor = Supervisor(["learner", "inference-0", *names], final="learner")
    for name in supervisor.services:
        supervisor.started(name, 0.0)
        board.observe(name, {"process_resident_memory_bytes": 1.0}, 1.0)
    supervisor.exited("actor-7", -9, 1.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with TerminalView(console, "small", board, RunConfig(seconds=60)) as view:
        view.refresh(supervisor, 2.0)
    text = console.file.getvalue()
    assert "21 services up" in text
    assert "actor-7" in text
    assert "actor-8" not in text


def test_the_summary_copes_with_missing_figures(tmp_path):
    """A run that was stopped early has no evaluation."""
    text = render(
        render_summary({"experiment": "small", "trained_steps": 1000}, tmp_path, {"actor-0": 2, "learner": 0})
    )
    assert "1000 steps" in text
    assert "actor-0 2" in text
    assert "learner" not in text.replace("learner_svc", "")


@pytest.mark.parametrize(("version", "is_said"), [("1:1038", True), ("1:1728", False)])
def test_an_evaluation_that_is_not_of_the_end_says_so(tmp_path, version, is_said):
    """The policy has learned on since."""
    summary = {"eval_episodes": 20, "eval_return_mean": -1435.0, "eval_version": version, "updates": 1728}
    assert ("update 1,038 of 1,728" in render(render_summary(summary, tmp_path, {}))) == is_said


def task_samples(at: float) -> dict[str, float]:
    """A learner's page in a run with two tasks, of which one has no episode yet."""
    samples = learner_samples(at) | {"seedbed_learner_task_trained_lanes_total": 40 * at}  # of both
    for task, weight, lanes, steps, mean in (("pong", 0.25, 10, 100.0, -20.0), ("golf", 0.75, 30, 300.0, math.nan)):
        figures = {
            "weight": weight, "trained_lanes_total": lanes * at, "env_steps_total": steps * at,
            "episodes_total": at, "return_mean": mean, "eval_return_mean": math.nan,
        }  # fmt: skip
        samples |= {labelled(f"seedbed_learner_task_{name}", task): value for name, value in figures.items()}
    return samples


def test_tasks_have_figures_of_their_own(board):
    """Share beside weight, speed, and a return once there is one; none in a run with one environment."""
    assert board.tasks == ()
    for at in (11, 12):
        board.observe("learner", task_samples(at), at)
    assert board.tasks == ("pong", "golf")
    assert [board.last(learner.TASK_WEIGHT, task) for task in board.tasks] == [0.25, 0.75]
    assert [board.share_of(task) for task in board.tasks] == [0.25, 0.75]
    assert [board.last(learner.TASK_RETURN_MEAN, task) for task in board.tasks] == [-20.0, None]
    assert board.last(learner.TASK_EVAL_RETURN_MEAN, "golf") is None
    pong, golf = (board.rate(learner.TASK_ENV_STEPS, task) for task in board.tasks)
    assert golf == pytest.approx(3 * (pong or 0.0))
    text = render(render_run("run", Supervisor(list(ROLES), final="learner"), board, RunConfig(), [], 12.0))
    assert "pong" in text
    assert "75.0%" in text


def test_a_summary_names_each_task(tmp_path):
    """Its evaluation, its place between the scores, its share."""
    task = {"eval_return_mean": 5.0, "eval_normalised": 0.72, "episode_return_mean": 3.0, "share": 0.31}
    summary = {
        "eval_episodes": 20, "eval_return_mean": 5.0, "tasks": {"pong": task, "golf": {}},
        "eval_normalised_mean": 1.72, "eval_normalised_median": 0.82, "eval_normalised_capped_mean": 0.62,
    }  # fmt: skip
    text = render(render_summary(summary, tmp_path, {}))
    for part in ("20 episodes of 2 tasks", "5.00 evaluated", "human-normalised 72 %", "31.0% of the batches", "golf"):
        assert part in text
    assert "172 % mean, 82 % median, 62 % mean with each task at most 100 %" in text


def test_a_summary_has_the_normalised_score_beside_the_return(tmp_path):
    """Where the environment has a scale."""
    summary = {"eval_episodes": 20, "eval_return_mean": 18.0, "eval_normalised": 1.096}
    assert "18.0 over 20 episodes, human-normalised 110 %" in render(render_summary(summary, tmp_path, {}))
    del summary["eval_normalised"]
    assert "normalised" not in render(render_summary(summary, tmp_path, {}))
