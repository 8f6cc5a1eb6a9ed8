"""A person's seat at a service that plays."""

import contextlib
from collections.abc import Iterator, Sequence

from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.link import SILENT, Notes
from seedbed.services.tools.cli.env.played import PlayedGroup
from seedbed.services.tools.cli.env.scene import Scene
from seedbed.services.tools.cli.env.target import Listen
from seedbed.services.tools.cli.env.visit import Visit, visiting
from seedbed.services.tools.cli.service_folder import ServiceFolder


class Seat(Visit[Scene]):
    """Owned by the thread that plays. Memory: one scene."""

    def __init__(self) -> None:
        super().__init__(PlayedGroup)
        self.scene: Scene

    def step(self, action: int) -> Scene:
        """Act in lane 0, as the environment takes it. Raises: EnvError if the service is gone."""
        self.tell(lambda played: played.act(action) if isinstance(played, PlayedGroup) else None)
        return self.wait_scene()

    def wait_scene(self) -> Scene:
        """The next scene. Raises: EnvError if the service is gone."""
        self.scene = self.wait()
        return self.scene


@contextlib.contextmanager
def seated(
    target: ServiceFolder | Listen, options: CheckOptions, words: Sequence[str] = (), notes: Notes = SILENT
) -> Iterator[Seat]:
    """Start the service, or await it, and play until the end of the block. Raises: as `visiting`."""
    if isinstance(target, ServiceFolder):
        target.build()
    seat = Seat()
    with visiting(seat, target, options, words, notes) as seat.scene:
        yield seat
