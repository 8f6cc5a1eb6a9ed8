"""An OpenEnv server's sessions as lanes, over real WebSockets."""

import socket

import numpy as np
import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.protocol.spaces import unflatten
from seedbed.shared.runtime.config import EnvConfig

pytest.importorskip("openenv", reason="openenv is not installed: make test-openenv")

from tests.support.walk_server import Walk, walk_server

MAKE = "seedbed.services.openenv.env:make"
FIRST, TERMINATED, TRUNCATED = int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.TRUNCATED)
OBSERVED = ["place", "story"]
LAMPS = {"lamps": {"constant": [0, 0]}}
LEFT, STAY, RIGHT = 0, 1, 2


@pytest.fixture(scope="module")
def url():
    with walk_server() as address:
        yield address


@pytest.fixture
def connect(url):
    """Makes groups on the server, reset; they are closed at the end."""
    groups = []

    def make(lanes=1, max_episode_steps=None, action=None, observe=OBSERVED, **kwargs):
        only_gait = {"force": {"constant": 0.0}, "loud": {"constant": False}, "lamps": {"constant": [0, 0]}}
        options = {"url": url, "action": only_gait if action is None else action, "observe": observe, **kwargs}
        groups.append(make_group(EnvConfig(id=MAKE, kwargs=options, max_episode_steps=max_episode_steps), lanes))
        groups[-1].reset(1)
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def seen(group):
    """The newest observations, nested, with a lane axis."""
    return unflatten(group.spec.observation, group.views.observation)


def test_observations_become_spaces(connect):
    """Numbers, truth values and text as the example has them; settings say the rest."""
    group = connect(
        observe=["cells", "place", "pixels", "at_start", "story", "hint"],
        observation={
            "place": {"n": 4},
            "pixels": {"dtype": "uint8"},
            "story": {"kind": "bytes", "length": 12},
            "hint": {"kind": "text", "length": 5},
        },
        image="HWC",
    )
    leaves = {leaf.path: leaf for leaf in group.spec.observation.leaves()}
    assert (leaves["cells"].dtype, leaves["cells"].shape) == ("float32", (4,))
    assert (leaves["pixels"].dtype, leaves["pixels"].shape, leaves["pixels"].image) == ("uint8", (2, 2, 3), "HWC")
    assert leaves["place"].nvec == (4,)
    assert leaves["at_start"].nvec == (2,)
    (place,) = seen(group)["place"].tolist()
    assert seen(group)["cells"][0].argmax() == place
    assert (seen(group)["pixels"] == place).all()
    assert bytes(seen(group)["story"][0]).rstrip(b"\0") == f"cell {place} — “".encode()[:12]
    assert seen(group)["hint"] == [""]
    assert seen(connect())["story"] == [f"cell {place} ? ?here?"]


def test_actions_become_spaces_and_json(connect):
    """What the schema bounds needs no settings; enumerations arrive by their values."""
    group = connect(action={"lamps": {"n": 3, "shape": [2]}})
    actions = {leaf.path: leaf for leaf in group.spec.action.leaves()}
    assert sorted(actions) == ["force", "gait", "lamps", "loud"]
    assert (actions["gait"].nvec, actions["loud"].nvec, actions["lamps"].nvec) == ((3,), (2,), (3, 3))
    assert (actions["force"].low_array().tolist(), actions["force"].high_array().tolist()) == (-1, 1)
    Walk.received.clear()
    values = {"gait": [STAY], "loud": [1], "lamps": [[1, 2]], "force": [0.5]}
    group.advance([np.array(values[path], leaf.dtype).reshape(1, *leaf.shape) for path, leaf in actions.items()])
    (sent,) = Walk.received
    assert (sent.gait.value, sent.loud, sent.lamps, sent.force, sent.note) == ("stay", True, [1, 2], 0.5, "")


def test_rows_of_an_episode(connect):
    """The last row has the final observation and the reward, and the next one begins anew."""
    group = connect(2)
    assert group.spec.action.leaf is not None
    assert group.views.flags.tolist() == [FIRST, FIRST]
    steps = int(3 - seen(group)["place"][0])
    for tick in range(1, steps + 1):
        group.advance([np.array([RIGHT, STAY])])
        assert group.views.flags.tolist() == [TERMINATED if tick == steps else 0, 0]
    assert group.views.reward.tolist() == [1, 0]
    assert seen(group)["place"][0] == 3
    assert group.ended_statistics.tolist() == [[1, steps]]
    group.advance([np.array([RIGHT, STAY])])
    assert group.views.flags.tolist() == [FIRST, 0]
    assert seen(group)["place"][0] < 3


