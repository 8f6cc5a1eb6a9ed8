"""Specifications of environments, from their Gymnasium spaces."""

from typing import Any

import gymnasium

from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import mask_size, space_from_gymnasium


def make_spec(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any], *, env_id: str = "test", masked: bool = False,
    image: str = "", **fields: Any,
) -> EnvSpec:  # fmt: skip
    """The specification of an environment with these spaces; `masked`: with a mask of its action."""
    action_space = space_from_gymnasium(action, image=None)
    return EnvSpec(
        env_id=env_id,
        observation=space_from_gymnasium(observation, image=image),
        action=action_space,
        mask_size=mask_size(action_space) if masked else 0,
        **fields,
    )
