"""What `eval`, `doctor`, `explain` and `plan` show their user."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from seedbed.learner_svc.algorithms.config import is_lag_bounded
from seedbed.services.tools.cli.capacity import CapacityPlan, Costs, Hardware
from seedbed.services.tools.cli.doctor import Finding, Grade
from seedbed.services.tools.cli.experiment import Sections
from seedbed.services.tools.cli.explain import Diagnosis, Signals, diagnose
from seedbed.services.tools.cli.runs import RECORD
from seedbed.services.tools.cli.table import LABEL_STYLE, count, labelled_grid, number, percent
from seedbed.services.tools.cli.unroll_links import UnrollLink, read_links
from seedbed.services.tools.monitor.verdict import read_signals
from seedbed.shared.figures import columns, inference
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.scores.scale import ScoreScale

if TYPE_CHECKING:  # torch costs a second that `doctor` and `explain` do not need
    from seedbed.services.tools.cli.evaluate import PlayedEpisodes, TrainedPolicy

MAX_LINKS = 16  # between inference and learner, whose unrolls' way is shown
MARKS = {Grade.OK: ("✓", "green"), Grade.ADVICE: ("!", "yellow"), Grade.PROBLEM: ("✗", "bold red")}


def render_findings(findings: Sequence[Finding]) -> RenderableType:
    """The doctor's report: a line for each topic, advice below what needs it, and a verdict."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for finding in findings:
        mark, style = MARKS[finding.grade]
        table.add_row(Text(mark, style), finding.topic, Text(finding.found))
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", style.removeprefix("bold ")))
    problems = sum(finding.grade is Grade.PROBLEM for finding in findings)
    advice = sum(finding.grade is Grade.ADVICE for finding in findings)
    if problems:
        verdict = Text(f"{problems} to fix before training", "bold red")
    elif advice:
        verdict = Text(f"ready to train; {advice} could be better", "yellow")
    else:
        verdict = Text("ready to train", "green")
    return Panel(Group(table, "", verdict), title="[bold]this machine[/]", box=ROUNDED, expand=False)


def report_bottleneck(run_dir: Path, console: Console) -> None:
    """Print where a run's time goes, what limits it, and what to turn."""
    sections = load_settings(Sections, run_dir / RECORD)
    lag = sections.learner.get("max_policy_lag") if is_lag_bounded(sections.algorithm) else None
    signals = read_signals(run_dir, None if lag is None else float(lag))
    console.print(render_diagnosis(run_dir.name, signals, diagnose(signals), read_links(run_dir)))


def render_diagnosis(
    name: str, signals: Signals, diagnosis: Diagnosis, links: Sequence[UnrollLink] = ()
) -> RenderableType:
    """What `seedbed explain` prints: figures, ways of unrolls, what limits the run, settings to change, remarks."""
    grid, figures = labelled_grid(), signals.figures
    grid.add_row(
        "speed", f"{count(signals.trained_steps_per_s)} trained, {count(signals.acted_steps_per_s)} acted steps/s"
    )
    for label, share in (
        ("learner", figures[columns.UPDATE_BUSY_SHARE]),
        ("inference", signals.inference_busy_share),
        ("environments", figures[inference.ENV_BUSY.column]),
        ("machine", figures[columns.MACHINE_BUSY_SHARE]),
    ):
        if share is not None:
            grid.add_row(label, _bar(share))
    for rank, means in signals.ranks.items():
        no_batch, others = means[columns.RANK_BATCH_WAIT], means[columns.RANK_RANKS_WAIT]
        waits = f"no batch {no_batch:.0%} of the time, waits for other ranks {others:.0%}"
        grid.add_row(f"learner rank {rank}", f"{count(means[columns.RANK_TRAINED_LANES])} unrolls/s, {waits}")
    if signals.cycle_ms is not None:
        wait_ms, forward_ms = figures[inference.QUEUE_WAIT.column], figures[inference.FORWARD.column]
        cycle = f"{number(signals.cycle_ms, 2)} ms: {number(wait_ms, 2)} waiting for a batch, "
        grid.add_row("a lane's cycle", cycle + f"{number(forward_ms, 2)} forward, the rest outside inference")
    fill, lanes = figures[inference.BATCH_FILL.column], figures[inference.NUM_LANES.column]
    if fill is not None:
        grid.add_row("batch fill", f"{number(fill, 0)} of {number(lanes, 0)} lanes")
    for label, text in _describe_links(links):
        grid.add_row(label, text)
    lag_mean, lag_max = figures[columns.LAG_MEAN], figures[columns.LAG_MAX]
    if lag_mean is not None:
        grid.add_row("policy lag", f"{number(lag_mean)} mean, {number(lag_max, 0)} max")
    verdict = Text.assemble(("bottleneck  ", LABEL_STYLE), (diagnosis.bottleneck.value, "bold yellow"))
    evidence = Text(f"  {diagnosis.evidence}")
    knobs = [Text.assemble(("  → ", "green"), knob) for knob in diagnosis.knobs]
    remarks = [Text.assemble(("  ! ", "yellow"), remark) for remark in diagnosis.remarks]
    parts: list[RenderableType] = [grid, "", verdict, evidence, Text("turn", LABEL_STYLE), *knobs]
    if remarks:
        parts += [Text("also", LABEL_STYLE), *remarks]
    return Panel(Group(*parts), title=f"[bold]{name}[/]", box=ROUNDED, expand=False)


