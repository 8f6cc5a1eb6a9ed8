"""What one peer that floods a run costs the others: trained steps and memory, for each kind of flood and each key.

    .venv/bin/python benchmarks/floods.py                    # all kinds and keys, some forty minutes
    .venv/bin/python benchmarks/floods.py --only look,parts  # some kinds

CartPole trains under CURVE. A peer with a key of each role sends as fast as it can, over one connection, to the
services that its key opens. The flood takes processor time itself, so the rate is compared with that beside a process
that burns as much, in turn. Prints one JSON object for each; at the end one with the memory before and a minute after.

`processor` is what flood and burning process used, in cores. `ratio` is the median over the pairs. A virtual machine's
host takes processor time away, more in one second than in another, which moves the rate far more than a flood does:
`at_equal_steal` is the ratio by least squares of the logarithm of each second's rate on the flood and on what was
stolen in that second, and `error` its standard error.
"""

import argparse
import contextlib
import json
import math
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import psutil
import zmq
from gymnasium.spaces import Box, Dict

from seedbed.actor_svc.envs import make_group
from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.machine import stolen_s
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import Hello, Look, ProducerHello
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import space_from_gymnasium
from seedbed.shared.runtime.config import EnvConfig

SETTINGS = ("run.until_return=1e30", "run.steps=0", "launch.video=false", "runtime.keys=keys")
TARGETS = {"environment": ("inference",), "inference": ("learner",), "monitor": ("inference", "learner")}
START_S, SETTLE_S, REST_S, MEMORY_BACK_S = 60.0, 2.5, 1.5, 60.0
MIB = 1 << 20


def main() -> None:
    """Start a run, then one flood after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each flood")
    parser.add_argument("--pairs", type=int, default=4, help="of a flood and a process that burns as much")
    parser.add_argument("--only", help="kinds, with commas between")
    parser.add_argument("--flood", help=argparse.SUPPRESS)  # this program as the flood
    chosen = parser.parse_args()
    if chosen.flood:
        flood(**json.loads(chosen.flood))
        return
    kinds = chosen.only.split(",") if chosen.only else list(KINDS)
    with tempfile.TemporaryDirectory(prefix="seedbed-floods-") as folder, training(Path(folder)) as run:
        before = run.memory()
        for kind in kinds:
            for role, services in TARGETS.items():
                for service in services:
                    print(json.dumps(measure(run, kind, role, service, chosen.seconds, chosen.pairs)), flush=True)
        time.sleep(MEMORY_BACK_S)
        last = {"bench": "floods", "before_mib": before, "memory_mib": run.memory(), "restarts": run.restarts()}
        print(json.dumps(last), flush=True)


class Window(NamedTuple):
    """Measurements of a run over a short time."""

    rate: float  # trained steps per second
    stolen: float  # processor time that the host took away, in cores


class Run:
    """A run that `seedbed train` trains in a folder, read through its status files and metrics pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first = {name: self._status(name).get("incarnation") for name in ("inference-0", "learner")}

    def endpoint(self, service: str) -> str:
        """The ZeroMQ address at which "inference" or "learner" listens."""
        return str(self._status("inference-0" if service == "inference" else service)["endpoint"])

    def window(self, seconds: float) -> Window:
        """Wait for so many seconds and return what was measured in them."""
        trained, stolen, began = self._trained(), stolen_s(), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        return Window((self._trained() - trained) / passed, (stolen_s() - stolen) / passed)

    def memory(self) -> dict[str, int]:
        """Return the resident memory of inference and learner, MiB, by name."""
        processes = {name: psutil.Process(int(self._status(name)["pid"])) for name in self._first}
        return {name: round(process.memory_info().rss / MIB) for name, process in processes.items()}

    def restarts(self) -> list[str]:
        """Return the names of the servers that were restarted since this object was made."""
        return [name for name, first in self._first.items() if self._status(name).get("incarnation") != first]

    def _trained(self) -> float:
        """Return the trained steps so far. Raises: RuntimeError if the learner's metrics page does not answer."""
        for _ in range(10):
            page = read_page(str(self._status("learner")["metrics"])) or {}
            if (steps := page.get("seedbed_learner_trained_steps_total")) is not None:
                return steps
        raise RuntimeError("the learner's page does not answer")

    def _status(self, name: str) -> dict[str, object]:
        return dict(read_status(self.folder / "run" / "services" / f"{name}.json"))


