"""What only the in-process network can do: faults that a seed repeats, and cut connections."""

import asyncio

import pytest

from seedbed.shared.net.memory import Dealer, Faults, Network, Router


def play(seed: int, faults: Faults, num_messages: int = 300) -> list[int]:
    """Send numbers through a faulty network; what arrived, in order."""

    async def run() -> list[int]:
        network = Network(seed=seed, faults=faults)
        got: list[int] = []
        router = Router(network, "tcp://127.0.0.1:0", on_message=lambda route, frames: got.append(int(frames[0])))
        connected = asyncio.Event()
        dealer = Dealer(network, router.endpoint, on_message=print, on_event=lambda event: connected.set())
        await connected.wait()
        for number in range(num_messages):
            assert dealer.send([b"%d" % number])
        settled = asyncio.get_running_loop().create_future()
        network.loop.call_later(2 * faults.longest_delay_s + 0.001, settled.set_result, None)
        await settled
        network.close()
        return got

    return asyncio.run(run())


def test_without_faults_nothing_happens_to_a_message():
    """All arrive once, in order."""
    assert play(1, Faults()) == list(range(300))


def test_loss_loses_about_its_share():
    """The others keep their order."""
    got = play(1, Faults(loss=0.2))
    assert 200 < len(got) < 280
    assert got == sorted(set(got))


def test_duplicates_come_twice():
    """None is missing."""
    got = play(1, Faults(duplicate=0.2))
    assert set(got) == set(range(300))
    assert 320 < len(got) < 400


def test_overtaking_changes_places():
    """None is missing or doubled."""
    got = play(1, Faults(overtake=0.3))
    assert sorted(got) == list(range(300))
    assert got != list(range(300))


def test_delay_delivers_everything():
    """Late is not lost."""
    assert sorted(play(1, Faults(longest_delay_s=0.01))) == list(range(300))


@pytest.mark.parametrize("faults", [Faults(loss=0.1, duplicate=0.1, overtake=0.1)])
def test_a_seed_repeats_its_faults(faults):
    """Equal seeds play the same, others do not."""
    assert play(7, faults) == play(7, faults)
    assert play(7, faults) != play(8, faults)


def test_a_cut_connection_comes_back_behind_a_new_route():
    """What was under way is lost, both ends notice, and the next message comes by another route."""

    async def run() -> None:
        network = Network()
        got, events, changed = [], [], asyncio.Event()

        def note(event: str) -> None:
            events.append(event)
            changed.set()

        def take(route, frames) -> None:
            got.append((route, frames))
            changed.set()

        router = Router(network, "tcp://127.0.0.1:0", on_message=take)
        dealer = Dealer(network, router.endpoint, on_message=print, on_event=note)

        async def wait_for(claim) -> None:
            async with asyncio.timeout(5):
                while not claim():
                    changed.clear()
                    await changed.wait()

        await wait_for(lambda: dealer.is_connected)
        dealer.send([b"one"])
        await wait_for(lambda: len(got) == 1)
        dealer.send([b"under way"])
        network.cut(dealer)
        assert not dealer.send([b"refused"])
        assert not router.send(got[0][0], [b"refused"])
        await wait_for(lambda: events == ["connected", "disconnected", "connected"])
        dealer.send([b"two"])
        await wait_for(lambda: len(got) == 2)
        assert [frames for _, frames in got] == [[b"one"], [b"two"]]
        assert got[0][0] != got[1][0]
        assert router.is_drained()

    asyncio.run(run())
