"""What a megabyte of unrolls or weights costs inference and learner, through shared memory and over loopback TCP.

    .venv/bin/python benchmarks/shared_memory.py              # Pong's unrolls, five pairs
    .venv/bin/python benchmarks/shared_memory.py --weights    # Pong's weights
    .venv/bin/python benchmarks/shared_memory.py --curve      # the socket's side encrypted
    .venv/bin/python benchmarks/shared_memory.py --run pong   # whole runs in turn, with and without shared memory

A producer sends unrolls of noise as fast as credit allows; the learner's end receives them and copies their lanes into
batches, which nobody trains on. With --weights the learner's end publishes weights as fast as they are asked for. Both
ends run the code of the services: outbox, sockets, sessions, ledger and queue. The two ways take turns, in processes of
their own. Prints one JSON object for each, with processor time of all threads of a process in milliseconds for 10^6
bytes; at the end one with the ratio of the two ways, the median over the pairs.
With --run they are trained steps per second, and processor time of inference and learner for 1000 of them, in the last
--seconds of each run; the ratio is that of the trained steps.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import uvloop

from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.rank_connections import send_unrolls
from seedbed.inference_svc.segment_offer import no_segment
from seedbed.inference_svc.upstream import LearnerLink
from seedbed.learner_svc.link.admission import Identity
from seedbed.learner_svc.link.producer_sessions import ProducerSessions, SendToProducer, UnrollReceived
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.services.tools.cli.bench.transport_peers import input_ended
from seedbed.services.tools.cli.doctor import machine_label
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.shared.net.dialler import Dialler
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.keys import bind_keys, dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router
from seedbed.shared.protocol.codec import decode
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import Get
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.segment import Segment
from seedbed.shared.protocol.spaces import space_from_gymnasium
from seedbed.shared.runtime.allocator import keep_freed_memory
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, RunConfig

ENV_ID = "bench:unrolls"
MB = 10**6
WAYS = ("shared_memory", "socket")
LOOK_S = 0.2
START_S, MIN_TRAINED = 120.0, 20_000  # a run is measured from so many trained steps on
SERVERS = {"learner": "learner", "inference": "inference-0"}
NUM_WEIGHTS = 2  # different ones, as a learner has just written what it publishes
NUM_BUFFERS_MB = 64  # what the producer sends in turn: more than the processor's caches have


def main() -> None:
    """Run the pairs, and print what each way took and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=1500.0, help="megabytes that each measurement sends")
    parser.add_argument("--weights", action="store_true", help="weights instead of unrolls")
    parser.add_argument("--weights-mb", type=float, default=2.7, help="megabytes of the weights")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=24, help="of an unroll")
    parser.add_argument("--batch", type=int, default=12, help="lane-unrolls of a batch")
    parser.add_argument("--pixels", type=int, default=84, help="width and height of an observation, bytes")
    parser.add_argument("--curve", action="store_true", help="encrypt the socket")
    parser.add_argument("--run", help="an experiment that is trained instead")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run that are measured")
    parser.add_argument("--end", nargs=2, help=argparse.SUPPRESS)  # this program as one end
    parser.add_argument("--keys", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.end:
        run_end(chosen)
        return
    with tempfile.TemporaryDirectory(prefix="seedbed-shared-memory-") as folder:
        if chosen.curve:
            Keyring(Path(folder)).init()
        measured: dict[str, list[float]] = {way: [] for way in WAYS}
        for pair in range(chosen.pairs):
            for way in WAYS if pair % 2 == 0 else WAYS[::-1]:
                if chosen.run:
                    found = train(way, chosen.run, chosen.seconds)
                    measured[way].append(found["trained_steps_per_s"])
                else:
                    found = measure(way, folder if chosen.curve else "")
                    measured[way].append(found["inference_ms_per_mb"] + found["learner_ms_per_mb"])
                head = {"bench": "shared_memory", "machine": machine_label(), "way": way, "curve": chosen.curve}
                print(json.dumps(head | found), flush=True)
    ratios = [round(shared / socket, 3) for shared, socket in zip(*(measured[way] for way in WAYS), strict=True)]
    print(json.dumps({"bench": "shared_memory", "ratio": round(statistics.median(ratios), 3), "pairs": ratios}))


def measure(way: str, keys: str) -> dict[str, float]:
    """Start both ends and return the processor time of each for 10^6 bytes, and how many MB a second passed."""
    words = [sys.executable, *sys.argv, "--keys", keys]
    learner = subprocess.Popen(
        [*words, "--end", "learner", way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert learner.stdout is not None
    address = learner.stdout.readline().strip()
    sent = subprocess.run([*words, "--end", address, way], stdout=subprocess.PIPE, text=True, check=True)
    received, _ = learner.communicate("")
    return json.loads(sent.stdout) | json.loads(received)


def train(way: str, experiment: str, seconds: float) -> dict[str, float]:
    """Train an experiment, and return trained steps per second and the processor time that 1000 of them took."""
    with tempfile.TemporaryDirectory(prefix="seedbed-shared-memory-") as folder:
        command = [
            str(Path(sys.executable).with_name("seedbed")), "train", experiment, "--run-dir", f"{folder}/run",
            "run.until_return=1e30", "run.steps=0", "launch.video=false", "eval.every_s=1e6",
        ]  # fmt: skip
        if way == "socket":
            command.append("inference.shared_memory_bytes=0")
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + START_S
            while look(folder)["trained"] < MIN_TRAINED:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{experiment} does not train:\n{log.read_text()}")
                time.sleep(1.0)
            before, began = look(folder), time.monotonic()
            time.sleep(seconds)
            after, passed = look(folder), time.monotonic() - began
        finally:
            process.terminate()
            process.wait()
    if (after["shared"] > 0) is not (way == "shared_memory"):
        raise SystemExit(f"{after['shared']:.0f} unrolls were sent through shared memory")
    thousands = (after["trained"] - before["trained"]) / 1e3
    taken = {f"{name}_ms_per_1000": 1e3 * (after[name] - before[name]) / thousands for name in SERVERS}
    updates_per_s = (after["updates"] - before["updates"]) / passed
    found = {"trained_steps_per_s": 1e3 * thousands / passed, "updates_per_s": updates_per_s, **taken}
    return {name: round(value, 3) for name, value in found.items()}


def look(folder: str) -> dict[str, float]:
    """Return a run's totals so far, 0 before its services answer: trained steps, updates, processor seconds of each."""
    status = {name: read_status(Path(folder) / "run" / "services" / f"{file}.json") for name, file in SERVERS.items()}
    pages = {name: read_page(str(found["metrics"])) if found else None for name, found in status.items()}
    learner, inference = (pages[name] or {} for name in ("learner", "inference"))
    times = {name: psutil.Process(int(found["pid"])).cpu_times() for name, found in status.items() if found}
    return {
        "trained": learner.get("seedbed_learner_trained_steps_total", 0.0),
        "updates": learner.get("seedbed_learner_updates_total", 0.0),
        "shared": inference.get("seedbed_unrolls_shared_total", 0.0),
        **{name: found.user + found.system for name, found in times.items()},
    }


def run_end(chosen: argparse.Namespace) -> None:
    """Be the learner's end or, with an address, the producer's, and print what was measured."""
    keep_freed_memory()
    record = RecordSpec(a_spec(chosen.pixels), 20)
    end, way = chosen.end
    keys = Path(chosen.keys) if chosen.keys else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if end == "learner":
            weights = round(chosen.weights_mb * MB) if chosen.weights else 0
            found = runner.run(receive(record, chosen.batch, keys, weights))
        elif chosen.weights:
            number = max(1, round(chosen.mb / chosen.weights_mb))
            found = runner.run(take_weights(record, end, way, chosen.weights_mb, number, keys))
        else:
            size = record.layout(chosen.lanes).num_bytes
            num_unrolls = max(1, round(chosen.mb * MB / size / chosen.batch)) * chosen.batch  # so that batches are full
            found = runner.run(send(record, end, way, chosen.lanes, num_unrolls, keys))
    print(json.dumps({name: round(value, 4) for name, value in found.items()}), flush=True)


def a_spec(pixels: int) -> EnvSpec:
    """An environment with square observations of bytes, as Atari's are."""
    return EnvSpec(
        env_id=ENV_ID,
        observation=space_from_gymnasium(gymnasium.spaces.Box(0, 255, (pixels, pixels), np.uint8)),
        action=space_from_gymnasium(gymnasium.spaces.Discrete(6)),
    )


class LearnerEnd:
    """A learner's socket, sessions and batches, without an update thread: full batches are given back at once.

    With `weights` it publishes others of so many bytes for each GET.
    """

    def __init__(self, reactor: Reactor, record: RecordSpec, batch: int, keys: Path | None, weights: int) -> None:
        self.num_bytes = 0  # that came or went
        self._weights = (
            [secrets.token_bytes(weights) for _ in range(1 + NUM_BUFFERS_MB * MB // weights)] if weights else []
        )
        self._publisher = Publisher()
        self._publisher.describe("bench", "{}")
        self._loop = reactor.loop
        self._ledger = Ledger(epoch=1, window_lanes=2 * batch, lease_s=60.0)
        run = Run(RunConfig(), EvalConfig(), epoch=1, patience_s=60.0)
        identity = Identity(1, "bench", 1, record.unroll_length, 1.0, 60.0)
        self.sessions = ProducerSessions(
            identity, EnvConfig(id=ENV_ID), self._ledger, self._publisher, run, work_age_s=lambda: 0.0
        )
        self._source: QueueSource[tuple[int, int]] = QueueSource(record, batch=batch)
        self.sessions.adopt(record.spec, self._source.check)
        run.start(0.0)
        self.router = Router(
            reactor, "tcp://127.0.0.1:0", on_message=self._receive, on_drained=self._drained,
            keys=bind_keys(keys, Role.LEARNER),
        )  # fmt: skip

    def _receive(self, route: bytes, frames: list[bytes]) -> None:
        if self._weights and isinstance(decode(frames[0]), Get):
            version = self._publisher.version + 1
            self._publisher.publish(version, self._weights[version % len(self._weights)])
            self.num_bytes += len(self._weights[0])
        for action in self.sessions.receive(route, frames, self._loop.time()):
            if isinstance(action, SendToProducer):
                self.router.send(action.route, action.frames)
            elif isinstance(action, UnrollReceived):
                self.num_bytes += len(action.frame)
                self._source.offer((action.key.producer.id, action.key.seq), action.lanes, action.frame)

    def _drained(self) -> None:
        producers = self._ledger.sessions
        while (copied := self._source.fill()) or (batch := self._source.take()) is not None:
            for session, seq in copied:
                self._ledger.copied(producers[session], seq)
            if not copied and batch is not None:
                self._source.release(batch)
        for (session, seq), lanes in self._source.used():
            self._ledger.applied(producers[session], seq, lanes)
        for item in self.sessions.credits():
            self.router.send(item.route, item.frames)


async def receive(record: RecordSpec, batch: int, keys: Path | None, weights: int) -> dict[str, float]:
    """Say the address, receive or publish until standard input ends, and return the processor time for 10^6 bytes."""
    with Reactor() as reactor:
        end = LearnerEnd(reactor, record, batch, keys, weights)
        print(end.router.endpoint, flush=True)
        began = time.process_time()
        await input_ended()
        end.sessions.close()
        end.router.close()
        return {"learner_ms_per_mb": 1e3 * (time.process_time() - began) / (end.num_bytes / MB)}


async def send(
    record: RecordSpec, address: str, way: str, lanes: int, num_unrolls: int, keys: Path | None
) -> dict[str, float]:
    """Send so many unrolls, wait until all are acknowledged, and return the processor time for 10^6 bytes."""
    size = record.layout(lanes).num_bytes
    noise = np.random.default_rng(1)
    buffers = [bytearray(noise.bytes(size)) for _ in range(max(2, NUM_BUFFERS_MB * MB // size))]

    def advance(link: LearnerLink) -> bool:
        outbox = link.outbox
        pushed = outbox.acked_unrolls + outbox.unacked_lanes // lanes
        while pushed < num_unrolls and outbox.can_send(lanes):
            outbox.push(lanes, [buffers[pushed % len(buffers)]])
            pushed += 1
        return outbox.acked_unrolls == num_unrolls

    link, found = await be_inference(record, address, way, keys, num_unrolls * size / MB, advance)
    return found | {"unroll_mb": size / MB, "shared": link.outbox.shared_unrolls / num_unrolls}


async def take_weights(
    record: RecordSpec, address: str, way: str, mb: float, number: int, keys: Path | None
) -> dict[str, float]:
    """Ask for weights of `mb` megabytes so many times, and return the processor time for 10^6 bytes."""

    def advance(link: LearnerLink) -> bool:
        return link.have_version >= number  # each GET gets another version

    link, found = await be_inference(record, address, way, keys, number * mb, advance)
    return found | {"weights_mb": mb, "shared": link.shared_weights / number}


async def be_inference(
    record: RecordSpec, address: str, way: str, keys: Path | None, mb: float, advance: Callable[[LearnerLink], bool]
) -> tuple[LearnerLink, dict[str, float]]:
    """Connect to the learner's end and call `advance` after each message, until it says that all `mb` have passed."""
    sessions = LearnerSessions(
        name="bench", incarnation=secrets.randbits(50), library_version="0", load=lambda: (),
        make_segment=partial(Segment, 32 << 20) if way == "shared_memory" else no_segment,
    )  # fmt: skip
    with Reactor() as reactor:
        ended = asyncio.Event()

        def go_on() -> None:
            for frames in sessions.poll(reactor.loop.time()):
                dialler.send(frames)
            if advance(sessions.main):
                ended.set()
            send_unrolls(sessions, dialler)

        def take(frames: list[bytes]) -> None:
            sessions.receive(decode(frames[0]), frames[1:], reactor.loop.time())
            go_on()

        def changed(event: str) -> None:
            (sessions.connected if event == "connected" else sessions.disconnected)(reactor.loop.time())
            go_on()

        sessions.introduce("", record.spec, reactor.loop.time())
        began, started = time.process_time(), time.perf_counter()
        dialler = Dialler(
            reactor, [address], on_message=take, on_event=changed, keys=dial_keys(keys, Role.INFERENCE, Role.LEARNER)
        )
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
            go_on()
        seconds, processor_s = time.perf_counter() - started, time.process_time() - began
        found_way = sessions.main.describe_way().get("unrolls_by")
        if found_way != way:
            raise SystemExit(f"the unrolls went by {found_way}: {sessions.main.describe_way()}")
        sessions.close()
        dialler.close()
    return sessions.main, {"inference_ms_per_mb": 1e3 * processor_s / mb, "mb_per_s": mb / seconds}


if __name__ == "__main__":
    main()
