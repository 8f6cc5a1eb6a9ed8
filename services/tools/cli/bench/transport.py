"""How fast steps travel: real processes and sockets, both ends' real protocol code, no batcher and no torch.

One server process answers every STEP at the end of the drain that brought it; client processes keep all their groups
outstanding, as many as 64 actors have. The more there are, the more each wake-up of a process is worth. Latency is that
of a group's STEP until its ACT is in the client's hands.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from seedbed.services.tools.cli.bench.transport_peers import OBSERVATION_BYTES, ClientReport, ServerReport
from seedbed.shared.errors import SeedbedError
from seedbed.shared.net.keyring import Keyring

LOOPS = ("asyncio", "uvloop")
LEAST_S = 0.2  # of one measurement
GRACE_S = 30.0  # for a process to start and to end


@dataclass(frozen=True, slots=True)
class TransportScenario:
    """How many clients send what at once."""

    name: str
    clients: int  # processes
    groups: int  # of each client, all outstanding at once
    lanes: int  # of each group
    observation_bytes: int = OBSERVATION_BYTES  # of each lane


SCENARIOS = (
    TransportScenario("lock-step", clients=1, groups=1, lanes=1),
    TransportScenario("single lanes", clients=2, groups=64, lanes=1),
    TransportScenario("groups of 16", clients=2, groups=64, lanes=16),
    TransportScenario("groups of 64", clients=2, groups=64, lanes=64),
)


IMAGES = TransportScenario("images", clients=2, groups=2, lanes=16, observation_bytes=4 * 84 * 84)
ROUNDS = 2  # plain and CURVE take turns, so that what else the machine does meets both


def measure(seconds: float) -> Iterator[dict[str, str | int | float]]:
    """Every scenario on both loops, sharing the time; the rates are those of the last half of each."""
    share_s = max(LEAST_S, seconds / (len(SCENARIOS) * len(LOOPS)))
    for scenario in SCENARIOS:
        for loop in LOOPS:
            yield run_scenario(scenario, loop, share_s)


def measure_curve(seconds: float) -> Iterator[dict[str, str | int | float]]:
    """What CURVE costs: each scenario and one with images, in turn without keys and with.

    A scenario's last line compares the means of its rounds, with keys over without: `curve_ratio` of requests a second,
    `curve_cpu_ratio` of the server's processor time for one.
    """
    scenarios = (*SCENARIOS, IMAGES)
    share_s = max(LEAST_S, seconds / (len(scenarios) * 2 * ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        Keyring(keys).init()
        for scenario in scenarios:
            results: dict[str, list[dict[str, str | int | float]]] = {"no": [], "yes": []}
            for _ in range(ROUNDS):
                for curve, chosen in (("no", None), ("yes", keys)):
                    result = run_scenario(scenario, "uvloop", share_s, chosen) | {"curve": curve}
                    results[curve].append(result)
                    if curve == "yes" and len(results[curve]) == ROUNDS:
                        result["curve_ratio"] = _compare(results, "requests_per_s")
                        result["curve_cpu_ratio"] = _compare(results, "server_cpu_us_per_request")
                    yield result


def _compare(results: dict[str, list[dict[str, str | int | float]]], figure: str) -> float:
    """A figure's sum with keys over that without."""
    sums = {curve: sum(float(result[figure]) for result in found) for curve, found in results.items()}
    return round(sums["yes"] / max(sums["no"], 1e-9), 3)


def run_scenario(
    scenario: TransportScenario, loop: str, seconds: float, keys: Path | None = None
) -> dict[str, str | int | float]:
    """Start a server and its clients, wait for their reports, add them up; with keys the link is CURVE."""
    folder = str(keys or "")
    with ExitStack() as stack:
        server = stack.enter_context(_start("server", loop, folder))
        address = cast("IO[str]", server.stdout).readline().strip()
        if not address:
            raise SeedbedError(f"bench transport: the server did not start (exit code {server.wait()})")
        words = (address, scenario.groups, scenario.lanes, scenario.observation_bytes, seconds)
        clients = [stack.enter_context(_start("client", loop, folder, *words)) for _ in range(scenario.clients)]
        reports = [ClientReport(**json.loads(_finish(client, seconds + GRACE_S))) for client in clients]
        served = ServerReport(**json.loads(_finish(server, GRACE_S)))
    requests_per_s = sum(report.requests / report.seconds for report in reports)
    return {
        "scenario": scenario.name,
        "loop": loop,
        "clients": scenario.clients,
        "groups": scenario.clients * scenario.groups,
        "lanes": scenario.lanes,
        "observation_bytes": scenario.observation_bytes,
        "seconds": round(seconds, 1),
        "requests_per_s": round(requests_per_s),
        "env_steps_per_s": round(requests_per_s * scenario.lanes),
        "p50_ms": round(1e3 * max(report.latency_p50_s for report in reports), 3),
        "p99_ms": round(1e3 * max(report.latency_p99_s for report in reports), 3),
        "server_cpu_us_per_request": round(1e6 * served.cpu_s / max(1, served.requests), 1),
    }


def _start(role: str, *words: str | float) -> subprocess.Popen[str]:
    """One of the processes; it ends when its input does."""
    command = [sys.executable, "-P", "-m", "seedbed.services.tools.cli.bench.transport_peers", role, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Close its input and wait; its report."""
    try:
        report, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise SeedbedError(f"bench transport: a process gave no report within {timeout_s:.0f} s") from error
    if process.returncode:
        raise SeedbedError(f"bench transport: a process failed with exit code {process.returncode}")
    return report