@contextlib.contextmanager
def training(folder: Path) -> Iterator[Run]:
    """Start a CartPole run with keys, yield it once it trains, and stop it at exit."""
    seedbed = str(Path(sys.executable).with_name("seedbed"))
    subprocess.run([seedbed, "keys", "init", "keys"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    command = [seedbed, "train", "cartpole", *SETTINGS, "--run-dir", str(folder / "run")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while not (folder / "run" / "summary.json").exists() and time.monotonic() < deadline:
                with contextlib.suppress(KeyError, RuntimeError):
                    if Run(folder).window(0.5).rate > 0:
                        break
            time.sleep(2 * SETTLE_S)
            yield Run(folder)
        finally:
            process.terminate()
            process.wait()


def measure(run: Run, kind: str, role: str, service: str, seconds: float, pairs: int) -> dict[str, object]:
    """Return the run's rates beside a flood and, in turn, beside a process that computes as much and sends nothing.

    Args:
      kind: one of KINDS.
      role: whose key the flood uses.
      service: which server it floods, "inference" or "learner".
      seconds: how long each flood is measured.
      pairs: how many times a flood and a computing process are measured in turn.
    """
    before = run.memory()
    words = {"kind": kind, "role": role, "service": service, "address": run.endpoint(service), "share": 0.0}
    words |= {"keys": str(run.folder / "keys"), "seconds": seconds + 2 * SETTLE_S}
    flooded, burning, shares, burnt, grown = [], [], [], [], [0]
    for _ in range(pairs):
        windows, share = beside(run, words, seconds)
        grown += [max(now - before[name] for name, now in run.memory().items())]
        flooded.append(windows)
        shares.append(share)
        time.sleep(REST_S)
        windows, share = beside(run, {**words, "kind": "burn", "share": share}, seconds)
        burning.append(windows)
        burnt.append(share)
        time.sleep(REST_S)
    ratio, error = at_equal_steal([x for part in flooded for x in part], [x for part in burning for x in part])
    medians = [_rate(many) / _rate(few) for many, few in zip(flooded, burning, strict=True)]
    return {
        "bench": "floods", "machine": machine_label(), "kind": kind, "key": role, "at": service, "pairs": pairs,
        "flooded": round(statistics.median(map(_rate, flooded))),
        "burning": round(statistics.median(map(_rate, burning))),
        "processor": [round(statistics.median(shares), 2), round(statistics.median(burnt), 2)],
        "ratio": round(statistics.median(medians), 3), "at_equal_steal": round(ratio, 3), "error": round(error, 3),
        "grown_mib": max(grown), "restarts": run.restarts(),
    }  # fmt: skip


def beside(run: Run, words: dict[str, object], seconds: float) -> tuple[list[Window], float]:
    """Start a flood with these arguments of `flood`; return windows of a second beside it, and its share of a core."""
    with subprocess.Popen([sys.executable, __file__, "--flood", json.dumps(words)]) as process:
        time.sleep(SETTLE_S)  # it starts
        used = psutil.Process(process.pid)
        began, spent = time.monotonic(), sum(used.cpu_times()[:2])
        windows = [run.window(1.0) for _ in range(round(seconds))]
        share = (sum(used.cpu_times()[:2]) - spent) / (time.monotonic() - began)
        process.kill()
    return windows, share


def _rate(windows: Sequence[Window]) -> float:
    return statistics.fmean(window.rate for window in windows)


def at_equal_steal(flooded: Sequence[Window], burning: Sequence[Window]) -> tuple[float, float]:
    """Return the ratio of the two rates, corrected for stolen processor time, and its standard error.

    It comes from a least-squares fit of log(rate) in each window on the flood and on what was stolen in that window.
    """
    windows = [*flooded, *burning]
    is_flooded = np.arange(len(windows)) < len(flooded)
    causes = np.stack([np.ones(len(windows)), is_flooded, [window.stolen for window in windows]], 1)
    logs = np.log([max(1.0, window.rate) for window in windows])
    found = np.linalg.lstsq(causes, logs, rcond=None)[0]
    errors = logs - causes @ found
    spread = np.linalg.pinv(causes.T @ causes) * (errors @ errors) / max(1, len(logs) - 3)
    ratio = math.exp(found[1])
    return ratio, ratio * math.sqrt(spread[1, 1])


# The flood itself


def flood(kind: str, role: str, service: str, address: str, share: float, keys: str, seconds: float) -> None:
    """Send messages of a kind as fast as the socket takes them, and read the answers, except those to "look".

    The kind "burn" sends nothing and uses `share` of a core instead.
    """
    deadline = time.monotonic() + seconds
    if kind == "burn":
        began, spent = time.monotonic(), time.process_time()
        while (now := time.monotonic()) < deadline:
            if time.process_time() - spent > share * (now - began):  # by what it got, not by what it asked for
                time.sleep(0.001)
        return
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    folder = Path(keys) / role
    folder = folder if role == "inference" else folder / "default"
    pair = tomllib.loads((folder / "client.key").read_text())
    server = tomllib.loads((folder / f"{service}.pub").read_text())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair["public"].encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair["secret"].encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, server["public"].encode())
    socket.connect(address)
    make = KINDS[kind]
    prepared = [make() for _ in range(1 if kind == "parts" else 256)]  # what it costs to make them slows no flood
    count = 0
    while time.monotonic() < deadline:
        with contextlib.suppress(zmq.Again):
            socket.send_multipart(prepared[count % len(prepared)], zmq.NOBLOCK, copy=kind != "parts")
            count += 1
            if count % 50 == 0 and kind != "look":
                while socket.poll(0):
                    socket.recv_multipart(copy=False)
            continue
        socket.poll(1, zmq.POLLOUT)
    os._exit(0)


_PART = bytes(8 * MIB)
_group = make_group(EnvConfig(id="CartPole-v1"), 1)


def _hello(spec: EnvSpec) -> list[bytes]:
    """Return a HELLO for a group of one lane, with an incarnation that is new each time."""
    hello = Hello(
        library_version="x", actor="flood", incarnation=secrets.randbits(60), group=0, lanes=1, nonce=1, mode="train",
        spec=spec, seeding=_group.seeding, capabilities=(), max_stall_s=10.0,
    )  # fmt: skip
    return [encode(hello)]


def _costly() -> list[bytes]:
    """Return a HELLO of about 50 KB whose observation space is another one each time."""
    high = np.arange(1, 51, dtype=np.float32) + secrets.randbelow(1 << 20)
    leaves: dict[str, gymnasium.Space[object]] = {f"leaf{number:03d}": Box(-high, high) for number in range(120)}
    return _hello(
        EnvSpec(env_id="CartPole-v1", observation=space_from_gymnasium(Dict(leaves)), action=_group.spec.action)
    )


def _producer() -> list[bytes]:
    hello = ProducerHello(
        library_version="x", name="flood", incarnation=secrets.randbits(60), nonce=1, run_id="", spec=None,
        oldest_seq=0, oldest_episodes_seq=0,
    )  # fmt: skip
    return [encode(hello)]


KINDS: dict[str, Callable[[], list[bytes]]] = {
    "hello": lambda: _hello(_group.spec),
    "undecodable": lambda: [secrets.token_bytes(60)],
    "look": lambda: [encode(Look(wants_page=True, wants_picture=True, have_picture=0))],
    "producer_hello": _producer,
    "costly_hello": _costly,
    "parts": lambda: [_PART] * 150,  # a message of 1.2 GB
}

if __name__ == "__main__":
    main()
