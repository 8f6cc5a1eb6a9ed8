"""A run in the terminal: figures, services and events as rich renderables; plain lines where there is no terminal."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seedbed.services.tools.cli.board import Board
from seedbed.services.tools.cli.supervisor import Phase, Supervisor
from seedbed.shared.figures import inference, learner
from seedbed.shared.protocol.messages import RunState
from seedbed.shared.protocol.statistics import evaluation_column, own_statistics, training_column
from seedbed.shared.runtime.config import RunConfig

REFRESH_S = 0.5
LINE_EVERY_S = 5.0  # without a terminal
MAX_EVENTS = 4
MAX_TASKS = 12  # lines of them; metrics.csv has all
MAX_STATISTICS = 6  # of the environment's own, likewise
MAX_TASK_STATISTICS = 2  # columns beside the others
SIGNS = {">=": "≥", "<=": "≤"}
LABEL_STYLE = "grey62"
STATE_WORDS = {
    RunState.STARTING: ("starting", "yellow"),
    RunState.TRAINING: ("training", "green"),
    RunState.FINISHING: ("evaluating", "cyan"),
    RunState.FINISHED: ("finished", "bold green"),
}


def count(value: float | None) -> str:
    """A number of things in three or four figures: 987, 45.6 K, 1.23 M; – if unknown."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "K")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "K" else limit)
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {unit}"
    return f"{value:.0f}"


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A measured value with its unit; – if unknown."""
    return "–" if value is None or value != value else f"{value:,.{digits}f}{unit}"


def score(value: float | None) -> str:
    """A return: as many decimals as its size needs; – if unknown."""
    return number(value, 1 if value is not None and abs(value) >= 10 else 2)


def percent(share: float | None) -> str:
    """A share or a normalised score in per cent; – if unknown."""
    return number(None if share is None else 100 * share, 0, " %")


def duration(seconds: float | None) -> str:
    """12 s, 3:05, 1:02:03; – if unknown."""
    if seconds is None:
        return "–"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def sparkline(values: Sequence[float], width: int = 30) -> str:
    """A little curve out of block characters, the newest value on the right."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    picked = [values[min(len(values) - 1, int(index * step))] for index in range(min(width, len(values)))]
    picked[-1] = values[-1]
    low, high = min(picked), max(picked)
    blocks = "▁▂▃▄▅▆▇█"
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((value - low) * scale)] for value in picked)


def progress(board: Board, run: RunConfig) -> tuple[float, float | None]:
    """(share of the run that is done, seconds that are left) by whichever limit comes first; (0, None) without one."""
    limits: list[tuple[float, float | None]] = []
    if run.steps:
        trained, rate = board.total(learner.TRAINED_STEPS), board.rate(learner.TRAINED_STEPS)
        limits.append((trained / run.steps, max(0.0, run.steps - trained) / rate if rate else None))
    if run.seconds:
        done = board.last(learner.SECONDS) or 0.0
        limits.append((done / run.seconds, max(0.0, run.seconds - done)))
    if not limits:
        return 0.0, None
    share = min(1.0, max(done for done, _ in limits))
    known = [left for _, left in limits if left is not None]
    return share, min(known) if known else None


def goals(run: RunConfig) -> str:
    """What ends the run, in words."""
    parts = [f"{count(run.steps)} steps"] if run.steps else []
    parts += [duration(run.seconds)] if run.seconds else []
    parts += [f"{goal.statistic} {SIGNS[goal.sign]} {goal.bound:g}" for goal in run.goals.values()]
    return " or ".join(parts) or "no limit: Ctrl-C ends it"


