"""Football on EnvPool: planes as one image, the score as a statistic, the checkpoint reward where it is asked for."""

from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv, VectorWrapper

from seedbed.actor_svc.backends.pool import Pool
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.services.football.checkpoints import Checkpoints, ball_position
from seedbed.shared.errors import ConfigError

Array = npt.NDArray[Any]
Rewards = Literal["scoring", "scoring,checkpoints"]

GRASS = (40, 110, 50)
# (plane, colour) of our team, their team, the player that we move and, last because it lies over its owner, the ball.
PLANE_COLOURS = ((0, (70, 110, 255)), (1, (230, 60, 60)), (3, (255, 230, 60)), (2, (255, 255, 255)))
CELL_PIXELS = 5
LEFT_TEAM = 0  # ours


class Football(VectorWrapper[Any, Any, Any]):
    """Adds the checkpoint reward and a picture to EnvPool's football.

    For each episode it reports `score`, our goals minus theirs, and `checkpoints`, 0 to 10, whatever the reward is.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, rewards: Rewards) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "statistics": (*env.metadata["statistics"], "checkpoints")}
        self._pays_checkpoints = rewards == "scoring,checkpoints"
        self._checkpoints = Checkpoints(env.num_envs)
        self._ended: Array = np.zeros(env.num_envs, np.bool_)
        self._planes: Array | None = None  # u8 [L, 4, 72, 96], of the last step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a fresh episode in every lane."""
        self._planes, info = super().reset(seed=seed, options=options)
        self._ended[:] = False
        self._checkpoints.reset(~self._ended)
        return self._planes, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every lane, or reset it where its last step ended an episode."""
        planes, reward, terminated, truncated, info = super().step(actions)
        self._checkpoints.reset(self._ended)
        has_ball = (info["ball_owned_team"] == LEFT_TEAM) & ~self._ended  # a reset row pays nothing
        extra = self._checkpoints.collect(ball_position(planes), has_ball, (reward > 0) & ~self._ended)
        info["checkpoints"] = self._checkpoints.collected.copy()
        self._ended, self._planes = terminated | truncated, planes
        return planes, reward + extra if self._pays_checkpoints else reward, terminated, truncated, info

    def render(self) -> tuple[Array, ...] | None:
        """Draw lane 0 from above, one u8 [360, 480, 3] in a tuple; None before the first reset.

        EnvPool has no picture of its own.
        """
        if self._planes is None:
            return None
        picture = np.empty((*self._planes.shape[2:], 3), np.uint8)
        picture[:] = GRASS
        for plane, colour in PLANE_COLOURS:
            picture[self._planes[0, plane] != 0] = colour
        return (picture.repeat(CELL_PIXELS, 0).repeat(CELL_PIXELS, 1),)


def make(
    lanes: int,
    *,
    scenario: str = "academy_empty_goal_close",
    rewards: Rewards = "scoring",
    physics_steps_per_frame: int = 10,
    max_episode_steps: int | None = None,
    num_threads: int = 0,
) -> VectorBackend:
    """Make the backend of `env.id = "seedbed.services.football.env:make"`.

    Args:
      lanes: number of lanes, L.
      scenario: EnvPool's name of it between "gfootball/" and "-v1".
      rewards: the change of the score, or that plus the checkpoint reward.
      physics_steps_per_frame: physics steps of 10 ms for each agent step.
      max_episode_steps: episodes are truncated here; None: the scenario's limit (400 for academy_empty_goal_close).
      num_threads: how many threads step the lanes; 0: one for each usable core.
    Raises: ConfigError for an unknown scenario or reward.
    """
    if rewards not in get_args(Rewards):
        raise ConfigError(f"env.kwargs.rewards: {rewards!r}; known: {', '.join(map(repr, get_args(Rewards)))}")
    pool = partial(
        Pool,
        f"gfootball/{scenario}-v1",
        options={"physics_steps_per_frame": physics_steps_per_frame},
        max_episode_steps=max_episode_steps,
        num_threads=num_threads,
    )
    return VectorBackend(lambda num_envs: Football(pool(num_envs), rewards=rewards), lanes)
