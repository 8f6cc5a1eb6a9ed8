"""`seedbed`: the one command. Each subcommand imports what it needs when it is called, so that --help is quick."""

import importlib.metadata
import json
import logging
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
import typer.core
from rich.console import Console
from rich.markup import escape

from seedbed.services.tools.cli import keys
from seedbed.services.tools.cli.completion import offer_experiments, offer_runs, offer_settings, offer_words
from seedbed.services.tools.cli.env.commands import env_app, play
from seedbed.services.tools.cli.extras import require_modules, require_torch
from seedbed.services.tools.container.role import ContainerRole
from seedbed.shared.errors import SeedbedError
from seedbed.shared.runtime.health import CAUSE_VARIABLE, leave_cause
from seedbed.shared.runtime.modules import look_for_modules_here

ORDER = (  # of the commands in --help; others come behind
    "train", "experiments", "runs", "eval", "explain", "export", "monitor", "wandb", "settings", "doctor", "bench",
    "plan", "env", "play", "learner", "inference", "actor", "container", "keys",
)  # fmt: skip


class InOrder(typer.core.TyperGroup):
    """The commands in the order in which a newcomer needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the subcommands, in the order of the help."""
        places = {name: place for place, name in enumerate(ORDER)}
        return sorted(super().list_commands(ctx), key=lambda name: places.get(name, len(ORDER)))


app = typer.Typer(
    name="seedbed",
    cls=InOrder,
    help="Train reinforcement-learning agents: environments, batched inference and learning as services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(keys.commands, name="keys")
app.add_typer(env_app)
app.command()(play)
UsageError: Any = typer.BadParameter.__base__  # typer exports the subclass alone
USAGE_EXIT = 2
STOPPED_BY_USER = 130  # as a shell reports Ctrl-C
console = Console()
errors = Console(stderr=True)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[section.key=value]...",
        help="Settings over those of the file, e.g. learner.batch=64.",
        autocompletion=offer_settings,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder, its name under runs/, or an experiment (its newest run).",
        autocompletion=offer_runs,
    ),
]


EnvOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Instead of an experiment: an environment, with settings that fit it, e.g. LunarLander-v3 or mine:make.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    bool, typer.Option("--memory", help="With --env: a policy that remembers, for tasks where the past matters.")
]


class Which(StrEnum):
    """Which of a run's checkpoints is used."""

    BEST = "best"
    LATEST = "latest"
    MILESTONE = "milestone"


class Bench(StrEnum):
    """The benchmarks that `seedbed bench` runs."""

    ALL = "all"
    TRANSPORT = "transport"
    INFERENCE = "inference"
    REPLAY = "replay"
    CARTPOLE = "cartpole"
    PONG = "pong"


@app.command()
def train(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="[EXPERIMENT]",
            help="What seedbed experiments lists, a file, or a folder with a service.",
            autocompletion=offer_experiments,
        ),
    ] = None,
    words: Words = None,
    env: EnvOption = None,
    memory: MemoryOption = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder; else runs/<name>-<time>.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Train for so long, then evaluate once more.", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many trained steps.", show_default=False)] = None,
    until_return: Annotated[
        float | None, typer.Option(help="Stop once an evaluation's mean return is this.", show_default=False)
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Stop once an evaluation's mean of a statistic is this, as 'success >= 0.9'.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest run, or with that in --run-dir.")
    ] = False,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Start with another run's weights.", show_default=False, autocompletion=offer_runs
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Train so many seeds, one after the other.", show_default=False)
    ] = None,
) -> int:
    """Train an experiment, or an environment by its id, with all services on this machine."""
    from seedbed.services.tools.cli.experiment import choose_source, load_experiment
    from seedbed.services.tools.cli.runs import resolve_source

    file, words = choose_source(experiment, words or [], env=env, memory=memory)
    source = resolve_source(init_from, resume=resume) if init_from is not None else None
    given = {
        "run.seconds": seconds, "run.steps": steps, "run.until_return": until_return, "run.until": until,
        "learner.init_from": json.dumps(str(source)) if source else None,
    }  # fmt: skip
    chosen = [*words, *(f"{key}={value}" for key, value in given.items() if value is not None)]
    if seeds is not None:
        require_torch()
        from seedbed.services.tools.cli.seeds import train_seeds

        return train_seeds(file, chosen, seeds, run_dir=run_dir, resume=resume, console=console)
    found = load_experiment(file, chosen, run_dir=run_dir, resume=resume)
    require_torch()
    from seedbed.services.tools.cli.training import train as run_training

    return run_training(found, console)


ServiceWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[EXPERIMENT] [section.key=value]...",
        help="An experiment, then settings over its own.",
        autocompletion=offer_words,
    ),
]
ServiceFile = Annotated[
    Path | None, typer.Option("--config", help="Experiment file, instead of as the first word.", show_default=False)
]


@app.command()
def actor(
    words: ServiceWords = None,
    config: ServiceFile = None,
    task: Annotated[
        str | None, typer.Option(help="Which of the experiment's tasks to step.", show_default=False)
    ] = None,
) -> int:
    """Run one actor: [bold]seedbed actor cartpole actor.upstream=tcp://127.0.0.1:5555[/].

    From another machine with its key: [bold]actor.upstream=tcp://10.0.0.6:5555 runtime.keys=robot-7[/]."""
    limit_threads("actor")
    from seedbed.actor_svc.__main__ import main as run_actor
    from seedbed.services.tools.cli.foreign import become_service

    chosen = [*service_words(words, config), *([] if task is None else [f"actor.task={task}"])]
    become_service(chosen)
    return run_actor(chosen)


@app.command()
def inference(
    words: ServiceWords = None,
    config: ServiceFile = None,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Serve this run's policy to actors in eval and play mode, without a learner.",
            autocompletion=offer_runs,
        ),
    ] = None,
    which: Annotated[Which, typer.Option(help="With --serve: which checkpoint.")] = Which.LATEST,
    greedy: Annotated[
        bool | None,
        typer.Option("--greedy/--sample", help="With --serve: most likely or sampled actions; else as the run says."),
    ] = None,
) -> int:
    """Run one inference service: [bold]seedbed inference cartpole inference.upstream=tcp://127.0.0.1:5556[/].

    On another machine with its keys: [bold]inference.upstream=tcp://10.0.0.5:5556 runtime.keys=keys/inference[/]."""
    require_torch()
    limit_threads("inference")
    if serve is not None:
        from seedbed.services.tools.cli.runs import Need, resolve_run
        from seedbed.services.tools.cli.serving import run_served

        return run_served(resolve_run(serve, Need.POLICY), which.value, service_words(words, config), greedy=greedy)
    from seedbed.inference_svc.__main__ import main as run_inference

    return run_inference(service_words(words, config))


@app.command()
def learner(words: ServiceWords = None, config: ServiceFile = None) -> int:
    """Run the learner: [bold]seedbed learner cartpole run.dir=runs/one[/]."""
    require_torch()
    limit_threads("learner")
    from seedbed.learner_svc.__main__ import main as run_learner

    return run_learner(service_words(words, config))


@app.command()
def container(
    role: Annotated[ContainerRole, typer.Argument(help="Which service this container is.")],
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name in compose/experiments, or a path.")],
    words: Words = None,
    run: Annotated[str, typer.Option(help="Name of the run's folder; empty: the experiment's.")] = "",
    runs: Annotated[
        Path,
        typer.Option(readable=False, help="Where the folder of runs is mounted."),  # `settle` tries it, as the owner
    ] = Path("/runs"),
    serve: Annotated[
        Which | None, typer.Option(help="Inference's: serve this checkpoint of the run, without a learner.")
    ] = None,
    task: Annotated[str, typer.Option(help="An actor's: which of the run's tasks; empty: all, a process each.")] = "",
    as_owner: Annotated[
        bool,
        typer.Option("--as-owner", help="A learner's, started as root: become who owns the folder of runs."),
    ] = False,
) -> None:
    """Become one service of a deployment in containers; what is refused is told, and tried again."""
    from seedbed.services.tools.container.start import start

    served = serve.value if serve else ""
    start(role, experiment, words or [], run=run, runs=runs, task=task, serve=served, as_owner=as_owner)