def render_figures(board: Board) -> RenderableType:
    """Two columns of label and figure."""
    grid = Table.grid(padding=(0, 2), expand=True)
    for justify, ratio in (("left", 3), ("right", 3), ("left", 3), ("right", 3)):
        grid.add_column(justify=justify, ratio=ratio, no_wrap=True)  # type: ignore[arg-type]
    left = [
        ("trained", f"{count(board.rate(learner.TRAINED_STEPS))} steps/s"),
        ("acted", f"{count(board.rate(inference.ACTED_STEPS))} steps/s"),
        ("trained in all", f"{count(board.total(learner.TRAINED_STEPS))} steps"),
        ("updates", count(board.total(learner.UPDATES))),
        ("policy lag", f"{number(board.last(learner.LAG_MEAN))} mean, {number(board.last(learner.LAG_MAX), 0)} max"),
    ]
    fill = f"{number(board.mean(inference.BATCH_FILL), 0)} of {number(board.now(inference.LANES), 0)} lanes"
    wait_ms, forward_ms = board.mean(inference.QUEUE_WAIT), board.mean(inference.FORWARD)
    right: list[tuple[str, RenderableType]] = [
        ("return, last 100", Text(score(board.last(learner.RETURN_MEAN)), style="bold")),
        ("return, evaluated", Text(score(board.evaluated_return), style="bold")),
        ("episodes", count(board.total(learner.EPISODES))),
        ("batch fill", fill),
        ("wait + forward", f"{number(wait_ms, 2)} + {number(forward_ms, 2)} ms"),
    ]
    for name in board.statistics[:MAX_STATISTICS]:
        left.append((f"{name}, last 100", score(board.last(learner.STATISTIC, name))))
        right.append((f"{name}, evaluated", score(board.last(learner.EVAL_STATISTIC, name))))
    for (left_label, left_value), (right_label, right_value) in zip(left, right, strict=True):
        grid.add_row(Text(left_label, LABEL_STYLE), left_value, Text(right_label, LABEL_STYLE), right_value)
    curve = sparkline(board.return_curve)
    if not curve:
        return grid
    span = f"{score(min(board.return_curve))} … {score(max(board.return_curve))}"
    return Group(grid, Text.assemble(("return  ", LABEL_STYLE), (curve, "green"), (f"  {span}", LABEL_STYLE)))


def render_tasks(board: Board) -> RenderableType:
    """One line for each task, the first `MAX_TASKS` of them."""
    table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1), header_style=LABEL_STYLE, show_edge=False)
    table.add_column("task", no_wrap=True, ratio=1)
    tasks, own = board.tasks, board.statistics[:MAX_TASK_STATISTICS]
    for heading in ("share", "of", "acted", "episodes", "return", "evaluated", *own):
        table.add_column(heading, justify="right", no_wrap=True)
    for task in tasks[:MAX_TASKS]:
        trained = board.share_of(task)
        share = "–" if trained is None else f"{trained:.1%}"
        weight = f"{board.last(learner.TASK_WEIGHT, task) or 0.0:.1%}"
        acted = f"{count(board.rate(learner.TASK_ENV_STEPS, task))} steps/s"
        episodes = count(board.total(learner.TASK_EPISODES, task))
        means = [board.last(metric, task) for metric in (learner.TASK_RETURN_MEAN, learner.TASK_EVAL_RETURN_MEAN)]
        returns = (Text(score(mean), style="bold") for mean in means)
        statistics = (score(board.last(learner.TASK_STATISTIC, task, name)) for name in own)
        table.add_row(task, share, weight, acted, episodes, *returns, *statistics)
    if len(tasks) > MAX_TASKS:
        table.add_row(Text(f"… {len(tasks) - MAX_TASKS} more", LABEL_STYLE), *[""] * (6 + len(own)))
    return table


def render_progress(board: Board, run: RunConfig) -> RenderableType:
    """The run's state, a bar of its progress and the time left."""
    word, style = STATE_WORDS[board.state]
    share, left_s = progress(board, run)
    played, asked = board.evaluation
    is_evaluating = board.state is RunState.FINISHING and asked > 0
    share = played / asked if is_evaluating else share
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    is_open = not (run.steps or run.seconds)
    bar = ProgressBar(total=1.0, completed=share, pulse=is_open and board.state is RunState.TRAINING)
    eta = "" if is_open else f"ETA {duration(left_s)}" if board.state is RunState.TRAINING else ""
    if is_evaluating:
        eta = f"{evaluated_part(played, asked)}; Ctrl-C skips the rest"
    times = Text.assemble((duration(board.last(learner.SECONDS)), "bold"), ("  ", ""), (eta, LABEL_STYLE))
    row.add_row(Text(f"● {word}", style), bar, times)
    return row


def evaluated_part(played: float, asked: float) -> str:
    """How far the evaluation under way has come."""
    return f"episode {played:.0f} of {asked:.0f}"


def awaited_part(board: Board) -> str:
    """What a deterministic run waits for; empty if it waits for nothing."""
    awaited = board.now(inference.AWAITED_GROUPS)
    return f"waits for {awaited:.0f} group{'' if awaited == 1 else 's'} of environments" if awaited else ""


