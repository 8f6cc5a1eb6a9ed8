"""Playing a run's policy: whole episodes, and a video."""

import json
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from rich.console import Console

from seedbed.actor_svc.envs import make_group, make_smallest_group
from seedbed.actor_svc.pictures import as_rgb
from seedbed.learner_svc.run.checkpoint import save
from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.env.playing import show
from seedbed.services.tools.cli.evaluate import by_task, load_policy, play, play_episodes, record_video
from seedbed.services.tools.cli.report import render_tasks, report_evaluation
from seedbed.services.tools.cli.training import make_video
from seedbed.shared.errors import CheckpointError, ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.scores.scale import ScoreScale
from tests.support.experience import RECORDING


def make_run(folder: Path, env: EnvConfig, policy: PolicyConfig, *, kind="latest", lanes: int = 4) -> Path:
    """A run folder with an untrained policy in its checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    group = make_smallest_group(env)
    group.close()
    network = Policy(group.spec, policy)
    flat = FlatParameters(network).flat.numpy()
    manifest = make_manifest(network, RECORDING).to_json()
    save(folder / "checkpoints", step=7, arrays={"policy.flat": flat}, meta={"manifest": manifest}, kind=kind)
    sections = {"run": {"name": "small"}, "env": env.model_dump(mode="json"), "eval": {"lanes": lanes, "episodes": 9}}
    (folder / "config.toml").write_text(to_toml(sections))
    return folder


@pytest.fixture
def cartpole_run(tmp_path) -> Path:
    """CartPole, a recurrent policy."""
    return make_run(tmp_path / "run", EnvConfig(id="CartPole-v1"), PolicyConfig(lstm=8))


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("episodes", [1, 4, 9])
def test_exactly_the_asked_number_of_episodes_is_played(cartpole_run, greedy, episodes):
    """Each lane plays its share; CartPole pays one for each step."""
    seen = []
    played = play_episodes(load_policy(cartpole_run), episodes, greedy=greedy, seed=3, finished=seen.append)
    assert played.names == ("return", "length")
    assert played.statistics.shape == (episodes, 2)
    assert np.array_equal(played.returns, played.statistics[:, 1])
    assert seen[-1] == episodes
    assert seen == sorted(seen)


def test_an_evaluation_has_the_environment_that_its_section_says(cartpole_run):
    """The policy was trained in another one, and fits all the same."""
    with (cartpole_run / "config.toml").open("a") as file:
        file.write("env = { max_episode_steps = 5 }\n")
    played = play_episodes(load_policy(cartpole_run), 4, greedy=True, seed=3)
    assert played.returns.tolist() == [5.0] * 4
    recorded = record_video(load_policy(cartpole_run), cartpole_run / "policy.mp4", seed=2)
    assert set(recorded.returns) == {5.0}


def test_the_same_seed_plays_the_same_episodes(cartpole_run):
    """Sampled actions too: their noise is keyed."""
    trained = load_policy(cartpole_run)
    first, second = (play_episodes(trained, 6, greedy=False, seed=5).statistics for _ in range(2))
    other = play_episodes(trained, 6, greedy=False, seed=6).statistics
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_eval_says_which_checkpoint_it_loads(cartpole_run):
    """Best and latest may differ."""
    with pytest.raises(CheckpointError, match="--which latest"):
        load_policy(cartpole_run, "best")
    make_run(cartpole_run, EnvConfig(id="CartPole-v1"), PolicyConfig(lstm=8), kind="best")
    assert load_policy(cartpole_run, "best").checkpoint.kind == "best"


def test_a_run_without_a_checkpoint_is_told_so(tmp_path):
    """Nothing is made up."""
    (tmp_path / "config.toml").write_text('[env]\nid = "CartPole-v1"\n')
    with pytest.raises(CheckpointError, match="no latest checkpoint yet"):
        load_policy(tmp_path)


def test_a_policy_of_another_specification_is_refused(cartpole_run):
    """The environment's settings changed since."""
    text = (cartpole_run / "config.toml").read_text()
    (cartpole_run / "config.toml").write_text(text.replace('id = "CartPole-v1"', 'id = "Acrobot-v1"'))
    with pytest.raises(CheckpointError, match="another specification"):
        play_episodes(load_policy(cartpole_run), 1, greedy=True, seed=1)