@pytest.mark.parametrize(("truncated_field", "flag"), [("late", TRUNCATED), ("", TERMINATED)])
def test_episode_that_was_cut_short(connect, truncated_field, flag):
    """OpenEnv knows only `done`; a field of the observation may say that it was a truncation."""
    group = connect(reset={"limit": 2}, truncated_field=truncated_field)
    group.advance([np.array([LEFT])])
    group.advance([np.array([LEFT])])
    assert group.views.flags.tolist() == [flag]


def test_max_episode_steps_truncates(connect):
    """A session that goes on is reset all the same."""
    group = connect(max_episode_steps=1)
    group.advance([np.array([LEFT])])
    assert group.views.flags.tolist() == [TRUNCATED]


def test_legal_actions_are_masks(connect):
    """At the wall there is no way to the left."""
    group = connect(2, legal_actions="allowed")
    for _ in range(3):
        group.advance([np.array([LEFT, LEFT])])
    assert group.views.mask.tolist() == [[0, 1, 1]] * 2
    assert group.spec.mask_size == 3


def test_same_seed_same_episodes(connect):
    """The server gets each lane's seed."""
    group = connect(4, reset={"size": 1000})
    starts = []
    for seed in (7, 3, 7):
        group.reset(seed)
        starts.append(seen(group)["place"].tolist())
    assert starts[0] == starts[2] != starts[1]
    assert len(set(starts[0])) > 1


def test_error_of_the_server_costs_one_episode(connect):
    """What it said is told; the lane comes back in a new session."""
    group = connect(
        2,
        action={
            "gait": {"values": ["stay"]},
            "note": {"values": ["", "raise"]},
            **{name: {"constant": value} for name, value in (("force", 0.0), ("loud", False), ("lamps", [0, 0]))},
        },
    )
    by_path = {"gait": [0, 0], "note": [1, 0]}
    group.advance([np.array(by_path[leaf.path]) for leaf in group.spec.action.leaves()])
    assert group.views.flags.tolist() == [FIRST, 0]
    assert group.counters().aborted == 0  # its episode had not gone one step
    assert "the walker fell" in group.counters().last_failure


def test_full_server_is_named(connect):
    """Every lane is a session, and a server has room for only so many."""
    with walk_server(sessions=2) as url:
        group = connect(2, url=url)
        with pytest.raises(EnvError, match="it must be made with max_concurrent_envs"):
            connect(1, url=url)
        group.close()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"action": {"speed": {"n": 2}}}, "no 'speed'; known:.*'gait'"),
        ({"action": {"note": {"n": 2, "values": ["a"]}}}, "note: give one of"),
        ({"action": {"note": {"gravy": 2}}}, r"action\.note: gravy"),
        ({"observe": ["smell"]}, "does not observe 'smell'; known:"),
        ({"observe": None}, "'allowed' is .* neither numbers nor text"),
        ({"observe": ["hint"]}, "'hint' is 'None' at a reset"),
        ({"observe": ["extra"]}, "'extra' is '{}' at a reset"),
        ({"observation": {"place": {"dtype": "complex64"}}}, r"observation\.place: dtype"),
        ({"observe": ["pixels"], "observation": {"pixels": {"dtype": "uint8"}}}, "set env.image"),
        ({"truncated_field": "over"}, "does not observe 'over'"),
        ({"legal_actions": "allowed", "action": LAMPS}, "one discrete field"),
        ({"gravy": 1}, "gravy"),
    ],
)
def test_wrong_settings_are_refused(connect, kwargs, said):
    """The error names the field, and what there is."""
    with pytest.raises(ConfigError, match=said):
        connect(**kwargs)


def test_absent_server_is_named():
    """It may come up later, so this is no configuration error."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EnvError, match=f"no OpenEnv server answers at {address}/schema"):
            make_group(EnvConfig(id=MAKE, kwargs={"url": address, "connect_s": 1.0}), 1)
