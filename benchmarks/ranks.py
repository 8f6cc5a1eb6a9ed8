"""How training scales with learner ranks: updates that sleep instead of computing, with 1, 2, 4 and 8 ranks.

    .venv/bin/python benchmarks/ranks.py                     # some five minutes
    .venv/bin/python benchmarks/ranks.py --sizes 1,2 --update-ms 20

A whole run of CartPole for each number of ranks, by `seedbed train`'s own launcher, with an algorithm whose loss takes
`--update-ms` asleep, as on an accelerator, so that many ranks fit on few cores. All else is real: sockets, batches,
rounds of the ranks, sums of gradients, optimiser, publishing. Prints one JSON object for each run, in rounds over the
sizes, and one with the medians: `of_linear` is the rate of each rank divided by the rate of one alone.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from pydantic import Field

from seedbed.learner_svc.algorithms.algorithm import Algorithm, LossOutput, Prepared
from seedbed.learner_svc.algorithms.config import AlgorithmSettings
from seedbed.learner_svc.sources.batch import Experience

LANES, UNROLL_LENGTH = 4, 8  # of a rank's batch: little to compute and to copy
EXPERIMENT = f"""
[run]
name = "ranks"
[env]
id = "CartPole-v1"
[actor]
groups = 2
lanes = 64
[learner]
batch = {LANES}
unroll_length = {UNROLL_LENGTH}
max_policy_lag = 100000
precision = "fp32"
tensorboard = false
[policy]
network = "mlp"
hidden = [16]
[algorithm]
name = "ranks:Asleep"
[eval]
every_s = 0.0
[launch]
actors = 1
learner_threads = 1
"""


class AsleepSettings(AlgorithmSettings):
    """How long an update takes."""

    update_ms: float = Field(50.0, ge=0, description="Time that the loss sleeps, milliseconds.")


class Asleep(Algorithm):
    """An algorithm whose loss takes time and next to no processor, and whose gradient is zero."""

    Settings = AsleepSettings

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """Sleep; return zero, with a gradient for one tensor of the weights, whose others keep the zeros they have."""
        time.sleep(self.config.update_ms / 1e3)
        parameter = next(self.policy.parameters())
        return LossOutput(loss=0.0 * parameter.sum(), diagnostics=torch.zeros(0))


def main() -> None:
    """Train with each number of ranks in turn."""
    from seedbed.services.tools.cli.bench import format_result
    from seedbed.services.tools.cli.bench.experiment import measure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,2,4,8", help="numbers of ranks, with commas between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run; the last half is measured")
    parser.add_argument("--update-ms", type=float, default=50.0)
    chosen = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    sizes = [int(size) for size in chosen.sizes.split(",")]
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="seedbed-ranks-") as folder:
        experiment = Path(folder) / "ranks.toml"
        experiment.write_text(EXPERIMENT)
        for _ in range(chosen.rounds):
            for size in sizes:
                words = [f"launch.learners={size}", f"algorithm.update_ms={chosen.update_ms}"]
                (result,) = measure(str(experiment), chosen.seconds, words)
                rate = float(result["trained_steps_per_s"]) / size
                rates[size].append(rate)
                figures = {"ranks": size, "steps_per_s_each": round(rate, 1), "restarts": result["restarts"]}
                print(format_result("ranks", figures), flush=True)
    medians = {size: statistics.median(found) for size, found in rates.items()}
    alone = medians[sizes[0]]
    of_linear = {size: round(rate / alone, 3) for size, rate in medians.items()}
    print(json.dumps({"bench": "ranks", "update_ms": chosen.update_ms, "of_linear": of_linear}), flush=True)


if __name__ == "__main__":
    main()
