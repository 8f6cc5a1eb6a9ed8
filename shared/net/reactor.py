"""One edge-triggered drain for every ZeroMQ socket of an asyncio loop.

A ZeroMQ file descriptor only says "something changed", so three traps decide this file:

  - a drain that stops early is never woken again, hence it re-arms itself;
  - a send, and any look at EVENTS, may swallow the wake-up of a receive, hence each is followed by another look;
  - the descriptor is always writable, hence nobody waits for it with `add_writer`.

What bounds what: a drain takes at most `MAX_DRAIN_MESSAGES` or `MAX_DRAIN_S`, then timers and other sockets have their
turn. A message has at most `MAX_FRAMES` frames; longer ones are dropped and counted. What a peer may waste of the time
is up to the channel's `Gate`.
"""

import asyncio
import errno
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import zmq

MAX_DRAIN_MESSAGES = 256
MAX_DRAIN_S = 0.002
MAX_FRAMES = 640  # an UNROLL of 256 leaves, with stacks of all of them, has some more than 512
MAX_SOCKETS = 8192  # libzmq's own limit is 1023, of which a process with many connections to dial has two for each
STALL_S = 0.5  # a loop that was late by more than this may not judge its peers' silence
LAG_PERIOD_S = 0.1
WORST_LAG_TICKS = 10
FIGURES = ("received", "sent", "refused", "oversized", "dropped", "unfinished_drains")  # of a channel

Buffer = bytes | bytearray | memoryview
Handler = Callable[[list[bytes]], bool | None]  # False: the message moved nothing on

_EVENTS = int(zmq.EVENTS)
_POLLIN, _POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactorStatistics:
    """What a reactor has done so far."""

    received: int  # messages
    sent: int  # messages
    refused: int  # sends that found no peer or no room
    oversized: int  # messages dropped for having too many frames
    dropped: int  # messages dropped unread, for their senders had wasted too much time
    unfinished_drains: int  # drains that ran out of budget
    loop_lag_s: float  # how late the last timer fired
    worst_loop_lag_s: float  # the latest that any fired within the last `WORST_LAG_TICKS` or up to twice as many


class Gate(Protocol):
    """Decides which messages of a router are read, and is told what useless messages have cost."""

    @property
    def barred(self) -> Mapping[Any, Any]:
        """The peers whose messages are dropped, always in one object; while it is empty the gate need not be asked."""

    def admits(self, route: bytes) -> bool:
        """Whether the next message, which came over this route, is to be read."""

    def charge(self, route: bytes, seconds: float, size: int) -> None:
        """Take note that a message of `size` bytes over this route was useless, and how long its handling took."""

    def drop(self, route: bytes, size: int) -> None:
        """Take note that a message of `size` bytes over this route was dropped unread."""