def _describe_links(links: Sequence[UnrollLink]) -> list[tuple[str, Text]]:
    """A label and the way of the unrolls of each link, the first MAX_LINKS of them."""
    has_ranks = any(link.rank for link in links)
    rows = []
    for link in links[:MAX_LINKS]:
        to = f" → rank {link.rank}" if has_ranks else ""
        tasks = f" ({len(link.tasks)} tasks)" if len(link.tasks) > 1 else "".join(f" ({task})" for task in link.tasks)
        rows.append(
            (f"unrolls of {link.service}{to}", Text(f"{link.way}{tasks}" + f": {link.reason}" * bool(link.reason)))
        )
    if len(links) > MAX_LINKS:
        rows.append(("", Text(f"… {len(links) - MAX_LINKS} more", LABEL_STYLE)))
    return rows


def render_plan(costs: Costs, fleet: Hardware, plan: CapacityPlan) -> RenderableType:
    """What `seedbed plan` prints: what a step costs here, what the fleet needs, and what a billion frames cost."""
    grid = labelled_grid()
    roles = (("actors", costs.actor_s), ("inference", costs.inference_s), ("learner", costs.learner_s))
    grid.add_row("a step here", f"µs of a core: {', '.join(f'{role} {number(1e6 * each, 2)}' for role, each in roles)}")
    sizes = f"{number(costs.inference_bytes, 0)} bytes to inference and back, {number(costs.learner_bytes, 0)}"
    grid.add_row("", f"{sizes} to the learner")
    grid.add_row(
        "one service here",
        f"at most {count(costs.inference_rate)} steps/s of inference, {count(costs.learner_rate)} of the learner",
    )
    grid.add_row("actors", f"{fleet.actor_machines * fleet.cores} cores reach {count(plan.rate)} steps/s")
    each = f"each for {number(plan.actors_per_inference)} cores of actors, {_link(plan.inference_link)}"
    grid.add_row("inference", f"{_things(plan.inference_services, 'service')}, {each}")
    each = f"each for {number(plan.inference_per_learner)} inference services, {_link(plan.learner_link)}"
    grid.add_row("learner", f"{_things(plan.learners, 'rank')}, {each}")
    each = f"learner.batch = {costs.unrolls_per_update} of each rank"
    grid.add_row("an update", f"trains on {count(plan.unrolls_per_update)} unrolls, {each}")
    other = (
        f"the same cores reach {count(plan.impala_rate)} steps/s, and get {_link(plan.impala_weights_link)} of weights"
    )
    grid.add_row("as in IMPALA", other)
    parts: list[RenderableType] = [grid]
    if fleet.core_price or fleet.accelerator_price:
        prices = Table("a billion frames", "actors", "inference", "learner", "total", box=SIMPLE_HEAD)
        for name, layout in (("seedbed", plan.seedbed), ("as in IMPALA", plan.impala)):
            shares = (layout.actors, layout.inference, layout.learners, layout.total)
            prices.add_row(name, *(f"{share:.3g}" for share in shares))
        parts.append(prices)
    return Panel(Group(*parts), title=f"[bold]{costs.env_id}[/]", box=ROUNDED, expand=False)


def _things(number_of: int, name: str) -> str:
    return f"{number_of} {name}{'' if number_of == 1 else 's'}"


def _link(bytes_per_s: float) -> str:
    """What a link carries, in megabits per second, as links are sold."""
    return f"{number(8e-6 * bytes_per_s)} Mbit/s"


def _bar(share: float, width: int = 24) -> Text:
    """A share of time as a bar and per cent."""
    full = round(min(1.0, share) * width)
    style = "red" if share >= 0.8 else "yellow" if share >= 0.5 else "green"
    return Text.assemble(("━" * full, style), ("━" * (width - full), "grey30"), f" {share:.0%} busy")


