"""A dm_env_rpc server's worlds as lanes, over real connections."""

import os
import socket
import subprocess

import numpy as np
import pytest

import seedbed.services.dm_env_rpc  # noqa: F401  before gRPC, as every user does
from seedbed.actor_svc.envs import make_group
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.protocol.spaces import unflatten
from seedbed.shared.runtime.config import EnvConfig

pytest.importorskip("dm_env_rpc", reason="dm_env_rpc is not installed")

from tests.support.hop_server import hop_server

MAKE = "seedbed.services.dm_env_rpc.env:make"
FIRST, TERMINATED, TRUNCATED = int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.TRUNCATED)


@pytest.fixture
def server():
    with hop_server() as (servicer, address):
        yield servicer, address


@pytest.fixture
def connect(server):
    """Makes groups on the server; they are closed before it."""
    groups = []

    def make(lanes=1, max_episode_steps=None, **kwargs):
        options = {"address": server[1], "image": "HWC", **kwargs}
        groups.append(make_group(EnvConfig(id=MAKE, kwargs=options, max_episode_steps=max_episode_steps), lanes))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def act(group, *moves, push=0.0, buttons=(0, 0)):
    """One tick with a move for each lane."""
    lanes = len(moves)
    by_path = {"move": np.array(moves), "push": np.full((lanes, 2), push), "buttons": np.tile(buttons, (lanes, 1))}
    group.advance([by_path[leaf.path].astype(leaf.dtype) for leaf in group.spec.action.leaves()])


def seen(group):
    """The newest observations, nested, with a lane axis."""
    return unflatten(group.spec.observation, group.views.observation)


def test_specs_become_spaces(connect):
    """Shapes, dtypes and bounds are the server's; reward is no observation."""
    group = connect()
    leaves = {leaf.path: leaf for leaf in group.spec.observation.leaves()}
    assert sorted(leaves) == ["at_start", "cells", "note", "pixels", "place"]
    assert (leaves["cells"].dtype, leaves["cells"].shape) == ("float32", (4,))
    assert (leaves["pixels"].dtype, leaves["pixels"].shape, leaves["pixels"].image) == ("uint8", (2, 3, 3), "HWC")
    assert leaves["place"].nvec == (4,)
    assert leaves["note"].kind == "text"
    actions = {leaf.path: leaf for leaf in group.spec.action.leaves()}
    assert (actions["move"].nvec, actions["move"].starts) == ((3,), (-1,))
    assert actions["buttons"].nvec == (2, 3)
    assert actions["push"].low_array().tolist() == [-1, -1]


def test_rows_of_an_episode(connect, server):
    """Actions arrive as sent; the last row has the final observation, and the next one begins anew."""
    group = connect(2, create={"size": 3})
    group.reset(1)
    assert group.views.flags.tolist() == [FIRST, FIRST]
    assert seen(group)["at_start"].tolist() == [1, 1]
    steps = 2 - seen(group)["place"]
    act(group, 0, 0, push=0.5, buttons=(1, 2))
    received = [world.received[0] for world in server[0].worlds.values()]
    assert [(int(a["move"]), a["push"].tolist(), a["buttons"].tolist()) for a in received] == [
        (0, [0.5, 0.5], [1, 2])
    ] * 2
    for tick in range(1, int(steps[0]) + 1):
        act(group, 1, 0)
        assert group.views.flags[0] == (TERMINATED if tick == steps[0] else 0)
    assert group.views.reward.tolist() == [1, 0]
    assert seen(group)["place"][0] == 2
    assert seen(group)["note"][0] == "cell 2 ?"
    assert group.ended_statistics.tolist() == [[1, steps[0] + 1]]
    act(group, 1, 0)
    assert group.views.flags.tolist() == [FIRST, 0]
    assert seen(group)["place"][0] < 2


@pytest.mark.parametrize(
    ("create", "flag"),
    [
        ({"ends": "TERMINATED"}, TERMINATED),
        ({"ends": "INTERRUPTED"}, TRUNCATED),
        ({"ends": "INTERRUPTED", "discount": True}, TERMINATED),  # its discount says so
    ],
)
def test_discount_of_the_last_step_decides(connect, create, flag):
    """0 is terminated, anything else truncated; without a discount the state of the world says it."""
    group = connect(create={"size": 2, **create})
    group.reset(1)
    act(group, 1)
    assert group.views.flags.tolist() == [flag]
    assert "discount" not in seen(group)


def test_max_episode_steps_truncates(connect):
    """A world that goes on is reset all the same."""
    group = connect(max_episode_steps=2)
    group.reset(1)
    flags = []
    for _ in range(3):
        act(group, -1)
        flags += group.views.flags.tolist()
    assert flags == [0, TRUNCATED, FIRST]


def test_same_seed_same_episodes_where_the_server_takes_one(connect, server):
    """`seed_setting` makes worlds anew with each lane's seed; the old ones are destroyed."""
    group = connect(4, create={"size": 1000}, seed_setting="seed", observations=["place"])
    assert group.spec.observation.leaf is not None
    starts = []
    for seed in (7, 3, 7):
        group.reset(seed)
        starts.append(group.views.observation[0].tolist())
    assert starts[0] == starts[2] != starts[1]
    assert len(set(starts[0])) > 1
    assert len(server[0].worlds) == 4


def test_worlds_are_destroyed_at_the_end(connect, server):
    """Those that were made here; one that was joined stays."""
    group = connect(3)
    assert len(server[0].worlds) == 3
    name = next(iter(server[0].worlds))
    other = connect(1, world=name)
    other.close()
    assert len(server[0].worlds) == 3
    group.close()
    assert server[0].worlds == {}


def test_lost_connection_costs_one_episode(connect, server):
    """The lane comes back on a new connection with `first`; the others go on."""
    group = connect(2)
    group.reset(1)
    act(group, 0, 0)
    server[0].calls[0].cancel()
    act(group, 0, 0)
    assert group.views.flags.tolist() == [FIRST, 0]
    counters = group.counters()
    assert (counters.aborted, counters.rebuilds) == (1, 1)
    assert "the stream to the dm_env_rpc server at 127.0.0.1:" in counters.last_failure
    act(group, 0, 0)
    assert group.views.flags.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ({"create": {"gravy": 1}}, ConfigError, r"'gravy': 1.*unknown settings"),
        ({"create": {"odd": True}}, ConfigError, r"'varying' has the shape \(-1,\)"),
        ({"observations": ["smell"]}, ConfigError, "smell"),
        ({"world": "nowhere"}, EnvError, "no world nowhere"),
        ({"world": "a", "create": {"size": 3}}, ConfigError, "world joins one that exists"),
        ({"image": ""}, ConfigError, "env.image"),
        ({"gravy": 1}, ConfigError, "gravy"),
    ],
)
def test_wrong_settings_are_refused(connect, server, kwargs, error, said):
    """The error names the setting, or says what the server said, and no world is left behind."""
    with pytest.raises(error, match=said):
        connect(**kwargs)
    assert server[0].worlds == {} or kwargs == {"image": ""}


def test_absent_server_is_named():
    """It may come up later, so this is no configuration error."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        kwargs = {"address": address, "connect_s": 0.2}
        with pytest.raises(EnvError, match=f"no dm_env_rpc server answers at {address}"):
            make_group(EnvConfig(id=MAKE, kwargs=kwargs), 1)


def test_other_programs_start_beside_a_connection(connect):
    """Also those that run Python between fork and exec, as the encoder of videos does."""
    connect()
    started = [subprocess.run(["true"], preexec_fn=os.setpgrp, check=False).returncode for _ in range(300)]
    assert set(started) == {0}
