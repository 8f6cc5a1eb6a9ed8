"""One run whose actors go 1→4→1 and whose replicas of inference go 1→2→1 while it trains: does steps/s follow?

    .venv/bin/python benchmarks/scaling.py --out docs/curves

Environments wait as a simulator elsewhere would (benchmarks/waiting_env.py), so that actors are what limits a small
machine. Services are started and stopped (SIGTERM) one by one; nobody else is restarted. Prints one JSON object for
each phase and one for the run; with --out FOLDER it writes scaling.csv, two rows a second, and scaling.png there.
"""

import argparse
import csv
import itertools
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.experiment import Experiment, load_experiment
from seedbed.services.tools.cli.machine import service_environment
from seedbed.services.tools.cli.plan import Process, plan_run, usable_cores
from seedbed.services.tools.cli.run_state import read_summary
from seedbed.services.tools.cli.runs import SNAPSHOT
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.services.tools.cli.training import reserved_addresses
from seedbed.shared.runtime.service import DIE_WITH_PARENT

PHASES = ((1, 1), (2, 1), (4, 1), (4, 2), (2, 2), (1, 2), (1, 1))  # actors, replicas
EVERY_S = 0.5
START_S, STOP_S = 120.0, 15.0
EXPERIMENT = """
[run]
name = "scaling"
[env]
id = "benchmarks.waiting_env:make"
kwargs = {{ step_s = {step_s} }}
[actor]
lanes = {lanes}
[learner]
unroll_length = 16
batch = 32
max_policy_lag = 1000
tensorboard = false
[policy]
hidden = [32, 32]
[launch]
actors = 4
inference = 2
eval_actors = 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Totals at one moment: agent steps that all actors so far have taken, and steps that were trained on."""

    seconds: float
    actors: int
    replicas: int
    acted_steps: float
    trained_steps: float


class Services:
    """Starts and stops a run's processes by name and samples their metrics. A context manager: kills what is left."""

    def __init__(self, experiment: Experiment, processes: Sequence[Process]) -> None:
        self._run_dir = experiment.run_dir
        self._processes = {item.name: item for item in processes}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._acted: dict[str, float] = {}  # newest count of each actor process, kept after it has ended
        self._trained = 0.0
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        self.exit_codes: dict[str, int] = {}

    def __enter__(self) -> "Services":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.kill()
            child.wait()

    def running(self, role: str) -> list[str]:
        """Return the names of the running processes of a role, in the plan's order."""
        return [name for name, item in self._processes.items() if item.role == role and name in self._children]

    def start(self, name: str) -> None:
        """Start a process and wait until it is ready. Exits with its errors if it does not start."""
        process = self._processes[name]
        process.status_file(self._run_dir).unlink(missing_ok=True)
        environment = {**service_environment(os.environ), **process.environment, DIE_WITH_PARENT: str(os.getpid())}
        with process.error_file(self._run_dir).open("ab") as errors:
            self._children[name] = subprocess.Popen(process.command, env=environment, stdout=errors, stderr=errors)
        deadline = time.monotonic() + START_S
        while not read_status(process.status_file(self._run_dir)):
            if self._children[name].poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start: {process.error_file(self._run_dir).read_text()[-2000:]}")
            self.watch()

    def stop(self, name: str) -> None:
        """Send SIGTERM to a process, wait until it has ended, and keep its exit code."""
        child = self._children[name]
        child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while child.poll() is None and time.monotonic() < deadline:
            self.watch()
        self.exit_codes[f"{name} ({child.pid})"] = child.wait(1.0)
        del self._children[name]

    def scale(self, role: str, number: int) -> None:
        """Start or stop processes of a role until the first `number` of them run."""
        names = [name for name, item in self._processes.items() if item.role == role]
        for name in names[:number]:
            if name not in self._children:
                self.start(name)
        for name in reversed(names[number:]):
            if name in self._children:
                self.stop(name)

    def watch(self) -> None:
        """Sleep for a moment, and take a sample every EVERY_S."""
        time.sleep(0.02)
        seconds = time.monotonic() - self._began
        if not self.samples or seconds >= self.samples[-1].seconds + EVERY_S:
            self.samples.append(self._sample(seconds))

    def _sample(self, seconds: float) -> Sample:
        """Read the metrics and return them as a sample at `seconds`."""
        for name in self.running("actor"):
            steps = self._metric(name, "seedbed_actor_steps_total")
            if steps is not None:
                self._acted[f"{name} {self._children[name].pid}"] = steps
        self._trained = self._metric("learner", "seedbed_learner_trained_steps_total") or self._trained
        return Sample(
            seconds=seconds,
            actors=len(self.running("actor")),
            replicas=len(self.running("inference")),
            acted_steps=sum(self._acted.values()),
            trained_steps=self._trained,
        )

    def left(self) -> list[Mapping[str, float]]:
        """Return the `inference_left` log entries, which replicas write when they end."""
        lines = []
        for process in self._processes.values():
            if process.role == "inference":
                lines += [json.loads(line) for line in process.log_file(self._run_dir).read_text().splitlines()]
        return [line for line in lines if line["event"] == "inference_left"]

    def _metric(self, name: str, metric: str) -> float | None:
        address = read_status(self._processes[name].status_file(self._run_dir)).get("metrics")
        return ((address and read_page(str(address))) or {}).get(metric)


