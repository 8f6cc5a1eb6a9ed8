"""A world behind a dm_env_rpc server as a Gymnasium environment."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env_rpc.v1 import dm_env_adaptor, dm_env_rpc_pb2
from dm_env_rpc.v1.error import DmEnvRpcError
from google.rpc import code_pb2

from seedbed.services.dm_env_rpc.connection import Connection
from seedbed.services.dm_env_rpc.spaces import action_space, joined, observation_spaces, value_of
from seedbed.shared.errors import ConfigError, EnvError


class DmEnvRpcEnv(gymnasium.Env[Any, Any]):
    """One world of a dm_env_rpc server, over a connection of its own. One thread owns it.

    The last step of an episode is `terminated` where its discount is 0, else `truncated`; discounts in between are not
    passed on. `seed_setting` makes the world anew at each reset with a seed. `env.id` names it as `make`.

    Args:
      address: the server's address, host:port.
      create: settings of the world that each lane makes.
      join: settings with which a lane joins its world.
      world: name of an existing world to join instead of making one.
      observations: names of the observations to request; None: all but reward and discount.
      seed_setting: the setting of `create` that takes a seed; empty: seeds are ignored.
      text_length: longest string observation, characters; longer ones are cut.
      image: where the channels of uint8 arrays of rank 3 are, "HWC" or "CHW", or a table by observation.
      tls: whether to use TLS, verified by the system's certificates.
      connect_s: how long to wait for the server, seconds.
    Raises: ConfigError for settings or spaces that cannot be used, EnvError if no server answers.
    """

    def __init__(
        self,
        address: str,
        *,
        create: Mapping[str, Any] | None = None,
        join: Mapping[str, Any] | None = None,
        world: str | None = None,
        observations: Sequence[str] | None = None,
        seed_setting: str = "",
        text_length: int = 256,
        image: str | Mapping[str, str] = "",
        tls: bool = False,
        connect_s: float = 10.0,
    ) -> None:
        if world is not None and (create or seed_setting):
            raise ConfigError("env.kwargs: world joins one that exists; create and seed_setting are for new ones")
        self.metadata = {"image": image if isinstance(image, str) else dict(image), "concurrent": True}
        self._create, self._join, self._world = dict(create or {}), dict(join or {}), world
        self._observations, self._seed_setting = observations, seed_setting
        self._connection = Connection(address, tls=tls, connect_s=connect_s)
        self._made = ""  # name of the world that this object made and has to destroy; empty: none
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._remote = self._enter(self._create)
            observed: dict[str, Any] = self._remote.observation_spec()
            self._actions: dict[str, Any] = self._remote.action_spec()
            self._spaces = observation_spaces(observed, text_length)
            self.observation_space = joined(self._spaces, "observations")
            self.action_space = action_space(self._actions)
            undo.pop_all()

    def _enter(self, settings: Mapping[str, Any]) -> Any:
        """Make a world with these settings, or take the one that is named, join it, and return dm_env's environment.

        Raises: ConfigError if the server refuses the settings, EnvError for its other errors.
        """
        try:
            name = self._world
            if name is None:
                name = self._made = dm_env_adaptor.create_world(self._connection, settings)
            return dm_env_adaptor.join_world(
                self._connection, name, self._join, requested_observations=self._observations, nested_tensors=False
            )
        except DmEnvRpcError as error:
            said = f"the dm_env_rpc server says: {error.message}"
            if error.code == code_pb2.INVALID_ARGUMENT:
                raise ConfigError(f"env.kwargs: create {dict(settings)}, join {self._join}: {said}") from error
            raise EnvError(said) from error
        except ValueError as error:  # observations that this world does not have, values that are no tensors
            raise ConfigError(f"env.kwargs: {error}") from error

    def _leave(self) -> None:
        """Leave the world, and destroy it if it was made here."""
        self._connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
        name, self._made = self._made, ""
        if name:
            self._connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=name))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. With a seed and a `seed_setting`, the world is made anew with that seed."""
        super().reset(seed=seed, options=options)
        if seed is not None and self._seed_setting:
            self._leave()
            self._remote = self._enter({**self._create, self._seed_setting: seed})
        return self._observe(self._remote.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; the one that ends an episode returns the server's last observation."""
        step = self._remote.step(self._tensors(action))
        is_over = step.last()
        is_terminated = is_over and step.discount is not None and float(np.asarray(step.discount).item()) == 0.0
        reward = 0.0 if step.reward is None else float(np.asarray(step.reward).item())
        return self._observe(step), reward, is_terminated, is_over and not is_terminated, {}

    def _tensors(self, action: Any) -> dict[str, Any]:
        """Return an action as arrays by name, in the dtypes of the server's specs."""
        named = action if isinstance(action, Mapping) else {next(iter(self._actions)): action}
        return {name: np.asarray(value).astype(self._actions[name].dtype) for name, value in named.items()}

    def _observe(self, step: dm_env.TimeStep) -> Any:
        """Return a step's observations as a value of `observation_space`."""
        values = {name: value_of(space, step.observation[name]) for name, space in self._spaces.items()}
        return values if len(values) > 1 else next(iter(values.values()))

    def close(self) -> None:
        """Leave the world, destroy it if it was made here, and disconnect; errors of the server are ignored."""
        with contextlib.suppress(EnvError, DmEnvRpcError):
            self._leave()
        self._connection.close()


make = DmEnvRpcEnv
