"""A service that knows nothing of seedbed but its protocol: flags as uint8 of 0…1, four actions, five steps an episode.

An episode ends with `truncated`. It reads the variables that docs/protocol.md lists, and nothing else.
"""

import contextlib
import os
import random
import signal
import sys
import time

import msgpack
import numpy as np
import zmq

HELLO, WELCOME, REJECT, STEP, ACT, CHALLENGE, PING, PONG, BYE, ERROR = range(1, 11)
FIRST, TRUNCATED = 4, 2
STEPS = 5
FLAGS = 4
SPECIFICATION = [
    "Flags-v0", [], [1, 0, [FLAGS], b"\0", b"\1", ""], [2, 7, FLAGS, 0], 0, ["return", "length", "last_flag"],
]  # fmt: skip
REFUSED = 78


class FlagsGroup:
    """So many lanes, and what is known of their session."""

    def __init__(self, number, lanes):
        self.number, self.lanes = number, lanes
        self.session = self.nonce = None
        self.seq, self.run_id = 0, ""
        self.say_at, self.wait_s = 0.0, 0.2
        self.outstanding = None

    def reset(self, seed):
        """Rows that are all first."""
        self.generator = np.random.default_rng(seed)
        self.flag = self.generator.integers(0, FLAGS, self.lanes)
        self.time = np.zeros(self.lanes, np.int64)
        self.score = np.zeros(self.lanes, np.float32)
        return self.pack(np.zeros(self.lanes, np.float32), np.full(self.lanes, FIRST, np.uint8))

    def step(self, actions):
        """Next-step autoreset: a lane whose row before was truncated begins anew."""
        is_over = self.time == STEPS
        reward = np.where(is_over, 0.0, actions == self.flag).astype(np.float32)
        self.score = np.where(is_over, 0.0, self.score + reward).astype(np.float32)
        self.time = np.where(is_over, 0, self.time + 1)
        self.flag = self.generator.integers(0, FLAGS, self.lanes)
        flags = np.where(is_over, FIRST, np.where(self.time == STEPS, TRUNCATED, 0)).astype(np.uint8)
        return self.pack(reward, flags)

    def pack(self, reward, flags):
        """Bits and payload of a STEP."""
        observation = np.eye(FLAGS, dtype=np.uint8)[self.flag]
        parts = [array.tobytes() for array in (observation, reward, flags)]
        frame = b"".join(part + bytes(-len(part) % 8) for part in parts)
        ended = (flags & TRUNCATED).nonzero()[0]
        if not len(ended):
            return 0, [frame]
        rows = np.stack([self.score[ended], self.time[ended], self.flag[ended]], 1).astype(np.float32)
        return 1, [frame, rows.tobytes()]


class FlagsService:
    """One connection, its groups, and a loop."""

    def __init__(self):
        self.mode = os.environ["SEEDBED_ACTOR__MODE"]
        count, lanes = (int(os.environ[f"SEEDBED_ACTOR__{key}"]) for key in ("GROUPS", "LANES"))
        self.groups = [FlagsGroup(number, lanes) for number in range(count)]
        self.incarnation = random.getrandbits(64)
        self.name = os.environ["SEEDBED_ACTOR__NAME"]
        self.beat_s, self.ping_at, self.heard_at = 1.0, 0.0, time.monotonic()
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.connect(os.environ["SEEDBED_ACTOR__UPSTREAM"].split(",")[0])

    def send(self, header, *payload):
        """Or not, if there is no connection: the protocol heals it."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([msgpack.packb(header), *payload], zmq.NOBLOCK)

    def greet(self, group, now):
        """HELLO, again and again."""
        group.session = None
        group.nonce = group.nonce or random.getrandbits(64)
        self.send([HELLO, 1, 1, "flags", "0", self.name, self.incarnation, group.number, group.lanes, group.nonce,
                   self.mode, group.run_id, SPECIFICATION, "group", ["reset"], 10.0])  # fmt: skip
        group.say_at, group.wait_s = now + group.wait_s, min(2.0, 2 * group.wait_s)

    def step(self, group, rows):
        """Send rows under the next seq, and keep them."""
        bits, payload = rows
        group.outstanding, group.sent_ms = rows, int(time.monotonic() * 1000)
        self.send([STEP, group.session, group.seq, bits], *payload)

    def receive(self, header, payload):
        """One message from inference."""
        kind, *fields = header
        self.heard_at = time.monotonic()
        if kind == WELCOME:
            self.welcome(*fields[:11])
        elif kind == REJECT and not fields[2]:
            sys.exit(print(f"refused: {fields[3]}", file=sys.stderr) or REFUSED)
        elif kind == ACT:
            self.act(fields, payload)
        elif kind in (CHALLENGE, BYE):
            self.lose(kind, fields)
        elif kind == PONG:
            self.compare(fields[0], {report[0]: report for report in fields[3]})

    def welcome(self, nonce, session, _epoch, protocol, _role, run_id, _capabilities, beat_s, _lease_s, seed, resumed):
        """Fresh rows at first; the outstanding ones after that, under their seq if the session is the same."""
        if protocol != 1:
            sys.exit(print(f"protocol {protocol} is not spoken here", file=sys.stderr) or REFUSED)
        for group in self.groups:
            if nonce == group.nonce:
                is_new = run_id != group.run_id
                group.nonce, group.session, group.wait_s = None, session, 0.2
                group.seq = group.seq if resumed else 0
                group.run_id, self.beat_s = run_id, beat_s
                self.step(group, group.reset(seed) if is_new else group.outstanding)

    def act(self, fields, payload):
        """Step, if it answers the outstanding STEP."""
        session, seq, _version, bits, reset_seed = fields[:5]
        for group in self.groups:
            if group.session == session and group.seq == seq and [len(frame) for frame in payload] == [8 * group.lanes]:
                rows = group.reset(reset_seed) if bits & 1 else group.step(np.frombuffer(payload[0], np.int64))
                group.seq += 1
                self.step(group, rows)

    def lose(self, kind, fields):
        """The session is over; the run perhaps too."""
        if kind == BYE and fields[1] == "run_finished":
            self.leave()
        for group in self.groups:
            if group.session is not None and fields[0] in (0, group.session):
                self.greet(group, time.monotonic())

    def compare(self, sent_ms, reports):
        """Send again what a PONG shows missing."""
        for group in self.groups:
            if group.session is None or sent_ms == 0:
                continue
            if group.session not in reports:
                self.greet(group, time.monotonic())
            elif sent_ms > group.sent_ms and (reports[group.session][1] < group.seq or reports[group.session][2] == 5):
                self.step(group, group.outstanding)

    def leave(self):
        """BYE for everything, status 0."""
        self.send([BYE, 0, "stopped"])
        self.socket.close()
        sys.exit(0)

    def run(self):
        """Until somebody says that it is over."""
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        while True:
            now = time.monotonic()
            for group in self.groups:
                if group.session is None and now >= group.say_at:
                    self.greet(group, now)
            if now >= self.ping_at and any(group.session for group in self.groups):
                self.ping_at = now + self.beat_s
                self.send([PING, int(now * 1000), []])
            if self.socket.poll(20):
                header, *payload = self.socket.recv_multipart()
                try:
                    self.receive(msgpack.unpackb(header), payload)
                except (ValueError, TypeError, IndexError):
                    continue  # what cannot be read is dropped


if __name__ == "__main__":
    FlagsService().run()
