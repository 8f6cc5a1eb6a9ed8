"""A router whose messages are dear, and a peer that fills its queue and hangs up: `python flooded_router.py`.

Prints how many messages were read. A process of its own: libzmq ends it where this goes wrong.
"""

import asyncio
import threading
import time

from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.router import Router
from tests.support.raw_dealer import raw_dealer

MESSAGES, BYTES = 1600, 50_000  # more than a queue holds
DEAR_S = 0.02  # what one costs
HANG_UP_S, WATCHED_S = 0.6, 6.0


def flood(address: str, has_left: threading.Event) -> None:
    """Send everything, wait until the queue is full, and leave."""
    with raw_dealer(address, sndhwm=0) as dealer:
        for _ in range(MESSAGES):
            dealer.send(bytes(BYTES))
        has_left.wait(HANG_UP_S)


async def main() -> None:
    """Serve until the broken connection has been noticed in every way that there is."""
    num_read = 0

    def read(_route: bytes, _frames: list[bytes]) -> None:
        nonlocal num_read
        num_read += 1
        time.sleep(DEAR_S)

    with Reactor() as reactor:
        router = Router(reactor, "tcp://127.0.0.1:0", on_message=read)
        peer = threading.Thread(target=flood, args=(router.endpoint, threading.Event()))
        peer.start()
        await asyncio.sleep(WATCHED_S)
        router.close()
    peer.join()
    print(num_read)


if __name__ == "__main__":
    asyncio.run(main())
