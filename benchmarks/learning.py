"""Learning curves of shipped experiments: `seedbed train --seeds`, and its figures as JSON lines.

    .venv/bin/python benchmarks/learning.py cartpole --seeds 5
    .venv/bin/python benchmarks/learning.py memory --seeds 3 --label memory-feedforward policy.lstm=0

Prints one JSON object for each seed and one for all of them (`services/tools/cli/seeds.py` says what the figures mean).
With --out FOLDER it writes FOLDER/LABEL.csv and FOLDER/LABEL.png, the curves of all seeds.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from seedbed.services.tools.cli.experiment import find_experiment
from seedbed.services.tools.cli.run_state import read_object
from seedbed.services.tools.cli.seeds import RESULT, train_seeds


def main(argv: Sequence[str] | None = None) -> None:
    """Train all seeds of an experiment, print their results as JSON, and copy the curves where --out says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("words", nargs="*", metavar="section.key=value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="fresh ones, after training")
    parser.add_argument("--label", default="")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_intermixed_args(argv)
    label = chosen.label or chosen.experiment
    with tempfile.TemporaryDirectory(prefix="seedbed-learning-") as name:
        folder = Path(name) / "seeds"
        code = train_seeds(
            find_experiment(chosen.experiment), ["launch.video=false", f"run.name={label}", *chosen.words],
            chosen.seeds, run_dir=folder, resume=False, console=Console(stderr=True), episodes=chosen.episodes,
        )  # fmt: skip
        if code:
            raise SystemExit(f"{chosen.experiment}: training ended with exit code {code}")
        result = read_object(folder / RESULT)
        seeds = result.pop("seeds")
        for figures in seeds:
            print(json.dumps({"label": label, **figures}))
        longest = max(figures["seconds"] for figures in seeds)
        whole = {"label": label, **result, "words": chosen.words, "longest_seconds": longest}
        print(json.dumps(whole), flush=True)
        if chosen.out is not None:
            chosen.out.mkdir(parents=True, exist_ok=True)
            for suffix in ("csv", "png"):
                shutil.copyfile(folder / f"curves.{suffix}", chosen.out / f"{label}.{suffix}")


if __name__ == "__main__":
    main()