@app.command("eval")
def evaluate(
    run: RunArgument,
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes to play.")] = 100,
    video: Annotated[
        Path | None, typer.Option(help="Also write episodes as MP4, 8 s at least.", show_default=False)
    ] = None,
    greedy: Annotated[
        bool | None, typer.Option("--greedy/--sample", help="Most likely or sampled actions; else as the run says.")
    ] = None,
    which: Annotated[Which, typer.Option(help="Which checkpoint.")] = Which.LATEST,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the environments; else eval.seed.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option(help="One of the run's tasks; else all.", show_default=False)] = None,
) -> int:
    """Play a run's policy: mean, median and spread of its return, by task if it has several, and a video."""
    require_torch()
    from seedbed.services.tools.cli.report import report_evaluation
    from seedbed.services.tools.cli.runs import Need, resolve_run

    folder = resolve_run(run, Need.POLICY)
    report_evaluation(
        folder, episodes, console, video=video, greedy=greedy, which=which.value, seed=seed, only_task=task
    )
    return 0


@app.command()
def export(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(help="policy.onnx: one step as a graph; policy.safetensors: the weights.")],
    which: Annotated[Which, typer.Option(help="Which checkpoint.")] = Which.LATEST,
) -> int:
    """Write a run's policy for other programs."""
    require_torch()
    from seedbed.services.tools.cli.evaluate import find_checkpoint
    from seedbed.services.tools.cli.export import export_policy
    from seedbed.services.tools.cli.runs import Need, resolve_run

    checkpoint = find_checkpoint(resolve_run(run, Need.POLICY), which.value)
    with console.status("writing the policy"):
        exported = export_policy(checkpoint, file)
    if exported.inputs:
        console.print(f"takes  {', '.join(exported.inputs)}", highlight=False, soft_wrap=True)
        console.print(f"gives  {', '.join(exported.outputs)}", highlight=False, soft_wrap=True)
    console.print(f"{file}: update {checkpoint.step}", highlight=False, soft_wrap=True)
    return 0


@app.command()
def wandb(
    run: RunArgument,
    project: Annotated[str, typer.Option(help="The project there.")] = "seedbed",
    entity: Annotated[str, typer.Option(help="User or team; empty: your own.", show_default=False)] = "",
    once: Annotated[bool, typer.Option("--once", help="Leave when all that is there was sent.")] = False,
) -> int:
    """Send a run's curves, settings and summary to Weights & Biases, while it trains or afterwards."""
    from seedbed.services.tools.cli.mirror import send_run
    from seedbed.services.tools.cli.runs import Need, resolve_run

    sent, place = send_run(resolve_run(run, Need.METRICS), project, entity=entity, is_live=not once)
    console.print(f"{sent} rows: {place}", highlight=False, soft_wrap=True)
    return 0


