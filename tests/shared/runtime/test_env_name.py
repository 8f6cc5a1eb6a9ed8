"""The forms of env.id."""

import pytest

from seedbed.shared.runtime.env_name import EnvName


@pytest.mark.parametrize(
    ("env_id", "module", "name", "is_function"),
    [
        ("CartPole-v1", "", "CartPole-v1", False),
        ("ALE/Pong-v5", "", "ALE/Pong-v5", False),
        ("corridor", "", "corridor", False),
        ("walk.env:make", "walk.env", "make", True),
        ("walk:Walk_v0", "walk", "Walk_v0", True),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", "MiniGrid-Empty-5x5-v0", False),
        ("walk:own/Walk-v0", "walk", "own/Walk-v0", False),
    ],
)
def test_the_forms_are_told_apart(env_id, module, name, is_function):
    """A function's name is one in Python; an id has a dash before its version."""
    named = EnvName.of(env_id)
    assert (named.module, named.name, named.is_function) == (module, name, is_function)