def report_evaluation(
    run_dir: Path,
    episodes: int,
    console: Console,
    *,
    video: Path | None,
    greedy: bool | None,
    which: Literal["best", "latest", "milestone"],
    seed: int | None,
    only_task: str | None = None,
) -> None:
    """Play and print, every task or one; write the video if one is asked for."""
    from seedbed.services.tools.cli.evaluate import by_task, load_policy, record_video, video_of
    from seedbed.services.tools.cli.video import check_video_name

    if video is not None:
        check_video_name(video)  # before anything is played
    trained = load_policy(run_dir, which)
    settings, checkpoint = trained.settings, trained.checkpoint
    is_greedy = settings.eval.greedy if greedy is None else greedy
    played_seed = settings.eval.seed if seed is None else seed
    players = by_task(trained, only_task)
    of_each = " of each task" if len(players) > 1 else ""
    how = f"{episodes} episodes{of_each}, {'greedy' if is_greedy else 'sampled'} actions"
    played = _play_all(players, episodes, console, greedy=is_greedy, seed=played_seed)
    if len(players) > 1:
        scales = {name: settings.scale_of(name) for name in played}
        console.print(render_tasks({name: item.returns for name, item in played.items()}, scales, how))
    else:
        ((name, item),) = played.items()
        title = f"{name or settings.env.id}, {how}"
        console.print(render_statistics(item.names, item.statistics, title))
        if scale := settings.scale_of(name):
            console.print(render_score(float(item.returns.mean()), scale))
    source = f"{checkpoint.kind} checkpoint of update {checkpoint.step}: {checkpoint.path}"
    console.print(Text(source, LABEL_STYLE), soft_wrap=True)
    if video is None:
        return
    for name, player in players.items():
        file = video_of(video, name if len(players) > 1 else "")
        with console.status("recording"):
            recorded = record_video(player, file, greedy=is_greedy, seed=played_seed)
        told = f"{recorded.seconds:.1f} s, {len(recorded.returns)} episodes"
        console.print(f"[dim]video[/] [cyan]{file}[/] [dim]{told}[/]", soft_wrap=True, highlight=False)


def _play_all(
    players: "Mapping[str, TrainedPolicy]", episodes: int, console: Console, *, greedy: bool, seed: int
) -> "dict[str, PlayedEpisodes]":
    """Play so many episodes of each task with its policy, and show a progress bar."""
    from seedbed.services.tools.cli.evaluate import play_episodes

    parts = (TextColumn("playing"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} episodes"))
    played: dict[str, PlayedEpisodes] = {}
    with Progress(*parts, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("play", total=episodes * len(players))
        for index, (name, player) in enumerate(players.items()):
            before = index * episodes

            def finished(done: int, before: int = before) -> None:
                progress.update(bar, completed=before + done)

            played[name] = play_episodes(player, episodes, greedy=greedy, seed=seed, finished=finished)
    return played


def render_score(mean: float, scale: ScoreScale) -> RenderableType:
    """A mean return on its normalised scale, and what the scale is."""
    source = f"; {scale.source}" if scale.source else ""
    told = f" (random play {number(scale.random)}, human {number(scale.human)}{source})"
    return Text.assemble("human-normalised ", (percent(scale.normalise(mean)), "bold green"), (told, LABEL_STYLE))


def render_tasks(returns: "Mapping[str, Array]", scales: Mapping[str, ScoreScale | None], how: str) -> RenderableType:
    """A line for each task's returns, f32 [episodes], and their mean; normalised where there is a scale.

    The capped mean counts no task for more than a person, as DMLab-30 is reported.
    """
    table = Table(title=f"return, {how}", title_style="bold", box=SIMPLE_HEAD, header_style=LABEL_STYLE)
    table.add_column("task")
    for heading in ("mean", "± s.e.", "median", "min", "max", "human-normalised"):
        table.add_column(heading, justify="right")
    means: list[float] = []
    normalised: list[float] = []
    for name, values in returns.items():
        mean = float(values.mean())
        scale = scales[name]
        scaled = None if scale is None else scale.normalise(mean)
        means.append(mean)
        normalised += [] if scaled is None else [scaled]
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
        figures = (float(error), float(np.median(values)), float(values.min()), float(values.max()))
        cells: list[Text | str] = [Text(number(mean, 2), "bold green")]
        cells += [number(figure, 2) for figure in figures]
        table.add_row(name, *cells, percent(scaled))
    table.add_section()
    for label, middle in (("mean over tasks", np.mean), ("median over tasks", np.median)):
        scaled = float(middle(normalised)) if len(normalised) == len(means) else None
        table.add_row(label, Text(number(float(middle(means)), 2), "bold green"), *[""] * 4, percent(scaled))
    if len(normalised) == len(means):
        table.add_row("capped mean", *[""] * 5, percent(float(np.minimum(normalised, 1.0).mean())))
    return table


def render_statistics(
    names: Sequence[str], statistics: "np.ndarray[tuple[int, int], np.dtype[np.float32]]", title: str
) -> RenderableType:
    """Mean, its standard error, median, spread and extremes of each statistic, f32 [episodes, K]."""
    table = Table(title=title, title_style="bold", box=SIMPLE_HEAD, header_style=LABEL_STYLE)
    table.add_column("")
    for heading in ("mean", "± s.e.", "median", "std", "min", "max"):
        table.add_column(heading, justify="right")
    for name, values in zip(names, statistics.T.astype(np.float64), strict=True):
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
        figures = (values.mean(), error, np.median(values), values.std(), values.min(), values.max())
        style = "bold green" if name == "return" else ""
        table.add_row(
            name, *(Text(number(float(figure), 2), style if not index else "") for index, figure in enumerate(figures))
        )
    return table
