"""The traps of an edge-triggered descriptor, one test each, on both loops."""

import asyncio
import contextlib
import math

import pytest
import uvloop
import zmq

from seedbed.shared.net.reactor import MAX_DRAIN_MESSAGES, MAX_FRAMES, STALL_S, Channel, Reactor

TIMEOUT_S = 20.0


class SkewedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock a test can push forward."""

    skew_s = 0.0

    def time(self):
        return super().time() + self.skew_s


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine function with a reactor."""

    def run_with_reactor(test):
        async def bounded():
            with Reactor() as reactor:
                async with asyncio.timeout(TIMEOUT_S):
                    await test(reactor)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run_with_reactor


def make_pair(reactor, on_frames, on_drained=None) -> tuple[Channel, zmq.Socket]:
    """A served socket and a plain one connected to it; what one sends has arrived at the other when `send` returns."""
    served, plain = reactor.context.socket(zmq.PAIR), reactor.context.socket(zmq.PAIR)
    plain.linger = 0
    served.bind("inproc://pair")
    plain.connect("inproc://pair")
    return reactor.open(served, on_frames, on_drained), plain


def wait_arrived(channel: Channel) -> None:
    """See that libzmq has a message for the channel; like any look at EVENTS, this swallows its wake-up."""
    assert channel.socket.poll(10_000, zmq.POLLIN)


def test_a_drain_out_of_budget_goes_on_by_itself(run):
    """More messages than one drain takes arrive without another wake-up, and timers run in between."""

    async def test(reactor):
        done = asyncio.Event()
        got, seen_by_timer = [], []
        total = 3 * MAX_DRAIN_MESSAGES

        def take(frames):
            got.append(frames[0])
            if len(got) == 1:
                reactor.loop.call_soon(lambda: seen_by_timer.append(len(got)))
            if len(got) == total:
                done.set()

        channel, plain = make_pair(reactor, take)
        with contextlib.closing(plain):
            for number in range(total):
                plain.send(b"%d" % number)
            await done.wait()
        assert got == [b"%d" % number for number in range(total)]
        assert channel.unfinished_drains >= 1
        assert 0 < seen_by_timer[0] <= MAX_DRAIN_MESSAGES

    run(test)


def test_a_slow_callback_ends_the_drain_early(run):
    """The budget is one of time as well: after 2 ms the loop has its turn."""

    async def test(reactor):
        done = asyncio.Event()
        got = []

        def take(frames):
            got.append(frames[0])
            until = reactor.loop.time() + 0.005
            while reactor.loop.time() < until:
                pass
            if len(got) == 5:
                done.set()

        channel, plain = make_pair(reactor, take)
        with contextlib.closing(plain):
            for _ in range(5):
                plain.send(b"x")
            await done.wait()
        assert channel.unfinished_drains >= 4

    run(test)


def test_a_send_that_swallows_a_wake_up_loses_nothing(run):
    """A message that arrived before a send is delivered although the descriptor stays silent."""

    async def test(reactor):
        got = asyncio.Event()
        channel, plain = make_pair(reactor, lambda frames: got.set())
        with contextlib.closing(plain):
            await asyncio.sleep(0)
            plain.send(b"early")
            wait_arrived(channel)
            assert channel.send([b"reply"])
            await got.wait()
            assert plain.recv() == b"reply"

    run(test)


def test_what_came_before_the_reader_is_delivered(run):
    """Opening a channel on a socket that already holds messages delivers them."""

    async def test(reactor):
        got = asyncio.Event()
        served, plain = reactor.context.socket(zmq.PAIR), reactor.context.socket(zmq.PAIR)
        with contextlib.closing(plain):
            served.bind("inproc://early")
            plain.connect("inproc://early")
            plain.send(b"early")
            assert served.poll(10_000)
            reactor.open(served, lambda frames: got.set())
            await got.wait()

    run(test)


def test_sending_from_the_callback_works(run):
    """Echoing from inside the drain, whose sends look for nothing themselves, never stalls."""

    async def test(reactor):
        done = asyncio.Event()
        served, dialled = reactor.context.socket(zmq.PAIR), reactor.context.socket(zmq.PAIR)
        served.bind("inproc://echo")
        dialled.connect("inproc://echo")
        count = 0

        def bounce(frames):
            nonlocal count
            count += 1
            if count == 2000:
                done.set()
            else:
                second.send(frames)

        first = reactor.open(served, lambda frames: first.send(frames))
        second = reactor.open(dialled, bounce)
        assert second.send([b"a", b"b"])
        await done.wait()

    run(test)