def render_services(supervisor: Supervisor, board: Board, now: float, *, is_short: bool = False) -> RenderableType:
    """One line for each service; short: those that are up share one."""
    table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1), header_style=LABEL_STYLE, show_edge=False)
    table.add_column("service", no_wrap=True)
    table.add_column("health", no_wrap=True, ratio=1)
    for heading in ("CPU", "memory", "loop lag", "restarts"):
        table.add_column(heading, justify="right", no_wrap=True)
    num_left_out = 0
    for service in supervisor.services.values():
        figures = board.service(service.name)
        if is_short and service.phase is Phase.RUNNING and figures.memory_bytes is not None:
            num_left_out += 1
            continue
        if service.phase is Phase.WAITING and service.starts:
            wait_s = max(0.0, service.start_at - now)
            health = Text(f"✗ {service.last_exit}; again in {wait_s:.1f} s", "red")
        elif service.phase is Phase.WAITING:
            health = Text("○ waiting", "yellow")
        elif service.phase is Phase.LEFT:
            health = Text("✓ left", LABEL_STYLE)
        elif figures.memory_bytes is None:
            health = Text("◌ starting", "yellow")
        else:
            health = Text(f"● up {duration(now - service.started_at)}", "green")
        memory = None if figures.memory_bytes is None else figures.memory_bytes / 2**20
        restarts = Text(str(service.restarts), "yellow" if service.restarts else LABEL_STYLE)
        cpu, lag = number(figures.cpu_percent, 0, " %"), number(figures.loop_lag_ms, 1, " ms")
        table.add_row(service.name, health, cpu, number(memory, 0, " MiB"), lag, restarts)
    if not num_left_out:
        return table
    up = Text(f"● {num_left_out} services up", "green")
    return Group(table, up) if table.row_count else up


def render_run(
    title: str, supervisor: Supervisor, board: Board, run: RunConfig, events: Sequence[str], now: float,
    *, is_short: bool = False,
) -> RenderableType:  # fmt: skip
    """The whole picture; short: services that are up share a line."""
    parts: list[RenderableType] = [render_progress(board, run), "", render_figures(board), ""]
    if awaited := awaited_part(board):
        parts += [Text(f"● {awaited}; inference's log names them", "yellow"), ""]
    parts += [render_tasks(board), ""] if board.tasks else []
    parts.append(render_services(supervisor, board, now, is_short=is_short))
    parts += [Text(f"• {event}", "yellow", no_wrap=True, overflow="ellipsis") for event in events]
    return Panel(
        Group(*parts), title=f"[bold]{title}[/]", subtitle=f"[{LABEL_STYLE}]until {goals(run)}[/]", box=ROUNDED
    )


def render_line(board: Board, run: RunConfig) -> str:
    """The picture in one line, for logs and pipes."""
    _, left_s = progress(board, run)
    played, asked = board.evaluation
    parts = [
        f"{duration(board.last(learner.SECONDS)):>7}",
        STATE_WORDS[board.state][0],
        evaluated_part(played, asked) if board.state is RunState.FINISHING and asked else "",
        awaited_part(board),
        f"trained {count(board.total(learner.TRAINED_STEPS))} ({count(board.rate(learner.TRAINED_STEPS))}/s)",
        f"acted {count(board.rate(inference.ACTED_STEPS))}/s",
        f"return {score(board.last(learner.RETURN_MEAN))}",
        f"evaluated {score(board.evaluated_return)}",
        *(f"{name} {score(board.last(learner.STATISTIC, name))}" for name in board.statistics[:MAX_STATISTICS]),
        f"lag {number(board.last(learner.LAG_MEAN))}",
        f"fill {number(board.mean(inference.BATCH_FILL), 0)}",
        f"ETA {duration(left_s)}" if left_s is not None and board.state is RunState.TRAINING else "",
    ]
    return "  ".join(filter(None, parts))


def labelled_grid() -> Table:
    """Return an empty grid for rows of a label and its text."""
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style=LABEL_STYLE, no_wrap=True)
    grid.add_column()
    return grid


