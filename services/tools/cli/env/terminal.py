"""`seedbed play`: a game in a terminal, key by key."""

import contextlib
import os
import select
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from seedbed.services.tools.cli.env.game import Game
from seedbed.services.tools.cli.env.keys import read_keys
from seedbed.shared.errors import ConfigError

READ_BYTES = 64


def require_terminal(console: Console) -> None:
    """Say so where there is none. Raises: ConfigError."""
    if not sys.stdin.isatty() or not console.is_terminal:
        raise ConfigError(
            "seedbed play needs a terminal for keys and pictures, and there is none here; "
            "use  seedbed env record TARGET --video FILE.mp4"
        )


def play_in_terminal(game: Game, console: Console) -> None:
    """Draw and read keys until the game is over, on a screen of its own; the terminal is left as it was."""
    with _single_keys() as descriptor, Live(console=console, screen=True, auto_refresh=False) as live:
        while not game.is_over:
            live.update(game.draw(console.width, console.height), refresh=True)
            if select.select([descriptor], [], [], game.wait_s)[0]:
                sent = os.read(descriptor, READ_BYTES)
                if not sent:
                    return  # the terminal was closed
                for key in read_keys(sent.decode(errors="replace")):
                    game.press(key)
            else:
                game.pass_time()


@contextlib.contextmanager
def _single_keys() -> Iterator[int]:
    """Keys come one by one and are not shown."""
    import termios  # not on Windows
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
