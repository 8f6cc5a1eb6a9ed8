"""A person's game in the browser: one page on loopback, one press at a time.

| address | answers |
|---|---|
| `/` | the page |
| `/static/…`, `/icon.svg` | its files |
| `/api/game` | what is shown, as JSON |
| `/api/picture` | the picture: u32 height, u32 width, RGB; 204: there is none |
| POST `/api/press?key=left` | what is shown after this key; 410: there is nothing to play any more |

Only pages of this server may press, under a name of loopback (`seedbed.services.tools.monitor.access`).
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from seedbed.actor_svc.pictures import shrink
from seedbed.services.tools.cli.env.game import LOOK_EVERY_S, PersonsGame
from seedbed.services.tools.cli.env.keys import keys_of_actions
from seedbed.services.tools.cli.env.screen import describe_flags, describe_values
from seedbed.services.tools.monitor import web
from seedbed.services.tools.monitor.access import Access
from seedbed.services.tools.monitor.listening import bind, make_server
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.pictures import pack_picture

PAGE = Path(__file__).parent / "page"
HOST = "127.0.0.1"
MAX_RETURNS = 20  # the newest, to show


class GameBoard:
    """The game that the page shows. Any thread may call it; one press at a time. `over` is called at the end."""

    def __init__(self, game: PersonsGame, over: Callable[[], object]) -> None:
        self.game = game
        self.error: EnvError | None = None
        self._over = over
        self._lock = threading.Lock()
        self._num_scenes = 1

    def press(self, key: str) -> dict[str, Any]:
        """What is shown after this key. Raises: EnvError if there is nothing to play any more."""
        with self._lock, self._ending():
            before = self.game.scene
            self.game.press(key)
            self._num_scenes += self.game.scene is not before
            if self.game.is_over:
                self._over()
            return self._view()

    def check(self) -> None:
        """Between presses: whether there still is something to play; does not wait."""
        if self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(EnvError), self._ending():
                    self.game.pass_time()
            finally:
                self._lock.release()

    def view(self) -> dict[str, Any]:
        """The game's state as the page shows it."""
        with self._lock:
            return self._view()

    def picture(self) -> bytes | None:
        """The frame of the picture, if there is one."""
        with self._lock:
            picture = self.game.scene.picture
        return None if picture is None else pack_picture(shrink(picture))

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the game where an error comes up within, and keep the error."""
        try:
            yield
        except EnvError as error:
            self.error = self.error or error
            self._over()
            raise

    def _view(self) -> dict[str, Any]:
        game = self.game
        return {
            "env_id": game.scene.spec.env_id,
            "episode": game.episode,
            "steps": game.steps,
            "return": game.episode_return,
            "reward": game.scene.reward,
            "flags": describe_flags(game.scene.flags),
            "has_ended": game.scene.has_ended,
            "note": game.note,
            "returns": game.returns[-MAX_RETURNS:],
            "actions": list(game.actions),
            "keys": list(keys_of_actions(game.keys).items()),
            "values": describe_values(game.scene),
            "picture": self._num_scenes,
            "is_over": game.is_over,
            "summary": game.summary(),
        }


def make_app(board: GameBoard, rules: Access) -> Starlette:
    """The page and what it asks for."""

    def page(_request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    def icon(_request: Request) -> Response:
        return FileResponse(web.PAGE / "icon.svg")

    def game(_request: Request) -> Response:
        return JSONResponse(board.view())

    def picture(_request: Request) -> Response:
        frame = board.picture()
        return Response(status_code=204) if frame is None else Response(frame, media_type="application/octet-stream")

    def press(request: Request) -> Response:
        try:
            return JSONResponse(board.press(request.query_params.get("key", "")))
        except EnvError as error:
            return PlainTextResponse(f"{error}\n", status_code=410)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/icon.svg", icon),
            Route("/api/game", game),
            Route("/api/picture", picture),
            Route("/api/press", press, methods=["POST"]),
            Mount("/static", StaticFiles(directory=PAGE)),
        ],
        middleware=[Middleware(web.AccessGuard, rules=rules)],
    )


def play_in_browser(game: PersonsGame, port: int, *, tell: Callable[[str], None], leave: Callable[[], None]) -> None:
    """Serve the game until it is over, or SIGINT or SIGTERM.

    Args:
      port: TCP port on loopback; 0: any free one.
      tell: gets the address.
      leave: ends what is played, so that no press waits for it any longer.
    Raises: ConfigError if the port is taken, EnvError if there is nothing to play any more.
    """
    with asyncio.Runner() as runner:
        runner.run(_serve(game, port, tell, leave))


async def _serve(game: PersonsGame, port: int, tell: Callable[[str], None], leave: Callable[[], None]) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    board = GameBoard(game, partial(loop.call_soon_threadsafe, stopping.set))
    with bind(HOST, port) as listener:
        bound = int(listener.getsockname()[1])
        server = make_server(make_app(board, Access(token="", is_local=True, port=bound)))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]), name="http")
            tell(f"http://{HOST}:{bound}/")
            while not stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await stopping.wait()
                board.check()
            error = board.error  # what comes from now on is the end that is under way
            leave()
            server.should_exit = True
    if error is not None:
        raise error