def render_summary(summary: Mapping[str, Any], run_dir: Path, restarts: Mapping[str, int]) -> RenderableType:
    """What came out of a run, from its summary.json."""
    grid = labelled_grid()

    def figure(name: str, form: Callable[[float], str] = count) -> str:
        value = summary.get(name)
        return form(value) if isinstance(value, (int, float)) else "–"

    tasks = summary.get("tasks") or {}
    if summary.get("eval_episodes"):
        over = f" of {len(tasks)} tasks" if tasks else ""
        evaluated = f"{figure('eval_return_mean', score)} over {figure('eval_episodes')} episodes{over}"
        if "eval_normalised" in summary:
            evaluated += f", human-normalised {figure('eval_normalised', percent)}"
        earlier = evaluated_before_end(summary)
        grid.add_row("evaluated return", Text(evaluated, style="" if earlier else "bold green"))
        if earlier:
            grid.add_row("", Text(earlier, style="yellow"))
    else:
        grid.add_row("evaluated return", "not evaluated")
    for name, task in tasks.items():
        grid.add_row(f"  {name}", summarise_task(task))
    if "eval_normalised_mean" in summary:
        middle = f"{figure('eval_normalised_mean', percent)} mean, {figure('eval_normalised_median', percent)} median"
        capped = f"{figure('eval_normalised_capped_mean', percent)} mean with each task at most 100 %"
        grid.add_row("human-normalised", f"{middle}, {capped}")
    grid.add_row("training return", f"{figure('episode_return_mean', score)} over the last 100 episodes")
    for name in own_statistics(summary):
        means = f"{figure(evaluation_column(name), score)} evaluated, {figure(training_column(name), score)} training"
        grid.add_row(name, means)
    trained = f"{figure('trained_steps')} steps in {figure('seconds', duration)}"
    grid.add_row("trained", f"{trained}, {figure('trained_steps_per_s')} steps/s, {figure('updates')} updates")
    if (summary.get("evaluation_seconds") or 0.0) >= 1.0:
        grid.add_row("final evaluation", f"{figure('evaluation_seconds', duration)} beyond that")
    grid.add_row("acted", f"{figure('env_steps')} steps, {figure('env_steps_per_s')} steps/s")
    grid.add_row("policy lag", f"{figure('policy_lag_mean', number)} mean, {figure('policy_lag_max')} max")
    died = {name: times for name, times in restarts.items() if times}
    grid.add_row("restarts", ", ".join(f"{name} {times}" for name, times in died.items()) or "none")
    grid.add_row("run folder", Text(str(run_dir), style="cyan", overflow="fold"))
    return Panel(grid, title=f"[bold]{summary.get('experiment', run_dir.name)}[/]", box=ROUNDED, expand=False)


def evaluated_before_end(summary: Mapping[str, Any]) -> str:
    """Says so where the evaluation of a summary.json is not of the run's last update; else empty."""
    update = str(summary.get("eval_version", "")).rpartition(":")[2]
    if not update or update == str(summary.get("updates")):
        return ""
    return f"of update {int(update):,} of {summary.get('updates'):,}: not of the final policy"


def summarise_task(task: Mapping[str, Any]) -> str:
    """One task of a summary.json in a line."""
    known = {name: value if isinstance(value, (int, float)) else None for name, value in task.items()}
    parts = [f"{score(known.get('eval_return_mean'))} evaluated", f"{score(known.get('episode_return_mean'))} training"]
    if known.get("eval_normalised") is not None:
        parts.insert(1, f"human-normalised {percent(known['eval_normalised'])}")
    for name in own_statistics(task):
        mean = known.get(evaluation_column(name), known[training_column(name)])
        parts.append(f"{name} {score(mean)}")
    share = known.get("share")
    return ", ".join([*parts, f"{0.0 if share is None else share:.1%} of the batches"])


class TerminalView:
    """Draws the run twice a second where there is a terminal, and prints a line now and then where there is none."""

    def __init__(self, console: Console, title: str, board: Board, run: RunConfig) -> None:
        self._console, self._title, self._board, self._run = console, title, board, run
        self._events: deque[str] = deque(maxlen=MAX_EVENTS)
        self._drawn_at = float("-inf")
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> "TerminalView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def happened(self, text: str) -> None:
        """Show an event below the table until newer ones push it out."""
        stamped = f"{time.strftime('%H:%M:%S')}  {text}"
        self._events.append(stamped)
        if self._live is None:
            with _whether_or_not_it_can_be_printed():
                self._console.print(stamped, markup=False, highlight=False, soft_wrap=True)  # it may quote anything

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        """Draw, unless it was done just now."""
        if now - self._drawn_at < (REFRESH_S if self._live is not None else LINE_EVERY_S):
            return
        self._drawn_at = now
        with _whether_or_not_it_can_be_printed():
            self._draw(supervisor, now)

    def _draw(self, supervisor: Supervisor, now: float) -> None:
        if self._live is not None:
            draw = partial(render_run, self._title, supervisor, self._board, self._run, self._events, now)
            picture = draw()
            if len(self._console.render_lines(picture, pad=False)) > self._console.height:
                picture = draw(is_short=True)
            self._live.update(picture, refresh=True)
        else:
            self._console.print(render_line(self._board, self._run), highlight=False, soft_wrap=True)


@contextmanager
def _whether_or_not_it_can_be_printed() -> Iterator[None]:
    """A context manager around printing during a run, which must not end because a pipe's reader or a disk's room has.

    rich answers a broken pipe with SystemExit.
    """
    with suppress(OSError, SystemExit):
        yield
