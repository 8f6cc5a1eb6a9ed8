"""`seedbed recipes`: what recipes there are, and an experiment with all that its recipe says written out."""

from rich.table import Table

from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.experiment import Experiment
from seedbed.shared.runtime.recipes import FACETS, FOUNDATION, KINDS, is_named, kind_of, read_part


def render_recipes() -> Table:
    """Kinds, and what comes on top of them, for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("recipe", no_wrap=True)
    table.add_column("for", ratio=1)
    for name, part in [*((kind, kind) for kind in KINDS), *((f"+{facet}", facet) for facet in FACETS)]:
        table.add_row(name, read_part(part)[0])
    table.add_row(f"({FOUNDATION})", read_part(FOUNDATION)[0])
    return table


def write_out(experiment: Experiment) -> str:
    """An experiment file with every setting of its recipe, which each service reads alike."""
    run = {key: value for key, value in experiment.sections["run"].items() if key not in ("dir", "resume")}
    return f"# {_head(experiment)}\n\n" + to_toml({**experiment.sections, "run": run})


def _head(experiment: Experiment) -> str:
    """Which recipe, and why or what for."""
    if experiment.recipe is not None:
        return f"{experiment.recipe.name}, chosen for {experiment.recipe.reason}"
    name = experiment.settings.run.recipe
    return f"{name}, for {read_part(kind_of(name))[0]}" if is_named(name) else "no recipe"
