"""`seedbed env …` and `seedbed play`: what each command line means. Imports what a command needs when it is called."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
    from services.cli.env.scaffold import choose_place, write_service

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
) -> int:
    """Check that an environment or service keeps the rules; exit status 1 if it breaks one."""
    from services.cli.env.in_process import CheckOptions, check_environment
    from services.cli.env.target import find_target
    from services.cli.env.verdicts import has_failed, render, to_json
    from shared.runtime.config import EnvConfig

    options = CheckOptions(lanes=lanes, groups=groups, soak_steps=soak_steps, seed=seed, patience_s=patience)
    chosen = words or []
    found = find_target(target, chosen)
    with notes.status(f"checking {target}") as status:
        if isinstance(found, EnvConfig):
            results = check_environment(found, options)
        else:
            from services.cli.env.link import check_service

            results = check_service(found, options, chosen, lambda text: status.update(f"{target}: {text}"))
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
) -> int:
    """Measure where the time goes: simulator, rows, encoding, network; one JSON object a line."""
    from services.cli.bench import format_result
    from services.cli.env.speed import BenchOptions, measure
    from services.cli.env.target import find_target

    options = BenchOptions(seconds=seconds, lanes=lanes, groups=groups)
    for line in measure(target, find_target(target, words or []), options, words or []):
        print(format_result("env", line), flush=True)
    return 0
