"""A session of an OpenEnv server as a Gymnasium environment."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import httpx
import numpy as np
from gymnasium import spaces
from openenv.core.generic_client import GenericEnvClient
from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed

from seedbed.services.openenv.actions import ActionSetting, action_form
from seedbed.services.openenv.observations import ObservationSetting, observation_form
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.runtime.config import Section

S = TypeVar("S", bound=Section)

IF_FULL = "if it is full, it must be made with max_concurrent_envs of all lanes of all actors"


class OpenEnv(gymnasium.Env[Any, Any]):
    """One session of an OpenEnv server, over a WebSocket of its own. One thread owns it.

    The server's `done` is `terminated`, unless the observation's `truncated_field` is true. With `legal_actions`, an
    observation's list of allowed actions is the row's action mask. `env.id` names it as `make`.

    Args:
      url: the server's address, `http://host:port`.
      action: settings of action fields, by name; see ActionSetting. Other fields follow the server's schema.
      observation: settings of observation fields, by name; see ObservationSetting. Other fields follow the observation
        of a first reset.
      observe: names of the observation fields to take; None: all.
      reset: arguments sent with every reset.
      truncated_field: the observation field that is true where an episode was cut short; empty: none.
      legal_actions: the observation field that lists the actions allowed next; empty: none.
      image: where the channels of uint8 arrays of rank 3 are, "HWC" or "CHW", or a table by field.
      connect_s: how long to wait for the connection, seconds.
      answer_s: how long to wait for each answer, seconds.
    Raises: ConfigError for settings that do not fit the server, EnvError if no server answers.
    """

    def __init__(
        self,
        url: str,
        *,
        action: Mapping[str, Any] | None = None,
        observation: Mapping[str, Any] | None = None,
        observe: Sequence[str] | None = None,
        reset: Mapping[str, Any] | None = None,
        truncated_field: str = "",
        legal_actions: str = "",
        image: str | Mapping[str, str] = "",
        connect_s: float = 10.0,
        answer_s: float = 60.0,
    ) -> None:
        actions = _settings(ActionSetting, "action", action)
        observed = _settings(ObservationSetting, "observation", observation)
        self.metadata = {"image": image if isinstance(image, str) else dict(image), "concurrent": True}
        self._url, self._answer_s = url.rstrip("/"), answer_s
        self._reset, self._truncated_field, self._legal_actions = dict(reset or {}), truncated_field, legal_actions
        self._action = action_form(_action_schema(self._url, connect_s), actions)
        self.action_space = self._action.space
        if legal_actions and not isinstance(self.action_space, spaces.Discrete):
            raise ConfigError("env.kwargs.legal_actions needs actions of one discrete field")
        client = GenericEnvClient(self._url, connect_timeout_s=connect_s, message_timeout_s=answer_s, mode="simulation")
        self._client = client.sync()
        with contextlib.ExitStack() as undo:
            undo.callback(self._client.close)
            try:
                self._client.connect()
            except ConnectionError as error:
                raise EnvError(f"no OpenEnv server answers at {url}: {error}") from error
            example = self._ask(self._client.reset, **self._reset).observation
            skip = [name for name in (truncated_field, legal_actions) if name]
            if missing := [name for name in skip if name not in example]:
                raise ConfigError(f"env.kwargs: this server does not observe {missing[0]!r}; known: {list(example)}")
            self._observation = observation_form(example, observed, observe, skip)
            self.observation_space = self._observation.space
            undo.pop_all()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the server gets the seed if there is one."""
        super().reset(seed=seed, options=options)
        seeded = self._reset if seed is None else {**self._reset, "seed": seed}
        result = self._ask(self._client.reset, **seeded)
        if result.done:
            raise EnvError(f"the OpenEnv server at {self._url} began an episode that is over")
        return self._observation.from_json(result.observation), self._info(result.observation)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; a reward that the server leaves out is 0."""
        result = self._ask(self._client.step, self._action.to_json(action))
        observed = result.observation
        is_truncated = bool(result.done and self._truncated_field and observed.get(self._truncated_field))
        reward = 0.0 if result.reward is None else float(result.reward)
        is_terminated = bool(result.done) and not is_truncated
        return self._observation.from_json(observed), reward, is_terminated, is_truncated, self._info(observed)

    def _ask(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a request and return its answer. Raises: EnvError for an error answer, a closed session or a timeout."""
        try:
            return request(*args, **kwargs)
        except ConnectionClosed as error:
            raise EnvError(f"the OpenEnv server at {self._url} closed the session ({error}); {IF_FULL}") from error
        except RuntimeError as error:  # an answer of type "error"
            hint = f"; {IF_FULL}" if "CAPACITY_REACHED" in str(error) else ""
            raise EnvError(f"the OpenEnv server at {self._url}: {error}{hint}") from error
        except TimeoutError as error:
            raise EnvError(f"the OpenEnv server at {self._url} gave no answer in {self._answer_s:g} s") from error

    def _info(self, observed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the info with the row's `action_mask`, u8 [actions], or an empty one without `legal_actions`."""
        if not self._legal_actions:
            return {}
        (field,) = self._action.fields
        assert isinstance(field.space, spaces.Discrete)
        choices = field.values or tuple(range(int(field.space.start), int(field.space.start + field.space.n)))
        allowed = observed.get(self._legal_actions) or ()
        return {"action_mask": np.array([choice in allowed for choice in choices], np.uint8)}

    def close(self) -> None:
        """End the session."""
        self._client.close()


def _action_schema(url: str, timeout_s: float) -> Mapping[str, Any]:
    """Return the server's JSON schema of actions. Raises: EnvError if it does not answer with one."""
    address = url.replace("ws://", "http://", 1).replace("wss://", "https://", 1) if url.startswith("ws") else url
    try:
        answer = httpx.get(f"{address}/schema", timeout=timeout_s)
        answer.raise_for_status()
        schema: Mapping[str, Any] = answer.json()["action"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise EnvError(f"no OpenEnv server answers at {address}/schema: {type(error).__name__}: {error}") from error
    return schema


def _settings(model: type[S], key: str, tables: Mapping[str, Any] | None) -> dict[str, S]:
    """Return the settings of each field as checked models. Raises: ConfigError naming `env.kwargs.<key>.<field>`."""
    checked = {}
    for name, table in (tables or {}).items():
        try:
            checked[name] = model.model_validate(table)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise ConfigError(f"env.kwargs.{key}.{name}: {where}: {error.errors()[0]['msg']}") from error
    return checked


make = OpenEnv