class Channel:
    """One socket on the loop. Owns socket and reader; only the loop's thread may call it.

    Large because the bounds of a connection (messages, time, high-water marks) are counted where it is read.

    Its memory is bounded by the socket's high-water marks: a message is handed on as soon as it is read.
    """

    def __init__(
        self,
        reactor: "Reactor",
        socket: zmq.Socket[bytes],
        on_frames: Handler,
        on_drained: Callable[[], None] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.socket = socket
        self.senders: set[int] | None = None  # descriptors that messages came over, where somebody wants to know
        self.received = self.sent = self.refused = self.oversized = self.dropped = self.unfinished_drains = 0
        self._reactor = reactor
        self._loop = reactor.loop
        self._on_frames, self._on_drained, self._gate = on_frames, on_drained, gate
        # The backend's own methods: zmq.Socket's wrappers cost twice as much for arguments that we never give.
        backend: Any = super(zmq.Socket, socket)
        self._raw_receive, self._raw_send, self._raw_get = backend.recv, backend.send, backend.get
        self._is_closed = self._is_armed = self._is_draining = self._is_unfinished = False
        self._is_routed = socket.type == zmq.ROUTER
        self._newest: zmq.Frame | None = None  # first frame of the newest message, behind its route
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._wake)
        self._arm()  # what came before the reader was there

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: nothing is received or sent any more."""
        return self._is_closed

    def is_drained(self) -> bool:
        """Whether no message waits to be read. If one does, a read is scheduled: this look may use up its wake-up."""
        if not self._is_unfinished and not self._raw_get(_EVENTS) & _POLLIN:
            return True
        if not self._is_draining and not self._is_armed and not self._is_closed:
            self._arm()
        return False

    def peer_property(self, name: str) -> str:
        """Return a property, set in the handshake, of the sender of the message being handed on; empty if it has none.

        This takes time: ask once for each route.
        """
        try:
            return str(self._newest.get(name)) if self._newest is not None else ""
        except zmq.ZMQError:  # EINVAL: no such property
            return ""

    def sender(self) -> int:
        """Return the descriptor that the newest message came over; -1 if libzmq does not say."""
        try:
            return int(self._newest.get(zmq.SRCFD)) if self._newest is not None else -1
        except zmq.ZMQError:
            return -1

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Queue one message, copied, without blocking; return False if there is no peer, or no room for it."""
        if self._is_closed:
            return False
        if not self._is_draining and not self._is_armed:
            self._arm()
        send, last = self._raw_send, len(frames) - 1
        for attempt in (1, 2):
            position = 0
            try:
                while position < last:
                    send(frames[position], _MORE)
                    position += 1
                send(frames[last], _LAST)
                self.sent += 1
                return True
            except zmq.Again:
                if position:
                    self._finish_dropping(frames[position + 1 :])
                # libzmq looks at new connections at most once a millisecond; reading EVENTS makes it look now.
                elif attempt == 1 and self._raw_get(_EVENTS) & _POLLOUT:
                    continue
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
            break
        self.refused += 1
        return False

    def close(self, linger_ms: int = 0) -> None:
        """Remove the reader, then close; what is queued may still leave for `linger_ms`. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._descriptor)  # first: a closed descriptor under a reader crashes libuv
            self.socket.close(linger_ms)
            self._reactor.forget(self)

    def _finish_dropping(self, frames: Sequence[Buffer]) -> None:
        """The peer left in the middle of a message: libzmq drops up to its last frame, so give it the rest."""
        for position, frame in enumerate(frames, 1):
            try:
                self._raw_send(frame, _MORE if position < len(frames) else _LAST)
            except zmq.ZMQError:
                return

    def _arm(self) -> None:
        """Schedule another look at the socket before the loop sleeps."""
        self._is_armed = True
        self._loop.call_soon(self._look)

    def _wake(self) -> None:
        """The descriptor changed. If a look is due anyway, leave it to that: one drain for each turn of the loop."""
        if not self._is_armed:
            self._drain()

    def _look(self) -> None:
        """Drain if there is something that the descriptor may no longer tell of."""
        self._is_armed = False
        if not self._is_closed and (self._is_unfinished or self._raw_get(_EVENTS) & _POLLIN):
            self._drain()

    def _drain(self) -> None:
        """Read until empty or out of budget. An exception of the callback propagates, with the rest re-armed."""
        if self._is_closed or self._is_draining:
            return
        receive, on_frames, is_routed, gate = self._raw_receive, self._on_frames, self._is_routed, self._gate
        barred = gate.barred if gate is not None else None
        begin = perf_counter()
        stop = begin + MAX_DRAIN_S
        self._is_draining = self._is_unfinished = True
        try:
            for _ in range(MAX_DRAIN_MESSAGES):
                try:
                    # A route always has more behind it, and bytes cost a third of a Frame.
                    frames = [receive(_LAST)] if is_routed else []
                    frame = receive(_LAST, False)
                except zmq.Again:
                    self._is_unfinished = False
                    break
                self._newest = frame
                route = frames[0] if is_routed else b""
                if barred and gate is not None and not gate.admits(route):
                    self._pass_over(frame, route, gate)
                    end = perf_counter()
                else:
                    frames.append(frame.bytes)
                    while frame.more:  # a Frame knows `more` from its own call: cheaper than asking the socket
                        frame = receive(_LAST, False)
                        if len(frames) <= MAX_FRAMES:
                            frames.append(frame.bytes)
                    self.received += 1
                    is_useless = len(frames) > MAX_FRAMES
                    if is_useless:
                        self.oversized += 1
                    else:
                        is_useless = on_frames(frames) is False
                    end = perf_counter()
                    if is_useless and gate is not None:
                        gate.charge(route, end - begin, sum(map(len, frames)))
                if self.senders is not None:
                    self.senders.add(self.sender())
                if self._is_closed or end > stop:
                    break
                begin = end
        finally:
            self._is_draining = False
            if self._is_unfinished and not self._is_closed:
                self.unfinished_drains += 1
                if not self._is_armed:
                    self._arm()
        if not self._is_unfinished and not self._is_closed and self._on_drained is not None:
            self._on_drained()

    def _pass_over(self, frame: zmq.Frame, route: bytes, gate: Gate) -> None:
        """Read the rest of a message and keep nothing of it."""
        self.dropped += 1
        size = len(frame)
        while frame.more:
            frame = self._raw_receive(_LAST, False)
            size += len(frame)
        gate.drop(route, size)


class Reactor:
    """Every socket of one loop, their context, and the loop's lag.

    A context manager; only the loop's thread may call it, except for `statistics`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        if hasattr(os, "SCHED_BATCH"):  # libzmq's own thread then lets us finish, and takes what we sent in one go
            self.context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_BATCH)
        self._channels: set[Channel] = set()
        self._past = [0] * len(FIGURES)  # figures of closed channels
        self._lag_s = self._worst_lag_s = self._former_worst_lag_s = 0.0
        self._ticks = 0
        self._stall_end = -math.inf
        self._due = self.loop.time() + LAG_PERIOD_S
        self._timer = self.loop.call_at(self._due, self._measure_lag)

    def open(
        self,
        socket: zmq.Socket[bytes],
        on_frames: Handler,
        on_drained: Callable[[], None] | None = None,
        gate: Gate | None = None,
    ) -> Channel:
        """Serve a socket made with `context`.

        Args:
          on_frames: called for each message; may send, and may close any channel. Returns False if it moved nothing on.
          on_drained: called whenever the socket has just been emptied.
          gate: decides which messages of a router are read; None: all.
        """
        channel = Channel(self, socket, on_frames, on_drained, gate)
        self._channels.add(channel)
        return channel

    def forget(self, channel: Channel) -> None:
        """Stop tracking a closed channel; its counters stay in the totals."""
        self._channels.discard(channel)
        self._past = [past + figure for past, figure in zip(self._past, _figures(channel), strict=True)]

    def statistics(self) -> ReactorStatistics:
        """Return the totals of all channels and the loop's lag. Any thread may call it."""
        totals = [sum(column) for column in zip(self._past, *map(_figures, tuple(self._channels)), strict=True)]
        return ReactorStatistics(
            **dict(zip(FIGURES, totals, strict=True)),
            loop_lag_s=self._lag_s,
            worst_loop_lag_s=max(self._worst_lag_s, self._former_worst_lag_s),
        )

    def last_stall_end(self, now: float) -> float:
        """Loop time at which the loop last came back from a stall of over half a second; -inf if it never did.

        Exact even if the caller's timer runs before the one that measures.
        """
        return now if now - self._due > STALL_S else self._stall_end

    def close(self) -> None:
        """Close every channel and the context; blocks while closed sockets linger. Idempotent."""
        self._timer.cancel()
        for channel in self._channels:
            channel.socket.disable_monitor()  # before anyone who takes its events is closed: see Dealer
        for channel in tuple(self._channels):
            channel.close()
        self.context.destroy(linger=0)  # with sockets that no channel took over: the context would wait for them

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _measure_lag(self) -> None:
        """Note how late this timer is, then set the next."""
        now = self.loop.time()
        self._lag_s = max(0.0, now - self._due)
        self._ticks += 1
        if self._ticks % WORST_LAG_TICKS == 0:
            self._former_worst_lag_s, self._worst_lag_s = self._worst_lag_s, 0.0
        self._worst_lag_s = max(self._worst_lag_s, self._lag_s)
        if self._lag_s > STALL_S:
            self._stall_end = now
        self._due = now + LAG_PERIOD_S
        self._timer = self.loop.call_at(self._due, self._measure_lag)


def _figures(channel: Channel) -> list[int]:
    """A channel's counters, in the order of `FIGURES`."""
    return [getattr(channel, name) for name in FIGURES]
