"""One run from its experiment to its summary: services, the picture in the terminal, the video at the end."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from seedbed.learner_svc.run.atomic_write import write_durably
from seedbed.learner_svc.run.checkpoint import list_checkpoints
from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.board import Board
from seedbed.services.tools.cli.experiment import Experiment, LaunchSettings, services_of, write_words
from seedbed.services.tools.cli.launcher import Ended, Launcher, Reservation, View
from seedbed.services.tools.cli.machine import usable_cores
from seedbed.services.tools.cli.plan import Addresses, Process, plan_run
from seedbed.services.tools.cli.postmortem import newest_event
from seedbed.services.tools.cli.preflight import look_before_start
from seedbed.services.tools.cli.run_state import HeldRun, RunStatus, State, read_summary
from seedbed.services.tools.cli.runs import SNAPSHOT
from seedbed.services.tools.cli.scrape import Scraper
from seedbed.services.tools.cli.supervisor import Phase, Supervisor
from seedbed.services.tools.cli.table import TerminalView, render_summary
from seedbed.shared.errors import ConfigError, SeedbedError, StorageError
from seedbed.shared.figures import actor, learner
from seedbed.shared.protocol.messages import RunState

VIDEO = "policy.mp4"
COMPLAIN_EVERY_S = 60.0


class Follower:
    """Feeds the board with what the scraper found, then passes the turn on to a view. Part of the launcher's loop."""

    def __init__(self, scraper: Scraper, board: Board, view: View, logs: Path) -> None:
        self._scraper, self._board, self._view, self._logs = scraper, board, view, logs
        self._write_failures = 0.0
        self._complain_at = 0.0
        self._told_rebuilds: dict[str, float] = {}  # by actor
        self._tell_rebuilds_at: dict[str, float] = {}

    def happened(self, text: str) -> None:
        """Show a line to whoever watches."""
        self._view.happened(text)

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        """Take the newest pages; those of a process that is gone are forgotten."""
        for name, samples, at in self._scraper.take():
            if supervisor.services[name].phase is Phase.RUNNING and at >= supervisor.services[name].started_at:
                self._board.observe(name, samples, at)
                self._watch_disk(samples.get(learner.WRITE_FAILURES.sample, 0.0), now)
                self._watch_environments(name, samples.get(actor.REBUILDS.sample, 0.0), now)
        for name, service in supervisor.services.items():
            if service.phase is not Phase.RUNNING:
                self._board.forget(name)
        self._view.refresh(supervisor, now)

    def _watch_environments(self, name: str, rebuilds: float, now: float) -> None:
        """Say that an actor's environments fail, and why the newest did."""
        told = self._told_rebuilds.get(name, 0.0)
        told = told if told <= rebuilds else 0.0  # a restarted actor counts anew
        if rebuilds > told and now >= self._tell_rebuilds_at.get(name, now):
            cause = newest_event(self._logs / f"{name}.jsonl", "environment_failed").get("cause", "")
            self.happened(f"{name}: {rebuilds - told:.0f} environments failed and were made anew; the newest: {cause}")
            self._tell_rebuilds_at[name], told = now + COMPLAIN_EVERY_S, rebuilds
        self._told_rebuilds[name] = told

    def _watch_disk(self, failures: float, now: float) -> None:
        """Say that the learner trains on without being able to save."""
        if failures > self._write_failures and now >= self._complain_at:
            self._complain_at = now + COMPLAIN_EVERY_S
            self.happened("the run folder cannot be written: training goes on UNSAVED; logs/learner.jsonl says why")
        self._write_failures = max(failures, self._write_failures)


def run_experiment(experiment: Experiment, make_view: Callable[[Board, "Stop"], View]) -> Ended:
    """Run all services of an experiment to their end.

    Args:
      make_view: who watches; gets the board, and a callable that stops the run in order.
    """
    for service in services_of(experiment.settings):
        service.build()
    with HeldRun(experiment.run_dir) as held, reserved_addresses(experiment) as addresses:
        processes = plan_run(experiment, addresses, usable_cores())
        snapshot = experiment.run_dir / SNAPSHOT
        try:
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            snapshot.write_text(to_toml(experiment.sections), encoding="utf-8")
            write_words(experiment)
            for process in processes:
                process.status_file(experiment.run_dir).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"run folder {experiment.run_dir}: {error.strerror}; give another --run-dir") from error
        board = Board({process.name: process.role for process in processes})
        stop = Stop()
        status_files = {process.name: process.status_file(experiment.run_dir) for process in processes}
        with Scraper(status_files) as scraper:
            launcher = Launcher(
                processes,
                experiment.run_dir,
                Follower(scraper, board, make_view(board, stop), experiment.run_dir / "logs"),
                progress=lambda: board.progress,
                is_finishing=lambda: board.state >= RunState.FINISHING,
            )
            stop.launcher = launcher
            before = read_summary(experiment.run_dir)
            earlier = before.get("restarts")
            ended = launcher.run()
            tell_restarts(experiment.run_dir, processes, earlier if isinstance(earlier, dict) else {}, ended.restarts)
            summary = read_summary(experiment.run_dir)
            is_of_before = summary.get("epoch") == before.get("epoch")
            ended = replace(ended, summary={} if is_of_before and ended.outcome.exit_code else summary)
            held.end(describe_end(ended))
            return ended


