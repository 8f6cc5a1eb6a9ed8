"""`seedbed env …` and `seedbed play`: what each command line means. Imports what a command needs when it is called."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from seedbed.services.tools.cli.env.visit import Visit

env_app = typer.Typer(
    name="env",
    help="Make, check, measure and show environments.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
notes = Console(stderr=True)

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:function, an environment's id, a service's folder, or tcp://127.0.0.1:PORT to listen at.",
    ),
]
KeysOption = Annotated[
    Path | None,
    typer.Option(
        "--keys", metavar="FOLDER", show_default=False, help="With tcp://…: inference's keys, for services elsewhere."
    ),
]
EnvArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="module:function, an environment's id, or a service's folder.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[section.key=value]...", help="Settings, e.g. env.kwargs='{level = 3}'."),
]


@env_app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A Python package's name.")],
    vector: Annotated[bool, typer.Option("--vector", help="All lanes in one step, in NumPy.")] = False,
) -> int:
    """Write a service with an environment to fill in; it trains as written."""
    from seedbed.services.tools.cli.env.scaffold import choose_place, write_service

    here = Path.cwd()
    place = choose_place(name, here)
    for path in write_service(name, place, here, vector=vector):
        console.print(f"  {path}", highlight=False)
    console.print(f"\nFill in {place.folder / 'env.py'}; it trains as it is:\n", highlight=False)
    commands = [
        f"seedbed env check {place.folder}", f"seedbed train {place.folder / 'experiment.toml'}",
        f"python -m pytest {place.folder}",
    ]  # fmt: skip
    for command in commands:
        console.print(f"  [bold]{command}[/]", highlight=False)
    return 0


@env_app.command()
def check(
    target: TargetArgument,
    words: Words = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    soak_steps: Annotated[int, typer.Option(min=10, help="Ticks of random play.")] = 1000,
    lanes: Annotated[int, typer.Option(min=1, help="Environment copies in each group.")] = 4,
    groups: Annotated[int, typer.Option(min=1, max=64, help="Groups of a service.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of environments and actions.")] = 1,
    patience: Annotated[float, typer.Option(min=1.0, help="Seconds that each answer of a service may take.")] = 20.0,
    keys: KeysOption = None,
) -> int:
    """Check that an environment or service keeps the rules; exit status 1 if it breaks one."""
    from seedbed.services.tools.cli.env.in_process import CheckOptions, check_environment, check_values_behind
    from seedbed.services.tools.cli.env.target import environment_behind, find_target
    from seedbed.services.tools.cli.env.verdicts import has_failed, merge, render, to_json
    from seedbed.shared.runtime.config import EnvConfig

    options = CheckOptions(lanes=lanes, groups=groups, soak_steps=soak_steps, seed=seed, patience_s=patience)
    chosen = words or []
    found = find_target(target, chosen, keys)
    with notes.status(f"checking {target}") as status:
        if isinstance(found, EnvConfig):
            results = check_environment(found, options)
        else:
            from seedbed.services.tools.cli.env.link import Notes, check_service

            told = Notes(doing=lambda what: status.update(f"{target}: {what}"), listening=tell_address)
            results = check_service(found, options, chosen, told)
            own = [word for word in chosen if word.startswith("env.")]
            if (env := environment_behind(found, own)) is not None:
                results = merge([*results, *check_values_behind(env, options)])
    if as_json:
        print(to_json(target, results))
    else:
        console.print(render(target, results))
    return int(has_failed(results))


@env_app.command()
def bench(
    target: TargetArgument,
    words: Words = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="For all stages together.")] = 20.0,
    lanes: Annotated[int, typer.Option(min=1, help="Environment copies in each group.")] = 64,
    groups: Annotated[int, typer.Option(min=1, max=64, help="Groups of the last stage.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Measure all stages in turn this often; medians are told.")] = 1,
    one_core: Annotated[bool, typer.Option("--one-core", help="Step environments on one core.")] = False,
    keys: KeysOption = None,
) -> int:
    """Measure where the time goes: simulator, rows, encoding, network; one JSON object a line."""
    from seedbed.services.tools.cli.bench import format_result
    from seedbed.services.tools.cli.env.link import Notes
    from seedbed.services.tools.cli.env.speed import BenchOptions, measure
    from seedbed.services.tools.cli.env.target import find_target

    options = BenchOptions(seconds=seconds, lanes=lanes, groups=groups, repeats=repeats, one_core=one_core)
    told = Notes(listening=tell_address)
    for line in measure(target, find_target(target, words or [], keys), options, words or [], told):
        print(format_result("env", line), flush=True)
    return 0


RunOption = Annotated[
    str | None, typer.Option("--run", help="A run whose policy plays.", metavar="RUN", show_default=False)
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the environment.")]
GreedyOption = Annotated[bool, typer.Option("--greedy/--sample", help="With --run: most likely or sampled actions.")]


@env_app.command()
def record(
    target: EnvArgument,
    video: Annotated[Path, typer.Option("--video", help="MP4 file to write.")],
    words: Words = None,
    run: RunOption = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Whole episodes; else as many as take 8 s.", show_default=False)
    ] = None,
    seed: SeedOption = 1,
    greedy: GreedyOption = True,
) -> int:
    """Write a video of random play, or of a run's policy.

    The environment is stepped here: what only a service in another language has is played (seedbed play)."""
    from seedbed.services.tools.cli.env.playing import show
    from seedbed.services.tools.cli.video import write_video

    with show(target, words or [], run, greedy=greedy, seed=seed) as shown, notes.status(f"recording {shown.player}"):
        recorded = write_video(shown.group, shown.ticks, video, fps=shown.fps, episodes=episodes)
    returns = ", ".join(f"{value:g}" for value in recorded.returns) or "none ended"
    told = f"{recorded.seconds:.1f} s, {recorded.frames} frames of {shown.player}; returns {returns}"
    console.print(f"{video}: {told}", highlight=False, soft_wrap=True)
    return 0


def play(
    target: TargetArgument,
    words: Words = None,
    run: RunOption = None,
    keys: Annotated[str, typer.Option(help="Keys for actions, e.g. left=0,right=2,space=1.")] = "",
    link_keys: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default=False, help="With tcp://…: inference's keys, as env check --keys."),
    ] = None,
    fps: Annotated[float, typer.Option(min=0.5, max=120.0, help="With --run: steps a second.")] = 10.0,
    seed: SeedOption = 1,
    greedy: GreedyOption = True,
) -> int:
    """Play an environment or a service in the terminal, or watch a run's policy play an environment.

    A person plays over the protocol: the environment's own service is started, in any language."""
    from seedbed.services.tools.cli.env.game import PersonsGame, PolicysGame
    from seedbed.services.tools.cli.env.terminal import play_in_terminal, require_terminal

    require_terminal(console)
    if run is not None:
        from seedbed.services.tools.cli.env.playing import show

        with show(target, words or [], run, greedy=greedy, seed=seed) as shown:
            watched = PolicysGame(shown.group, shown.ticks, fps=fps)
            play_in_terminal(watched, console)
        console.print(watched.summary(), highlight=False)
        return 0
    from seedbed.services.tools.cli.env.remote_backend import group_of

    with visit_player(target, words or [], link_keys, seed) as visit:
        with notes.status(f"waiting for the service of {target}"):
            group = group_of(visit)
        game = PersonsGame(group, seed, mapping=keys, check=visit.check)
        play_in_terminal(game, console)
        console.print(game.summary(), highlight=False)
    return 0


