"""One experiment under several seeds, one run after the other, and what they say together: mean, interval, curves.

A run may stop because an evaluation passed, so that evaluation says when, not how good. What is compared is therefore
`fresh_return_mean`: the final policy's, over whole episodes on environment seeds that the run never saw.

| in the folder | holds |
|---|---|
| `seed-K/` | the run folder of seed K |
| `seeds.json` | figures of each finished seed, their mean, and its interval |
| `words.json` | the settings that all seeds were started with beyond their file |
| `curves.csv`, `curves.png` | the curves of all seeds |
"""

import csv
import json
import re
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from seedbed.learner_svc.run.folder import PRECISION
from seedbed.learner_svc.run.history import read_metrics
from seedbed.learner_svc.run.measure import mean_over
from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.experiment import (
    keep_words,
    load_experiment,
    look_at,
    merge_words,
    read_words,
    run_name,
    train_command,
)
from seedbed.services.tools.cli.run_state import read_object, read_summary
from seedbed.services.tools.cli.runs import RECORD, RUNS, folders_of
from seedbed.services.tools.cli.table import count, duration, score
from seedbed.services.tools.cli.training import train
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns
from seedbed.shared.protocol.statistics import evaluation_column, own_statistics, training_column

RESULT = "seeds.json"
FRESH_SEED = 777_000  # of the environments, far from every `eval.seed`; the run's own seed is added
OWN = re.compile(r"fresh_(?!return_)(.+)_mean")  # the mean of one of the environment's own statistics, over the same
FIGURES = ("eval_return_mean", "eval_return_std", "eval_episodes", "seconds", "trained_steps", "trained_steps_per_s")
RETURNS = (columns.RETURN_MEAN.name, columns.EVAL_RETURN_MEAN.name)  # with tasks also of each, its name behind a slash
COLUMNS = (
    columns.SECONDS.name, columns.TRAINED_STEPS.name, *RETURNS, columns.ENTROPY.name, columns.EXPLAINED_VARIANCE.name,
    columns.LAG_MEAN.name,
)  # fmt: skip
AXES = {columns.TRAINED_STEPS.name: "trained agent steps", columns.SECONDS.name: "seconds of training"}
CONFIDENCE = 0.95
T_QUANTILES = (  # of Student's t at 0.975, for 1, 2, … degrees of freedom
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
T_LIMIT = 2.042  # from 30 on, rounded up: an interval too wide is no lie


def train_seeds(
    file: Path | None, words: Sequence[str], seeds: int, *, run_dir: Path | None, resume: bool, console: Console,
    episodes: int | None = None,
) -> int:  # fmt: skip
    """Train `run.seed`, `run.seed` + 1, … from scratch, one after the other; the exit code.

    Args:
      run_dir: the folder of all of them; none: runs/<name>-<time>, or with `resume` the newest such folder.
      resume: go on where an earlier call stopped, with its settings: finished seeds are kept, the rest is trained.
      episodes: fresh ones for each final policy; none: `eval.episodes`.
    Raises: ConfigError, before anything starts.
    """
    looked = look_at(file, words)
    name = run_name(file, looked)
    folder = _choose_folder(name, run_dir, resume)
    known = {figures["seed"]: figures for figures in read_object(folder / RESULT).get("seeds", [])} if resume else {}
    if resume:
        words = merge_words(read_words(folder), words)
        looked = look_at(file, words)
    numbers = range(looked.run.seed, looked.run.seed + seeds)
    first = folder / f"seed-{numbers.start}"
    for seed in numbers:
        run = folder / f"seed-{seed}"
        is_there = (run / RECORD).is_file()
        if seed in known:
            continue
        console.rule(f"seed {seed}, {seed - numbers.start + 1} of {seeds}")
        experiment = load_experiment(file, [*words, f"run.seed={seed}"], run_dir=run, resume=is_there, like=first)
        _hand_on_precision(first, run)
        _keep(folder, name, known, words)  # from here on the folder is one of seeds
        if code := train(experiment, console):
            again = train_command(file, *words, "--seeds", str(seeds), "--resume", "--run-dir", str(folder))
            console.print(f"the seeds go on with  [bold]{again}[/]", soft_wrap=True, highlight=False)
            return code
        with console.status("playing the final policy on fresh seeds"):
            fresh = play_fresh(run, seed, experiment.settings.eval.episodes if episodes is None else episodes)
        summary = read_summary(run)
        known[seed] = {"seed": seed} | {key: summary[key] for key in FIGURES if summary.get(key) is not None} | fresh
        _keep(folder, name, known, words)
    curves = {seed: read_metrics(folder / f"seed-{seed}" / "metrics.csv") for seed in sorted(known)}
    write_csv(folder / "curves.csv", curves)
    draw(folder / "curves.png", name, curves)
    console.print(render(read_object(folder / RESULT), folder))
    return 0


def _hand_on_precision(first: Path, run: Path) -> None:
    """Have a seed compute as the first one was measured to: a choice by time may fall otherwise each time."""
    if (first / PRECISION).is_file() and not (run / PRECISION).exists():
        try:
            run.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(first / PRECISION, run / PRECISION)
        except OSError as error:
            raise ConfigError(f"{run}: {error.strerror}; give another --run-dir") from error


def play_fresh(run_dir: Path, seed: int, episodes: int) -> dict[str, float]:
    """The final policy over whole episodes on seeds of its own; with tasks so many of each, and the mean over them."""
    from seedbed.services.tools.cli.evaluate import by_task, load_policy, play_episodes

    trained = load_policy(run_dir)
    greedy = trained.settings.eval.greedy
    played = {
        task: play_episodes(player, episodes, greedy=greedy, seed=FRESH_SEED + seed)
        for task, player in by_task(trained).items()
    }
    returns = {task: item.returns for task, item in played.items()}
    own = mean_over([item.own_means for item in played.values()])
    fresh = {
        "fresh_return_mean": statistics.fmean(float(values.mean()) for values in returns.values()),
        "fresh_episodes": sum(map(len, returns.values())),
    }
    if episodes > 1:
        variance = sum(float(values.var(ddof=1)) / len(values) for values in returns.values())
        fresh["fresh_standard_error"] = variance**0.5 / len(returns)
    fresh |= {f"fresh_return_mean/{task}": float(values.mean()) for task, values in returns.items() if task}
    return fresh | {f"fresh_{name}_mean": mean for name, mean in own.items() if mean is not None}


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the mean over all possible seeds lies, with 95 % confidence, if they spread normally; None for one seed."""
    if len(values) < 2:
        return None
    quantile = T_QUANTILES[len(values) - 2] if len(values) - 2 < len(T_QUANTILES) else T_LIMIT
    mean, half = statistics.fmean(values), quantile * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def _choose_folder(name: str, run_dir: Path | None, resume: bool) -> Path:
    if resume and run_dir is None:
        earlier = [folder for folder in folders_of(name) if (folder / RESULT).is_file()]
        if not earlier:
            raise ConfigError(f"no seeds of {name!r} under {RUNS.resolve()} to go on with; give --run-dir")
        return earlier[0].resolve()
    folder = run_dir or RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (folder / RECORD).is_file():
        raise ConfigError(f"{folder}: holds a single run; give --seeds another --run-dir")
    if resume and not (folder / RESULT).is_file():
        raise ConfigError(f"{folder}: no seeds to go on with here; start without --resume, or give another --run-dir")
    if not resume and (folder / RESULT).exists():
        raise ConfigError(f"{folder}: already holds seeds; go on with --resume, or give another --run-dir")
    return folder.resolve()


def _keep(folder: Path, name: str, known: Mapping[int, Mapping[str, Any]], words: Sequence[str]) -> None:
    """Write what is known so far, and what the next call needs to go on."""
    figures = [known[seed] for seed in sorted(known)]
    returns = [float(item["fresh_return_mean"]) for item in figures]
    result = {
        "experiment": name, "machine": machine_label(), "seeds": figures,
        "mean": statistics.fmean(returns) if returns else None, "confidence": CONFIDENCE, "interval": interval(returns),
    }  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n")
        keep_words(folder, words)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; give another --run-dir") from error


def render(result: Mapping[str, Any], folder: Path) -> RenderableType:
    """A line for each seed, and the mean with its interval."""
    between = result["interval"]
    spread = f", 95 % interval {score(between[0])} to {score(between[1])}" if between else ""
    table = Table(
        title=f"{result['experiment']}: mean {score(result['mean'])} over {len(result['seeds'])} seeds{spread}",
        caption=str(folder), title_style="bold", box=SIMPLE_HEAD,
    )  # fmt: skip
    own = {match[1]: key for item in result["seeds"] for key in item if (match := OWN.fullmatch(key))}
    for heading in (
        "seed", "return, fresh episodes", "± s.e.", *own, "return, last evaluation", "trained steps", "time",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for item in result["seeds"]:
        table.add_row(
            str(item["seed"]), score(item["fresh_return_mean"]), score(item.get("fresh_standard_error")),
            *(score(item.get(key)) for key in own.values()), score(item.get("eval_return_mean")),
            count(item.get("trained_steps")), duration(item.get("seconds")),
        )  # fmt: skip
    return table


def write_csv(path: Path, curves: Mapping[int, Sequence[Mapping[str, str]]]) -> None:
    """Write the curves of all seeds into one table."""
    names = own_statistics(next((curve[0] for curve in curves.values() if curve), {}))
    own = [column(name) for name in names for column in (training_column, evaluation_column)]
    names = [*COLUMNS, *own, *(f"{name}/{task}" for task in _tasks(curves) for name in RETURNS)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("seed", *names))
        for seed, curve in curves.items():
            writer.writerows([seed, *(row.get(name, "") for name in names)] for row in curve)


def draw(path: Path, title: str, curves: Mapping[int, Sequence[Mapping[str, str]]]) -> bool:
    """Returns over steps and over time, a colour for each seed; evaluations as marks. False without matplotlib.

    With tasks these are means over them, and each task has a panel below.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, ScalarFormatter
    except ImportError:
        return False
    tasks = _tasks(curves)
    over_all = "mean over the tasks" if tasks else ""
    steps = columns.TRAINED_STEPS.name
    panels = [(steps, over_all, ""), (columns.SECONDS.name, over_all, "")]
    panels += [(steps, task, f"/{task}") for task in tasks]
    num_columns = 3 if tasks else 2
    num_rows = -(-len(panels) // num_columns)
    figure = Figure(figsize=(5 * num_columns, 4 * num_rows), layout="constrained")
    for place, (x, name, suffix) in enumerate(panels):
        axes = figure.add_subplot(num_rows, num_columns, place + 1)
        for number, (seed, curve) in enumerate(curves.items()):
            axes.plot(*_points(curve, x, RETURNS[0] + suffix), color=f"C{number % 10}", alpha=0.6, label=f"seed {seed}")
            axes.plot(*_points(curve, x, RETURNS[1] + suffix), "o", color=f"C{number % 10}")
        axes.set_title(name)
        axes.set_xlabel(AXES[x])
        axes.xaxis.set_major_formatter(EngFormatter(sep="") if x == steps else ScalarFormatter())
        axes.grid(alpha=0.3)
        if place % num_columns == 0:
            axes.set_ylabel("return (line: training, mark: evaluation)")
        if place == 0:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=10, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=90)
    return True


def _tasks(curves: Mapping[int, Sequence[Mapping[str, str]]]) -> list[str]:
    """The tasks of the runs, in their order; none in runs with one environment."""
    head = next((curve[0] for curve in curves.values() if curve), {})
    return [name.partition("/")[2] for name in head if name.startswith(f"{RETURNS[0]}/")]


def _points(curve: Sequence[Mapping[str, str]], x: str, y: str) -> tuple[list[float], list[float]]:
    """Return the values of both columns, from the rows in which both have one."""
    rows = [row for row in curve if row.get(x) and row.get(y)]
    return [float(row[x]) for row in rows], [float(row[y]) for row in rows]
