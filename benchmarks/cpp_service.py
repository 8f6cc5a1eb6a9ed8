"""How fast the C++ environment service steps, with a server that answers at once.

The server is that of `seedbed bench transport`: real sockets, codec and sessions, no policy. Processes of
services/corridor_cpp step the corridor; each group sends its next STEP when it has its ACT.

    .venv/bin/python benchmarks/cpp_service.py
    .venv/bin/python benchmarks/cpp_service.py --processes 2 --groups 8 --lanes 64 --seconds 5 --repeats 5

Needs what services/corridor_cpp needs to be built. Prints one JSON object: the median of the repeats and each of them.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from services.cli.bench.transport_peers import Server
from services.cli.doctor import machine_label
from shared.net.reactor import Reactor

SERVICE = Path(__file__).parents[1] / "services" / "corridor_cpp"
WARM_UP_S, LOOK_EVERY_S, START_LOOKS = 1.0, 0.05, 200


@contextmanager
def services(address: str, processes: int, groups: int, lanes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of the service that dial the address; asked to leave at the end."""
    words = [f"actor.upstream={address}", f"actor.groups={groups}", f"actor.lanes={lanes}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    started = [subprocess.Popen(["./corridor", *words], cwd=SERVICE, env=environment) for _ in range(processes)]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """Processor time of a process so far, seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(processes: int, groups: int, lanes: int, seconds: float) -> dict[str, float]:
    """Requests a second once every group steps, and processor time of both ends for each."""
    with Reactor() as reactor:
        server = Server(reactor, None)
        with services(server.router.endpoint, processes, groups, lanes) as started:
            for _ in range(START_LOOKS):
                await asyncio.sleep(LOOK_EVERY_S)
                if len(server.table.sessions) == processes * groups:
                    break
            else:
                raise SystemExit(f"only {len(server.table.sessions)} of {processes * groups} groups came")
            await asyncio.sleep(WARM_UP_S)
            requests, at = server.requests, time.perf_counter()
            own_s, their_s = time.process_time(), sum(map(processor_s, started))
            await asyncio.sleep(seconds)
            requests, elapsed = server.requests - requests, time.perf_counter() - at
            return {
                "requests_per_s": requests / elapsed,
                "server_cpu_us_per_request": 1e6 * (time.process_time() - own_s) / requests,
                "service_cpu_us_per_request": 1e6 * (sum(map(processor_s, started)) - their_s) / requests,
            }


def main(argv: Sequence[str] | None = None) -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description="Speed of the C++ environment service.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--groups", type=int, default=8, help="of each process, all outstanding at once")
    parser.add_argument("--lanes", type=int, default=64, help="of each group")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(argv)
    subprocess.run(["make", "-s", "-C", str(SERVICE)], check=True)
    runs = []
    for _ in range(given.repeats):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runs.append(runner.run(measure(given.processes, given.groups, given.lanes, given.seconds)))
    medians = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
    steps = [round(run["requests_per_s"] * given.lanes) for run in runs]
    result = {
        "bench": "cpp_service", "machine": machine_label(), "processes": given.processes,
        "groups": given.processes * given.groups, "lanes": given.lanes, "seconds": given.seconds,
        "env_steps_per_s": round(statistics.median(steps)), "env_steps_per_s_of_runs": steps, **medians,
    }  # fmt: skip
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