def test_an_exception_does_not_stop_the_drain(run):
    """The loop's exception handler hears of it; what was behind the message is still delivered."""

    async def test(reactor):
        done, errors = asyncio.Event(), []
        reactor.loop.set_exception_handler(lambda loop, context: errors.append(context["exception"]))

        def take(frames):
            if frames == [b"bad"]:
                raise ValueError("bad")
            done.set()

        channel, plain = make_pair(reactor, take)
        with contextlib.closing(plain):
            plain.send(b"bad")
            plain.send(b"good")
            wait_arrived(channel)
            channel.send([b"look"])
            await done.wait()
        assert [str(error) for error in errors] == ["bad"]

    run(test)


def test_too_many_frames_are_counted_not_kept(run):
    """A message over the limit is dropped to its last frame; one at the limit passes."""

    async def test(reactor):
        got = asyncio.Event()
        messages = []

        def take(frames):
            messages.append(frames)
            got.set()

        channel, plain = make_pair(reactor, take)
        with contextlib.closing(plain):
            plain.send_multipart([b"x"] * (MAX_FRAMES + 1))
            plain.send_multipart([b"x"] * (3 * MAX_FRAMES))
            plain.send_multipart([b"y"] * MAX_FRAMES)
            await got.wait()
        assert messages == [[b"y"] * MAX_FRAMES]
        assert channel.oversized == 2
        assert reactor.statistics().oversized == 2

    run(test)


def test_drained_follows_the_last_message(run):
    """`on_drained` comes after the messages of its drain, and may send."""

    async def test(reactor):
        done = asyncio.Event()
        tape = []

        def drained():
            tape.append("drained")
            if b"x" in tape:
                channel.send([b"reply"])
                done.set()

        channel, plain = make_pair(reactor, lambda frames: tape.append(frames[0]), drained)
        with contextlib.closing(plain):
            plain.send(b"x")
            await done.wait()
            assert plain.recv() == b"reply"
        assert tape[tape.index(b"x") + 1] == "drained"
        assert channel.is_drained()

    run(test)


def test_unread_messages_are_not_drained(run):
    """`is_drained` sees what has arrived even before the loop was told."""

    async def test(reactor):
        channel, plain = make_pair(reactor, lambda frames: None)
        with contextlib.closing(plain):
            plain.send(b"x")
            wait_arrived(channel)
            assert not channel.is_drained()

    run(test)


def test_a_look_that_swallows_a_wake_up_loses_nothing(run):
    """Asking whether the socket is drained uses up its wake-up: what it saw is delivered all the same, unasked."""

    async def test(reactor):
        got = asyncio.Event()
        channel, plain = make_pair(reactor, lambda frames: got.set())
        with contextlib.closing(plain):
            await asyncio.sleep(0)
            plain.send(b"early")
            wait_arrived(channel)
            assert not channel.is_drained()
            await got.wait()

    run(test)


def test_statistics_outlive_their_channels(run):
    """Closing a channel does not make counters fall."""

    async def test(reactor):
        got = asyncio.Event()
        channel, plain = make_pair(reactor, lambda frames: got.set())
        with contextlib.closing(plain):
            plain.send(b"x")
            await got.wait()
            channel.send([b"y"])
        before = reactor.statistics()
        channel.close()
        channel.close()
        after = reactor.statistics()
        assert (after.received, after.sent) == (before.received, before.sent) == (1, 1)
        assert not channel.send([b"z"])

    run(test)


def test_a_socket_that_no_channel_took_over_does_not_hold_up_the_end(run):
    """What failed between a socket's making and its channel's leaves it open: the reactor closes it too."""
    sockets = []

    async def test(reactor):
        socket = reactor.context.socket(zmq.DEALER)
        socket.connect("tcp://127.0.0.1:9")
        sockets.append(socket)

    run(test)
    assert sockets[0].closed


def test_a_stall_is_known_before_any_timer_ran():
    """After the loop was late by a second, whoever asks first learns that the stall ends now."""

    async def test():
        loop = asyncio.get_running_loop()
        with Reactor() as reactor:
            assert reactor.last_stall_end(loop.time()) == -math.inf
            loop.skew_s += 1.0 + STALL_S
            now = loop.time()
            assert reactor.last_stall_end(now) == now
            measured = loop.create_future()
            loop.call_later(0.01, measured.set_result, None)
            await measured
            assert now <= reactor.last_stall_end(loop.time()) <= loop.time()
            assert reactor.statistics().worst_loop_lag_s > 1.0
            assert reactor.statistics().worst_loop_lag_s > 1.0  # asking does not forget: several ask

    with asyncio.Runner(loop_factory=SkewedLoop) as runner:
        runner.run(test())