def measure(services: Services, phase_s: float) -> list[Sample]:
    """Go through the phases, then stop all processes; return the samples since the first step."""
    services.start("learner")
    for actors, replicas in PHASES:
        services.scale("inference", replicas)
        services.scale("actor", actors)
        until = time.monotonic() + phase_s
        while time.monotonic() < until:
            services.watch()
    samples = [item for item in services.samples if item.acted_steps]
    for role in ("actor", "inference"):
        services.scale(role, 0)
    services.stop("learner")
    return samples


def rates(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """Return a row for each two consecutive samples: time, number of services, and steps per second between them."""
    rows = []
    for before, after in itertools.pairwise(samples):
        span_s = after.seconds - before.seconds
        rows.append(
            {
                "seconds": round(after.seconds, 2), "actors": after.actors, "replicas": after.replicas,
                "acted_steps_per_s": round((after.acted_steps - before.acted_steps) / span_s, 1),
                "trained_steps_per_s": round((after.trained_steps - before.trained_steps) / span_s, 1),
            }
        )  # fmt: skip
    return rows


def longest_gap_s(samples: Sequence[Sample]) -> float:
    """Return the longest time without a step of any environment, seconds, to the precision of two samples a second."""
    longest, at = 0.0, samples[0].seconds
    for before, after in itertools.pairwise(samples):
        if after.acted_steps > before.acted_steps:
            longest, at = max(longest, after.seconds - at), after.seconds
    return round(longest, 2)


def phases(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the median rates of each phase; rows from a change between two phases are left out."""
    found: list[dict[str, float]] = []
    begin = 0
    for index, row in enumerate(rows):
        is_last = index + 1 == len(rows)
        if is_last or (rows[index + 1]["actors"], rows[index + 1]["replicas"]) != (row["actors"], row["replicas"]):
            part, begin = rows[begin : index + 1], index + 1
            if (row["actors"], row["replicas"]) not in PHASES:
                continue
            figures = {
                name: round(statistics.median(item[name] for item in part), 1)
                for name in ("acted_steps_per_s", "trained_steps_per_s")
            }
            found.append({"actors": row["actors"], "replicas": row["replicas"], **figures})
    return found


def draw(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Draw steps per second over time as a PNG, and below it the number of services."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    seconds = [row["seconds"] for row in rows]
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=(3, 1))
    above.plot(seconds, [row["acted_steps_per_s"] for row in rows], label="acted")
    above.plot(seconds, [row["trained_steps_per_s"] for row in rows], label="trained", alpha=0.7)
    above.set_ylabel("agent steps/s")
    below.step(seconds, [row["actors"] for row in rows], where="post", label="actors")
    below.step(seconds, [row["replicas"] for row in rows], where="post", label="replicas of inference")
    below.set_xlabel("seconds")
    for axis in (above, below):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    """Run all phases, print their rates as JSON, and write the samples and a plot where --out says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="section.key=value")
    parser.add_argument("--phase-seconds", type=float, default=20.0, help="how long each of the seven phases lasts")
    parser.add_argument("--lanes", type=int, default=16, help="of each of an actor's two groups")
    parser.add_argument("--step-ms", type=float, default=5.0, help="what a tick of a group takes")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_intermixed_args(argv)
    with tempfile.TemporaryDirectory(prefix="seedbed-scaling-") as folder:
        file = Path(folder) / "scaling.toml"
        file.write_text(EXPERIMENT.format(step_s=chosen.step_ms / 1000, lanes=chosen.lanes))
        experiment = load_experiment(file, chosen.words, run_dir=Path(folder) / "run", resume=False)
        with reserved_addresses(experiment) as addresses:
            processes = plan_run(experiment, addresses, usable_cores())
            for name in ("services", "logs"):
                (experiment.run_dir / name).mkdir(parents=True)
            (experiment.run_dir / SNAPSHOT).write_text(to_toml(experiment.sections), encoding="utf-8")
            with Services(experiment, processes) as services:
                samples = measure(services, chosen.phase_seconds)
                left, codes = services.left(), services.exit_codes
        summary = read_summary(experiment.run_dir)
    rows = rates(samples)
    for phase in phases(rows):
        print(json.dumps(phase))
    whole = {
        "machine": machine_label(), "words": chosen.words, "lanes": chosen.lanes, "step_ms": chosen.step_ms,
        "longest_gap_s": longest_gap_s(samples), "all_left_with_0": not any(codes.values()),
        "lost_lanes_when_replicas_left": [line["lost_lanes"] for line in left],
        "dropped_unrolls": summary.get("dropped_unrolls"), "restarts": summary.get("restarts"),
        "acted_steps": samples[-1].acted_steps,
    }  # fmt: skip
    print(json.dumps(whole))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        with (chosen.out / "scaling.csv").open("w", newline="") as table:
            writer = csv.DictWriter(table, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        draw(chosen.out / "scaling.png", rows)


if __name__ == "__main__":
    main()