def test_what_shows_an_environment_may_be_another_backend(tmp_path):
    """A policy of Pong is watched, whatever stepped Pong in training; other differences count."""
    pytest.importorskip("ale_py")
    env = EnvConfig(id="ALE/Pong-v5", backend="ale_sync")
    policy = PolicyConfig(network="impala_shallow", network_kwargs={"features": 8})
    run = make_run(tmp_path / "run", env, policy)
    with show("ALE/Pong-v5", [], str(run), greedy=True, seed=1) as shown:
        next(shown.ticks)
        next(shown.ticks)
    with (
        pytest.raises(CheckpointError, match="another specification"),
        show("ALE/Pong-v5", ["env.frame_skip=2"], str(run), greedy=True, seed=1),
    ):
        pass


def test_the_agents_of_a_world_play_together_however_few_episodes_are_asked_for(tmp_path):
    """Those of them that have no share of the episodes play along."""
    pytest.importorskip("mpe2")
    env = EnvConfig(id="seedbed.services.pettingzoo.env:make", kwargs={"env": "mpe2.simple_spread_v3"})
    run = make_run(tmp_path / "run", env, PolicyConfig(), lanes=6)
    played = play_episodes(load_policy(run), 4, greedy=True, seed=1)
    assert len(played.returns) == 4


def test_the_report_shows_mean_median_and_spread(cartpole_run, capsys):
    """And which checkpoint, and how it was played."""
    console = Console(width=100)
    report_evaluation(cartpole_run, 5, console, video=None, greedy=None, which="latest", seed=None)
    text = capsys.readouterr().out
    for word in ("5 episodes, greedy", "mean", "median", "std", "min", "max", "return", "length", "update 7"):
        assert word in text


def test_the_report_normalises_where_there_is_a_scale(tmp_path, capsys):
    """Of one environment below its table, with the scale's source; of several tasks in it, with mean and median."""
    pytest.importorskip("ale_py")
    env = EnvConfig(id="ALE/Pong-v5", backend="ale_sync", noop_max=0)
    run = make_run(tmp_path / "run", env, PolicyConfig(network="mlp", hidden=[4]), lanes=1)
    report_evaluation(run, 1, Console(width=120), video=None, greedy=True, which="latest", seed=None)
    assert "random play -20.7, human 14.6; Wang et al. 2016" in capsys.readouterr().out

    scales = {"a": ScoreScale(random=0.0, human=4.0), "b": ScoreScale(random=0.0, human=2.0)}
    console = Console(width=120)
    console.print(render_tasks({name: np.full(3, 3.0, np.float32) for name in scales}, scales, "3 episodes"))
    cells = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-2:] for line in cells if line and line[-1] == "%"] == [
        ["75", "%"], ["150", "%"], ["112", "%"], ["112", "%"], ["88", "%"],
    ]  # fmt: skip
    console.print(render_tasks({"a": np.ones(3, np.float32)}, {"a": None}, "3 episodes"))
    assert "%" not in capsys.readouterr().out


def test_a_video_is_long_enough_to_be_watched(cartpole_run, tmp_path):
    """Whole episodes for 8 s at the environment's own speed, in a file that can be read."""
    file = tmp_path / "videos" / "policy.mp4"
    recorded = record_video(load_policy(cartpole_run), file, seed=2)
    assert recorded.seconds >= 8.0
    assert recorded.frames == pytest.approx(recorded.seconds * 50), "CartPole's render_fps"
    assert len(recorded.returns) > 1
    assert recorded.frames > sum(recorded.returns), "the last picture of an episode stays for a moment"
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-i",
        str(file),
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    pictures = np.frombuffer(raw, np.uint8).reshape(-1, 400, 600, 3)
    assert abs(len(pictures) - recorded.frames) <= 1
    assert pictures[0].std() > 0