@app.command()
def monitor(
    words: Words = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of run folders; else runs/.", show_default=False)] = None,
    host: Annotated[str | None, typer.Option(help="Address; any but loopback asks for a token.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port, else 8080; 0: any free one.", show_default=False)] = None,
) -> int:
    """Serve a web page that shows runs, and their metrics for Prometheus."""
    require_modules("monitor", "orjson", "starlette", "uvicorn")
    from seedbed.services.tools.monitor.service import main as run_monitor

    given = {"monitor.runs": runs and runs.absolute(), "monitor.host": host, "monitor.port": port}
    told = [*(words or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    if CAUSE_VARIABLE not in os.environ:
        return run_monitor(told)
    from seedbed.services.tools.container import hold  # a container stays up when its service is refused

    hold.begin()
    code = run_monitor(told)
    if hold.is_held(code):
        hold.execute(code)
    return code


@app.command()
def runs(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only those whose names begin so.", show_default=False)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those beyond the newest 20.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, all of them.")] = False,
) -> int:
    """List the runs under runs/, the newest first: state and cause, steps, returns."""
    from seedbed.services.tools.cli.listing import list_runs, render_runs

    found = list_runs(name)
    if as_json:
        print(json.dumps([run.to_json() for run in found], indent=1))
    elif found:
        page = list_console()
        page.print(render_runs(found, most=len(found) if everything else 20, width=page.width), highlight=False)
    else:
        console.print(f"no runs{f' of {name}' if name else ''} under {Path('runs').resolve()}", highlight=False)
    return 0


@app.command()
def experiments() -> int:
    """List what can be trained: the experiments that come with seedbed, and those in this folder."""
    from seedbed.services.tools.cli.listing import list_experiments, render_experiments

    page = list_console()
    page.print(render_experiments(list_experiments(), width=page.width), highlight=False)
    return 0


@app.command()
def settings(
    name: Annotated[
        str, typer.Argument(metavar="[SECTION|SECTION.KEY]", help="Only these; else all.", show_default=False)
    ] = "",
) -> int:
    """List every setting: its name, default and values, and what it is for."""
    from seedbed.services.tools.cli.settings import list_settings, render_settings

    console.print(render_settings(list_settings(name)))
    return 0


@app.command()
def recipes(
    experiment: Annotated[
        str | None, typer.Argument(metavar="[EXPERIMENT]", help="A name in compose/experiments, or a file.")
    ] = None,
    words: Words = None,
    env: EnvOption = None,
    memory: MemoryOption = False,
) -> int:
    """List the recipes, or write one out for an environment: [bold]seedbed recipes --env Acrobot-v1[/]."""
    from seedbed.services.tools.cli.experiment import choose_source, load_experiment
    from seedbed.services.tools.cli.recipe_listing import render_recipes, write_out

    if experiment is None and env is None:
        console.print(render_recipes())
        return 0
    file, words = choose_source(experiment, words or [], env=env, memory=memory)
    print(write_out(load_experiment(file, words, run_dir=Path("runs") / "-", resume=False)), end="")
    return 0


@app.command()
def doctor() -> int:
    """Check this machine and say what to change."""
    from seedbed.services.tools.cli.doctor import Grade, gather, judge
    from seedbed.services.tools.cli.report import render_findings

    with console.status("looking at this machine"):
        findings = judge(gather(Path.cwd()))
    console.print(render_findings(findings))
    return int(any(finding.grade is Grade.PROBLEM for finding in findings))


@app.command()
def explain(run: RunArgument) -> int:
    """Name a run's bottleneck and the knob to turn."""
    from seedbed.services.tools.cli.report import report_bottleneck
    from seedbed.services.tools.cli.runs import Need, resolve_run

    report_bottleneck(resolve_run(run, Need.METRICS), console)
    return 0


@app.command()
def bench(
    name: Annotated[Bench, typer.Argument(help="What to measure.")] = Bench.ALL,
    seconds: Annotated[float, typer.Option(min=1, help="How long each.")] = 30.0,
    words: Words = None,
    curve: Annotated[bool, typer.Option("--curve", help="transport: what keys on the link cost.")] = False,
) -> int:
    """Measure speeds; one JSON object a line."""
    from seedbed.services.tools.cli.bench import WITHOUT_SETTINGS, run_bench

    if name is not Bench.TRANSPORT:
        require_torch()
    is_all = name is Bench.ALL  # then settings and --curve are for those that have them
    for item in [item.value for item in Bench if item is not Bench.ALL] if is_all else [name.value]:
        chosen = [] if is_all and item in WITHOUT_SETTINGS else words or []
        for line in run_bench(item, seconds, chosen, curve=curve and (not is_all or item == Bench.TRANSPORT)):
            print(line, flush=True)
    return 0