def tell_restarts(
    run_dir: Path, processes: Sequence[Process], earlier: Mapping[str, int], launched: Mapping[str, int]
) -> None:
    """Put into the summary how often services were started again, if the launcher knows of more than the learner.

    What an inference knew of its actors is lost where it is killed. `earlier`: what the summary said before.
    """
    summary = read_summary(run_dir)
    told = summary.get("restarts")
    if not isinstance(told, dict):
        return
    counts: dict[str, int] = {}
    for process in processes:
        name = "actors" if process.role == "actor" else process.name
        counts[name] = counts.get(name, int(earlier.get(name, 0))) + launched.get(process.name, 0)
    exact = {**told, **{name: max(count, int(told.get(name, 0))) for name, count in counts.items()}}
    if exact != told:
        with suppress(StorageError):
            write_durably(run_dir / "summary.json", json.dumps({**summary, "restarts": exact}, indent=1) + "\n")


def describe_end(ended: Ended) -> RunStatus:
    """The end as the run folder keeps it."""
    outcome, summary = ended.outcome, ended.summary
    if outcome.service:
        return RunStatus(
            state=State.FAILED, service=outcome.service, reason=outcome.reason, last_words=ended.last_words
        )
    if outcome.exit_code and not summary.get("finished"):
        where = ", in the final evaluation" if is_trained(summary) else ""
        return RunStatus(state=State.STOPPED, reason=f"{outcome.reason}{where}")
    return RunStatus(state=State.FINISHED, reason=str(summary.get("reason", "")))


class Stop:
    """Stops the run that it belongs to, in order, as after Ctrl-C."""

    def __init__(self) -> None:
        self.launcher: Launcher | None = None
        self.is_asked = False

    def __call__(self) -> None:
        """Ask for the stop; asking again changes nothing."""
        if self.launcher is not None and not self.is_asked:
            self.is_asked = True
            self.launcher.request_stop()


@contextmanager
def reserved_addresses(experiment: Experiment) -> Iterator[Addresses]:
    """Addresses of the learner and each inference: those that the experiment names, else ports reserved for the run."""
    reservations: list[Reservation] = []

    def address(section: str, is_only: bool) -> str:
        chosen = str(experiment.sections.get(section, {}).get("bind", ""))
        if chosen and is_only and not chosen.endswith(":0"):
            return chosen
        reservations.append(Reservation())
        return reservations[-1].address

    try:
        count = experiment.settings.launch.inference
        inference = tuple(address("inference", count == 1) for _ in range(count))
        others = tuple(address("", False) for _ in range(experiment.settings.launch.learners - 1))
        meeting = address("", False) if others else ""
        yield Addresses(learner=address("learner", True), inference=inference, ranks=others, meeting=meeting)
    finally:
        for reservation in reservations:
            reservation.close()


def train(experiment: Experiment, console: Console) -> int:
    """`seedbed train`: run, then say how it ended; the exit code."""
    settings = experiment.settings
    experiment = look_before_start(experiment, console)
    what = f"{len(settings.tasks)} tasks" if settings.tasks else settings.env.id
    title = " · ".join(dict.fromkeys(("seedbed", experiment.name, what)))
    console.print(f"[dim]run folder[/]  [cyan]{experiment.run_dir}[/]", soft_wrap=True, highlight=False)
    if settings.run.deterministic:
        console.print(f"[yellow]{escape(deterministic_notice(settings))}[/]", soft_wrap=True, highlight=False)
    if experiment.recipe is not None:
        why = escape(f"({experiment.recipe.reason})")
        console.print(f"[dim]recipe[/]  {experiment.recipe.name} [dim]{why}[/]", soft_wrap=True, highlight=False)
    if experiment.sections["run"]["resume"] and experiment.words:
        console.print(f"[dim]goes on with[/]  {escape(shlex.join(experiment.words))}", soft_wrap=True, highlight=False)
    if settings.launch.learners > 1:
        console.print(f"[dim]learners[/]  {describe_ranks(experiment)}", soft_wrap=True, highlight=False)
    is_started = settings.launch.actors or settings.launch.eval_actors
    for service in services_of(settings):
        starter = "" if is_started else "  [dim](you start it)[/]"
        console.print(f"[dim]program[/]  {escape(service.describe())}{starter}", soft_wrap=True, highlight=False)
    before = read_summary(experiment.run_dir)
    with ExitStack() as shown:
        ended = run_experiment(
            experiment,
            lambda board, _stop: shown.enter_context(TerminalView(console, title, board, settings.run)),
        )
    is_unchanged = before.get("updates") == read_summary(experiment.run_dir).get("updates")
    if before.get("finished") and is_unchanged and not ended.outcome.exit_code:
        goals = "run.steps, run.seconds, run.until_return or run.until"
        console.print(f"[yellow]this run had finished before; to go on, raise what ended it: {goals}[/]")
    return conclude(experiment, ended, console)