def test_a_video_that_cannot_be_written_is_told_so(cartpole_run, tmp_path):
    """Before the encoder starts, whose complaint would be a broken pipe."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no video can be written here: "):
        record_video(load_policy(cartpole_run), tmp_path / "file" / "video.mp4")
    with pytest.raises(ConfigError, match=r"\.mp4"):
        record_video(load_policy(cartpole_run), tmp_path / "video.txt")
    assert not (tmp_path / "video.txt").exists()


def test_an_environment_that_cannot_be_shown_costs_only_the_video(tmp_path, capsys):
    """The run is as good without."""
    env = EnvConfig(id="tests.support.toy_envs:CountingEnv")
    run = make_run(tmp_path / "run", env, PolicyConfig())
    make_video(run, Console(width=200))
    assert "no video" in capsys.readouterr().out
    assert not (run / "policy.mp4").exists()


@pytest.mark.parametrize(
    ("axes", "shape"), [("HW", (4, 5)), ("HWC", (4, 5, 1)), ("CHW", (1, 4, 5)), ("CHW", (4, 4, 5))]
)
def test_observations_become_pictures(axes, shape):
    """Grey thrice, colours as they are."""
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    picture = as_rgb(image, axes)
    assert picture.shape == (4, 5, 3)
    assert picture[0, 0, 0] == 0


def test_manifests_hold_what_is_needed(cartpole_run):
    """Evaluation needs nothing but the run folder."""
    (manifest,) = (cartpole_run / "checkpoints").glob("*.json")
    assert json.loads(manifest.read_text())["meta"]["manifest"]


@pytest.fixture
def task_run(tmp_path) -> Path:
    """One policy for two memory tasks of different delays."""
    env = EnvConfig(id="seedbed.services.memory.env:make", kwargs={"min_delay": 0, "max_delay": 2})
    folder = make_run(tmp_path / "tasks", env, PolicyConfig(), lanes=2)
    with (folder / "config.toml").open("a") as file:
        file.write("[tasks]\nshort = {}\nlong = { env = { kwargs = { min_delay = 4, max_delay = 4 } } }\n")
    return folder


def test_a_policy_of_several_tasks_plays_each_with_its_own_environment(task_run):
    """The delay tells which one it was."""
    players = by_task(load_policy(task_run))
    assert list(players) == ["short", "long"]
    lengths = {name: play_episodes(player, 6, greedy=True, seed=1).statistics[:, 1] for name, player in players.items()}
    assert set(lengths["long"]) == {6.0}
    assert lengths["short"].max() <= 4.0


def test_one_task_may_be_asked_for_by_name(task_run, cartpole_run):
    """A name that is none is told with those there are."""
    assert list(by_task(load_policy(task_run), "long")) == ["long"]
    with pytest.raises(ConfigError, match="did you mean 'long'"):
        by_task(load_policy(task_run), "lang")
    with pytest.raises(ConfigError, match="no task 'long'"):
        by_task(load_policy(cartpole_run), "long")


def test_the_report_of_several_tasks_is_a_table(task_run, capsys):
    """A line for each, and their mean."""
    console = Console(width=120)
    report_evaluation(task_run, 3, console, video=None, greedy=True, which="latest", seed=1)
    text = capsys.readouterr().out
    assert "3 episodes of each task" in text
    for word in ("short", "long", "mean over tasks"):
        assert word in text


def test_a_policy_that_tells_tasks_apart_plays_each_as_itself(tmp_path):
    """One that was told to push left in one task and right in the other does so."""
    folder, env = tmp_path / "run", {"id": "CartPole-v1", "max_episode_steps": 5}
    group = make_group(EnvConfig(id="CartPole-v1"), 1)
    group.close()
    folder.mkdir()
    network = Policy(group.spec, PolicyConfig(hidden=[], task_input=True), ("left", "right"))
    parameters = FlatParameters(network)
    with torch.no_grad():
        parameters.flat.zero_()
        network.head.weight[0, 4] = network.head.weight[1, 5] = 50.0
    arrays = {"policy.flat": parameters.flat.numpy()}
    save(folder / "checkpoints", step=7, arrays=arrays, kind="latest",
         meta={"manifest": make_manifest(network, RECORDING).to_json()})  # fmt: skip
    sections = {"run": {"name": "small"}, "env": env, "tasks": {"left": {"env": {}}, "right": {"env": {}}}}
    (folder / "config.toml").write_text(to_toml(sections))
    acted = {}
    for task, trained in by_task(load_policy(folder)).items():
        group = make_group(trained.settings.env, 2)
        actions, advance = [], group.advance
        group.advance = lambda action, advance=advance, seen=actions: (seen.append(action[0].tolist()), advance(action))
        ticks = play(trained, group, greedy=True, seed=1)
        for _ in range(4):
            next(ticks)
        group.close()
        acted[task] = actions
    assert acted == {"left": [[0, 0]] * 3, "right": [[1, 1]] * 3}