@app.command()
def plan(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name in compose/experiments, or a path.")],
    words: Words = None,
    actor_machines: Annotated[int, typer.Option(min=1, help="Machines for actors.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each, all of them for actors.")] = 16,
    inference_rate: Annotated[
        float, typer.Option(min=0, help="Steps/s of one inference service on an accelerator; 0: as measured here.")
    ] = 0.0,
    learner_rate: Annotated[
        float, typer.Option(min=0, help="Steps/s of one learner on an accelerator; 0: as measured here.")
    ] = 0.0,
    core_price: Annotated[float, typer.Option(min=0, help="Of one core for an hour.")] = 0.0,
    accelerator_price: Annotated[float, typer.Option(min=0, help="Of one accelerator for an hour.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=5, help="How long the run is that is measured.")] = 20.0,
) -> int:
    """Say how many services so many machines need, and what a billion frames cost, from rates measured here."""
    require_torch()
    from seedbed.services.tools.cli.bench.costs import measure_costs
    from seedbed.services.tools.cli.capacity import Hardware, plan_fleet
    from seedbed.services.tools.cli.report import render_plan

    fleet = Hardware(
        actor_machines=actor_machines, cores=cores, core_price=core_price, accelerator_price=accelerator_price,
        inference_rate=inference_rate, learner_rate=learner_rate,
    )  # fmt: skip
    with console.status(f"training {experiment} for {seconds:.0f} s, to measure it"):
        costs = measure_costs(experiment, seconds, words or [])
    console.print(render_plan(costs, fleet, plan_fleet(costs, fleet)))
    return 0


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.", is_eager=True)] = False,
) -> None:
    """The options of `seedbed` itself, before any subcommand."""
    log_warnings_only()
    if version:
        print(f"seedbed {importlib.metadata.version('seedbed')}")
        raise typer.Exit


def list_console() -> Console:
    """Return the console for a list; if it goes through a pipe, the console is so wide that no line is cut off."""
    return console if console.is_terminal else Console(width=200)


def service_words(words: Sequence[str] | None, config: Path | None) -> list[str]:
    """A service's command line: an experiment's name becomes its file."""
    from seedbed.services.tools.cli.experiment import find_experiment

    rest = list(words or [])
    if config is not None:
        return [str(find_experiment(str(config))), *rest]
    if rest and "=" not in rest[0]:
        return [str(find_experiment(rest[0])), *rest[1:]]
    return rest


def log_warnings_only() -> None:
    """Log warnings and errors alone, to standard error, until a service sets up logs of its own."""
    structlog.reset_defaults()  # whatever was set up in this process before
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def limit_threads(role: str) -> None:
    """Limit this process's threads as those of a service of this role."""
    from seedbed.services.tools.cli import plan

    plan.limit_threads(os.environ, role)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code. Errors of our own are told in their own words."""
    look_for_modules_here()
    # Before torch is loaded: its threads, spinning for each other on busy cores, made evaluation fourteen times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = app(args=None if argv is None else list(argv), prog_name="seedbed", standalone_mode=False)
    except UsageError as error:  # an unknown option, a missing or malformed argument
        if not error.format_message():  # no command at all: its help was shown
            return USAGE_EXIT
        where = error.ctx.command_path if error.ctx else "seedbed"
        errors.print(f"[bold red]error[/] {escape(error.format_message())}", highlight=False, soft_wrap=True)
        errors.print(f"See  {where} --help", highlight=False)
        return USAGE_EXIT
    except typer.Abort:  # Ctrl-C
        return STOPPED_BY_USER
    except SeedbedError as error:
        leave_cause(str(error))
        errors.print(f"[bold red]error[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return error.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