def conclude(experiment: Experiment, ended: Ended, console: Console) -> int:
    """Summary and video of a run that finished; cause and remedy of one that did not."""
    run_dir, outcome = experiment.run_dir, ended.outcome
    if outcome.service:
        console.print(render_failure(ended, run_dir))
        if list_checkpoints(run_dir / "checkpoints"):
            say_resume(experiment, console, "when that is fixed")
        return outcome.exit_code
    summary = ended.summary
    if outcome.exit_code == 0 and experiment.settings.launch.video:
        make_video(run_dir, console)
    if summary:
        console.print(render_summary(summary, run_dir, ended.restarts))
    if outcome.exit_code and (summary.get("finished") or is_trained(summary)):
        is_finished = summary.get("finished")
        what = "finished" if is_finished else "trained to its end; the final evaluation was cut short"
        measure = shlex.join(["seedbed", "eval", str(run_dir)])
        console.print(f"{what}. Play it with  [bold]{escape(measure)}[/]", soft_wrap=True, highlight=False)
    elif outcome.exit_code:
        say_resume(experiment, console, "stopped")
    return outcome.exit_code


def is_trained(summary: Mapping[str, Any]) -> bool:
    """Whether a run that was stopped had been trained to its end, and stood in its final evaluation."""
    return not summary.get("finished") and summary.get("reason") in ("steps", "seconds")


def describe_ranks(experiment: Experiment) -> str:
    """How large several learners' updates are; and, where the user named their number alone, how to keep one's.

    An unroll goes to one rank whole, so smaller batches need smaller groups, or experience is older when it is used.
    """
    settings = experiment.settings
    ranks, batch, actor = settings.launch.learners, settings.learner.batch, settings.actor
    text = f"{ranks}, each on batches of {batch} unrolls, so an update trains on {ranks * batch}"
    named = {word.partition("=")[0].strip() for word in experiment.words}
    is_open = "launch.learners" in named and named.isdisjoint({"learner.batch", "actor.groups", "actor.lanes"})
    if is_open and not settings.tasks and batch % ranks == 0 == actor.lanes % ranks:
        groups = f"actor.groups={ranks * actor.groups} actor.lanes={actor.lanes // ranks}"
        text += f"; as with one: learner.batch={batch // ranks} {groups}"
    return text


def deterministic_notice(settings: LaunchSettings) -> str:
    """What a user of `run.deterministic` should know at the start."""
    text = "deterministic: acting and training take turns, which is slower; a service that dies ends the run"
    if settings.run.goals and not settings.eval.every_steps:
        text += f"; run.{next(iter(settings.run.goals))} is not looked at: set eval.every_steps for that"
    return text


def say_resume(experiment: Experiment, console: Console, when: str) -> None:
    """What to type to go on with a run."""
    command = escape(experiment.resume_command)
    console.print(f"{when}; go on with  [bold]{command}[/]", soft_wrap=True, highlight=False)


def render_failure(ended: Ended, run_dir: Path) -> Panel:
    """Which service failed the run, what it said, and where to read on."""
    outcome = ended.outcome
    text = Text(f"{outcome.service} {outcome.reason}\n", style="bold")
    if ended.last_words:
        text.append("\n" + ended.last_words.rstrip() + "\n", style="not bold")
    text.append(f"\nlogs: {run_dir / 'logs'}", style="not bold grey62")
    return Panel(text, title="[bold red]the run failed[/]", border_style="red", expand=False)


def make_video(run_dir: Path, console: Console) -> None:
    """A video of the final policy, of each task; a run is no worse for an environment that cannot be shown."""
    from seedbed.services.tools.cli.evaluate import by_task, load_policy, record_video, video_of

    try:
        trained = by_task(load_policy(run_dir))
    except SeedbedError as error:
        console.print(f"[yellow]no video: {escape(str(error))}[/]", highlight=False, soft_wrap=True)
        return
    for task, policy in trained.items():
        file = video_of(run_dir / VIDEO, task)
        try:
            with console.status(f"recording the final policy{' in ' + task if task else ''}"):
                recorded = record_video(policy, file)
        except SeedbedError as error:
            console.print(f"[yellow]no video: {escape(str(error))}[/]", highlight=False, soft_wrap=True)
        else:
            told = f"{recorded.seconds:.1f} s, {len(recorded.returns)} episodes"
            console.print(f"[dim]video[/]  [cyan]{file}[/] [dim]{told}[/]", soft_wrap=True, highlight=False)
