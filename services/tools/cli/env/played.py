"""A service that a person plays: one group, whose lane 0 waits for keys. With capability `reset` it begins anew."""

from collections.abc import Callable, Sequence

import numpy as np

from seedbed.actor_svc.group import random_actions
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import Expected, Wires, action_frames
from seedbed.services.tools.cli.env.one_group import OneGroup
from seedbed.services.tools.cli.env.row_checks import Tick
from seedbed.services.tools.cli.env.scene import Scene, scene_of_step
from seedbed.shared.protocol.messages import Hello, Step


class PlayedGroup(OneGroup[Scene]):
    """One group that is played. `show` gets each scene that is to be answered; then `act` or `dismiss` is called."""

    rule = "playing"
    run_id = "play"
    host = "a person plays here"

    def __init__(
        self,
        options: CheckOptions,
        expected: Expected | None,
        wires: Wires,
        *,
        epoch: int,
        show: Callable[[Scene], None],
    ) -> None:
        super().__init__(options, expected, wires, epoch=epoch, show=show)
        self._generator = np.random.default_rng(options.seed)  # of lanes that nobody plays

    def act(self, action: int) -> None:
        """The person's action for lane 0, as the environment takes it; others act at random."""
        session, tick = self._session, self._tick
        if session is None or tick is None or self._asked is not None:
            return
        spec, lanes = session.hello.spec, session.lanes
        actions = random_actions(spec.action, lanes, tick.mask, self._generator)
        actions[0][0] = action
        self.ask(action_frames(spec, lanes, actions))

    def read(self, hello: Hello, step: Step, tick: Tick, payload: Sequence[bytes]) -> Scene:
        """Make the scene that the person sees from one tick of the service."""
        return scene_of_step(hello.spec, step, tick, payload)

    def begins_anew(self, hello: Hello) -> bool:
        """Whether the service can be told to begin with the person's seed."""
        return "reset" in hello.capabilities