def visit_player(target: str, words: list[str], keys: Path | None, seed: int) -> "Visit":
    """Start the service of TARGET for a person who plays, or await it. Raises: ConfigError."""
    from seedbed.services.tools.cli.env.in_process import CheckOptions
    from seedbed.services.tools.cli.env.link import Notes
    from seedbed.services.tools.cli.env.target import as_service, find_target
    from seedbed.services.tools.cli.env.visit import Visit
    from seedbed.services.tools.cli.service_folder import ServiceFolder
    from seedbed.shared.runtime.config import EnvConfig

    found = find_target(target, words, keys)
    options = CheckOptions(mode="play", groups=1, lanes=1, seed=seed)
    told = Notes(listening=lambda address: tell_address(address, "actor.mode=play"))
    if isinstance(found, EnvConfig):
        return Visit(as_service(found), options, notes=told)
    if isinstance(found, ServiceFolder):
        with notes.status(f"building the service of {target}"):
            found.build()
    return Visit(found, options, words, told)


def tell_address(address: str, *words: str) -> None:
    """Where a service is awaited, and the further words that it needs."""
    shown = " ".join((f"actor.upstream={address}", *words))
    told = f"start the service now, and have it dial {address}; one that takes seedbed's settings: {shown}"
    notes.print(told, highlight=False, soft_wrap=True)
