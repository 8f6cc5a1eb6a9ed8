"""Steps Atari games one after the other in one thread, by ALE's interface to single games, and shrinks them together.

On one core this takes three quarters of the time that the vector environments of ALE and EnvPool take, because those
shrink each screen alone. On many cores those step games in threads of their own, which Python's interface cannot do.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from seedbed.actor_svc.backends.area import AreaShrink
from seedbed.shared.runtime.config import EnvConfig

Screen = npt.NDArray[np.uint8]  # [H, W], or [H, W, 3] in colour
PREVIOUS, NEWEST = 0, 1  # a game's last two frames, as indices of its screens


class _Game:
    """One emulator and the state of its episode. It writes its last two frames into `screens` [2, ...] in place."""

    def __init__(self, rom: str, env: EnvConfig, screens: Screen) -> None:
        self.num_steps = 0
        self._rom, self._env, self._screens = rom, env, screens
        self.ale = _make_emulator()
        self.ale.setFloat("repeat_action_probability", env.repeat_action_probability)
        self._read = self.ale.getScreenGrayscale if env.grayscale else self.ale.getScreenRGB
        self.seed(np.random.SeedSequence(0))
        self._noop = self.ale.getLegalActionSet()[0]  # two games lack it among their own actions
        self.actions = self.ale.getLegalActionSet() if env.full_action_space else self.ale.getMinimalActionSet()

    def seed(self, seed: np.random.SeedSequence) -> None:
        """Seed the no-ops and the emulator, and load the game anew: the emulator reads its seed only then."""
        noops, emulator = seed.spawn(2)
        self._random = np.random.default_rng(noops)
        self.ale.setInt("random_seed", int(emulator.generate_state(1)[0] >> 1))
        self.ale.loadROM(self._rom)

    def reset(self) -> None:
        """Begin an episode with a random number of no-op frames, at most `noop_max`."""
        self.ale.reset_game()
        for _ in range(self._random.integers(self._env.noop_max + 1)):
            self.ale.act(self._noop)
            if self.ale.game_over():
                self.ale.reset_game()
        self.num_steps = 0
        self._read(self._screens[NEWEST])
        self._screens[PREVIOUS] = self._screens[NEWEST]

    def step(self, action: int) -> int:
        """Repeat an action for `frame_skip` frames, or until the game is over, and return the sum of the rewards."""
        ale, code, reward = self.ale, self.actions[action], 0
        for left in range(self._env.frame_skip, 0, -1):
            if left == 1:
                self._read(self._screens[PREVIOUS])
            reward += ale.act(code)
            if ale.game_over(with_truncation=False):
                break
        self._read(self._screens[NEWEST])
        if left > 1 or self._env.frame_skip == 1:  # there is no frame before this one in this step
            self._screens[PREVIOUS] = self._screens[NEWEST]
        self.num_steps += 1
        return reward


class SyncAtari(VectorEnv[Any, Any, Any]):
    """A vector environment of L copies of one game, with next-step autoreset.

    The observations that it returns are overwritten by the next step.
    """

    def __init__(self, rom: str, env: EnvConfig, lanes: int, *, max_episode_steps: int) -> None:
        rom = _rom_path(rom)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self._max_steps = lanes, max_episode_steps
        height, width = _screen_dims(rom)
        shape = (height, width) if env.grayscale else (height, width, 3)
        self._screens = np.zeros((2, lanes, *shape), np.uint8)
        self._games = [_Game(rom, env, self._screens[:, lane]) for lane in range(lanes)]
        self._shrink = AreaShrink(height, width, env.image_size)
        size = (env.image_size, env.image_size) if env.grayscale else (3, env.image_size, env.image_size)
        self.single_observation_space = spaces.Box(0, 255, size, np.uint8)
        self.single_action_space = spaces.Discrete(len(self._games[0].actions))
        self.observation_space = batch_space(self.single_observation_space, lanes)
        self.action_space = batch_space(self.single_action_space, lanes)
        self._observed = np.zeros(self.observation_space.shape or (), np.uint8)
        self._has_ended = np.zeros(lanes, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every lane; a seed decides all that is random from then on."""
        for lane, game in enumerate(self._games):
            if seed is not None:
                game.seed(np.random.SeedSequence([seed, lane]))
            game.reset()
        self._has_ended[:] = False
        return self._observations(), self._info()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game, or reset it where its last step ended it."""
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for lane, (game, action) in enumerate(zip(self._games, actions.tolist(), strict=True)):
            if self._has_ended[lane]:
                game.reset()
                continue
            rewards[lane] = game.step(action)
            terminated[lane] = game.ale.game_over(with_truncation=False)
            truncated[lane] = game.num_steps >= self._max_steps and not terminated[lane]
        self._has_ended = terminated | truncated
        return self._observations(), rewards, terminated, truncated, self._info()

    def render(self) -> Any:
        """Return the screen of each game in colour, a tuple of u8 [height, width, 3]."""
        return tuple(game.ale.getScreenRGB() for game in self._games)

    def _observations(self) -> Any:
        """Return the shrunk maximum of the last two frames, u8 [L, size, size], in colour [L, 3, size, size]."""
        newest = np.maximum(self._screens[PREVIOUS], self._screens[NEWEST], out=self._screens[PREVIOUS])
        if newest.ndim == 4:
            newest = np.moveaxis(newest, -1, 1)
        size = self._observed.shape[-1]
        self._shrink(newest.reshape(-1, *newest.shape[-2:]), self._observed.reshape(-1, size, size))
        return self._observed

    def _info(self) -> dict[str, Any]:
        return {"lives": np.array([game.ale.lives() for game in self._games])}


def _screen_dims(rom: str) -> tuple[int, int]:
    """Height and width of a game's screen, pixels."""
    emulator = _make_emulator()
    emulator.loadROM(rom)
    height, width = emulator.getScreenDims()
    return int(height), int(width)


def _make_emulator() -> Any:
    """Make ALE's interface to one game, with its log messages below errors switched off."""
    import ale_py  # of the extra 'atari', as is all that follows

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py.ALEInterface()


def _rom_path(rom: str) -> str:
    """Return the path of a game's ROM file."""
    from ale_py import roms

    return str(roms.get_rom_path(rom))
