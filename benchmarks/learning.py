"""Learning curves of shipped experiments: trains each seed from scratch and keeps figures, CSV and a picture.

    .venv/bin/python benchmarks/learning.py cartpole --seeds 5
    .venv/bin/python benchmarks/learning.py memory --seeds 3 --label memory-feedforward policy.lstm=0

A run may stop because an evaluation passed, so that evaluation says when, not how good. `fresh_return_mean` is the
final policy's, over whole episodes on environment seeds that the run never saw.

Prints one JSON object for each seed and one for all of them. With --out FOLDER it writes FOLDER/LABEL.csv, one row per
evaluation or second of each run, and FOLDER/LABEL.png.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from services.cli.doctor import machine_label
from services.cli.evaluate import by_task, load_policy, play_episodes

COLUMNS = ("seconds", "trained_steps", "return_mean", "eval_return_mean", "entropy", "explained_variance", "lag_mean")
FIGURES = ("eval_return_mean", "eval_return_std", "eval_episodes", "seconds", "trained_steps", "trained_steps_per_s")
FRESH_SEED = 777_000  # of the environments, far from every `eval.seed`; the run's own seed is added


def train(experiment: str, seed: int, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train one seed through the command line; its summary."""
    run_dir = folder / f"seed-{seed}"
    command = [sys.executable, "-m", "services.cli.app", "train", experiment, "--run-dir", str(run_dir)]
    done = subprocess.run([*command, f"run.seed={seed}", "launch.video=false", *words], stdout=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{experiment}, seed {seed}: training ended with exit code {done.returncode}")
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def play_fresh(run_dir: Path, seed: int, episodes: int) -> dict[str, float]:
    """The final policy over whole episodes on seeds of its own; with tasks so many of each, and the mean over them."""
    trained = load_policy(run_dir)
    greedy = trained.settings.eval.greedy
    returns = {
        task: play_episodes(player, episodes, greedy=greedy, seed=FRESH_SEED + seed).returns
        for task, player in by_task(trained).items()
    }
    variance = sum(float(values.var(ddof=1)) / len(values) for values in returns.values())
    means = {f"fresh_return_mean/{task}": float(values.mean()) for task, values in returns.items() if task}
    return {
        "fresh_return_mean": sum(float(values.mean()) for values in returns.values()) / len(returns),
        "fresh_standard_error": variance**0.5 / len(returns),
        "fresh_episodes": sum(map(len, returns.values())),
        **means,
    }


def read_curve(run_dir: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def points(curve: Sequence[dict[str, str]], x: str, y: str) -> tuple[list[float], list[float]]:
    """Where both columns have a figure."""
    rows = [row for row in curve if row.get(x) and row.get(y)]
    return [float(row[x]) for row in rows], [float(row[y]) for row in rows]


def write_csv(path: Path, curves: dict[int, list[dict[str, str]]]) -> None:
    """One table for all seeds."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("seed", *COLUMNS))
        for seed, curve in curves.items():
            writer.writerows([seed, *(row.get(name, "") for name in COLUMNS)] for row in curve)


def draw(path: Path, label: str, curves: dict[int, list[dict[str, str]]]) -> None:
    """Returns over steps and over time, a colour for each seed; evaluations as marks."""
    matplotlib.use("Agg")
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, (x, title) in zip(
        axes, (("trained_steps", "trained agent steps"), ("seconds", "seconds of training")), strict=True
    ):
        for number, (seed, curve) in enumerate(curves.items()):
            axis.plot(*points(curve, x, "return_mean"), color=f"C{number}", alpha=0.6, label=f"seed {seed}")
            axis.plot(*points(curve, x, "eval_return_mean"), "o", color=f"C{number}")
        axis.set_xlabel(title)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("return (line: training, mark: evaluation)")
    axes[0].legend()
    figure.suptitle(label)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("words", nargs="*", metavar="section.key=value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="fresh ones, after training")
    parser.add_argument("--label", default="")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_intermixed_args(argv)
    label = chosen.label or chosen.experiment
    summaries, curves = [], {}
    with tempfile.TemporaryDirectory(prefix="seedbed-learning-") as folder:
        for seed in range(1, chosen.seeds + 1):
            summary = train(chosen.experiment, seed, chosen.words, Path(folder))
            curves[seed] = read_curve(Path(folder) / f"seed-{seed}")
            summary |= play_fresh(Path(folder) / f"seed-{seed}", seed, chosen.episodes)
            summaries.append(summary)
            figures = {name: value for name, value in summary.items() if name in FIGURES or name.startswith("fresh_")}
            print(json.dumps({"label": label, "seed": seed, **figures}), flush=True)
    returns = [summary["fresh_return_mean"] for summary in summaries]
    whole = {
        "label": label, "machine": machine_label(), "seeds": chosen.seeds, "words": chosen.words,
        "fresh_return_means": returns, "mean": statistics.fmean(returns),
        "longest_seconds": max(summary["seconds"] for summary in summaries),
    }  # fmt: skip
    print(json.dumps(whole))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        write_csv(chosen.out / f"{label}.csv", curves)
        draw(chosen.out / f"{label}.png", label, curves)


if __name__ == "__main__":
    main()
