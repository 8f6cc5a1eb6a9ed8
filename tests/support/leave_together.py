"""A process in which dealers hang up at the very moment their router does, again and again. Prints the rounds."""

import asyncio
import sys

from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.router import Router

DEALERS = 10


async def leave_together(rounds: int) -> None:
    """One round: connect all, then close the router and at once the dealers."""
    with Reactor() as far, Reactor() as near:
        for _ in range(rounds):
            router = Router(far, "tcp://127.0.0.1:0", on_message=lambda route, frames: None)
            connected = [asyncio.Event() for _ in range(DEALERS)]
            dealers = [
                Dealer(near, router.endpoint, on_message=lambda frames: None, on_event=lambda _, up=up: up.set())
                for up in connected
            ]
            for up in connected:
                await up.wait()
            router.close()
            for dealer in dealers:
                dealer.close(200)


if __name__ == "__main__":
    asyncio.run(leave_together(int(sys.argv[1])))
    print(sys.argv[1])
