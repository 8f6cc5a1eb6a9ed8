"""Experiments: found, merged, checked, and kept with their run."""

import shlex
import tomllib
from pathlib import Path

import pytest

from seedbed.learner_svc.algorithms.config import BUILT_IN
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.experiment import experiment_names, find_experiment, load_experiment, write_words
from seedbed.services.tools.cli.runs import RECORD, Need, resolve_run
from seedbed.shared.errors import ConfigError

TEXT = """
[run]
name = "small"
[env]
id = "CartPole-v1"
kwargs = { sutton_barto_reward = true }
[learner]
batch = 16
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """A small experiment in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def load(file: Path, *words: str, run_dir=None, resume=False, now=0.0):
    """Load it without a clock."""
    return load_experiment(file, words, run_dir=run_dir, resume=resume, now=now)


def make_run(folder: Path) -> Path:
    """A folder that holds a run, as far as the command line looks."""
    folder.mkdir(parents=True)
    (folder / RECORD).touch()
    return folder


def test_an_experiment_is_found_by_name_and_by_path(file):
    """A name means a shipped one, a path means itself."""
    assert find_experiment("cartpole").name == "cartpole.toml"
    assert find_experiment(str(file)) == file


@pytest.mark.parametrize(("name", "hint"), [("cartpol", "did you mean 'cartpole'"), ("zzz", "there are: acrobot")])
def test_an_unknown_experiment_is_refused_with_a_suggestion(name, hint):
    """A typo costs one look."""
    with pytest.raises(ConfigError, match=hint):
        find_experiment(name)


def test_a_missing_file_is_not_mistaken_for_a_name(tmp_path):
    """What looks like a path is reported as one."""
    with pytest.raises(ConfigError, match="no such experiment file"):
        find_experiment(str(tmp_path / "absent.toml"))


@pytest.mark.parametrize("name", experiment_names())
def test_every_shipped_experiment_is_valid(name, tmp_path):
    """Nothing that we ship is refused by our own checks."""
    experiment = load(find_experiment(name), run_dir=tmp_path / "run")
    assert experiment.settings.env.id
    assert experiment.name == name


def test_words_are_stronger_than_variables_and_these_than_the_file(file, monkeypatch):
    """The three sources in their order."""
    monkeypatch.setenv("SEEDBED_LEARNER__BATCH", "32")
    monkeypatch.setenv("SEEDBED_ACTOR__LANES", "8")
    experiment = load(file, "actor.lanes=4")
    assert experiment.sections["learner"]["batch"] == 32
    assert experiment.settings.actor.lanes == 4


def test_another_algorithm_on_the_command_line_leaves_out_the_settings_of_the_files_own(tmp_path, monkeypatch):
    """`seedbed train FILE algorithm.name=appo` needs no edit of a file that is written for V-trace."""
    monkeypatch.chdir(tmp_path)
    file = find_experiment("cartpole")
    settings = load(file, "algorithm.name=appo", "algorithm.learning_rate=1e-3").settings
    assert (settings.algorithm.name, settings.algorithm.learning_rate) == ("appo", 1e-3)
    assert settings.actor.lanes == load(file).settings.actor.lanes
    assert load(file, "algorithm.name=vtrace").settings.algorithm == load(file).settings.algorithm


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ((), (1, 1)),
        (("algorithm.name=appo",), (4, 4)),
        (("algorithm.name=appo", "learner.reuse=2"), (2, 4)),
        (("algorithm.name=r2d2",), (1, 1)),
        (("learner.minibatches=3",), (1, 3)),
    ],
)
def test_passes_over_a_batch_are_the_algorithms_own_unless_they_are_given(tmp_path, monkeypatch, words, passes):
    """Those of APPO are several, also where a file that is written for V-trace names none."""
    monkeypatch.chdir(tmp_path)
    settings = load(find_experiment("cartpole"), *words).settings
    read = LearnerSettings(env=settings.env, learner=settings.learner, algorithm=settings.algorithm)
    assert read.passes == passes


def test_the_snapshot_says_the_same_as_the_merged_experiment(file, tmp_path):
    """What the services read back is what was checked."""
    experiment = load(file, "learner.batch=64", 'actor.upstream=["tcp://a:1", "tcp://b:2"]', "policy.squash=false")
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(experiment.sections))
    assert tomllib.loads(copy.read_text()) == experiment.sections
    again = load(copy)
    assert again.settings == experiment.settings.model_copy(update={"run": again.settings.run})
    assert again.sections == experiment.sections


def test_a_new_run_gets_a_folder_of_its_own(file):
    """runs/<name>-<time>."""
    folder = load(file).run_dir
    assert folder.parent.name == "runs"
    assert folder.name.startswith("small-19")


def test_the_files_name_is_the_runs_name_unless_it_says_another(file, tmp_path):
    """Two copies of one file are told apart."""
    plain = tmp_path / "plain.toml"
    plain.write_text('[env]\nid = "CartPole-v1"\n')
    assert load(plain).name == "plain"
    assert load(file).name == "small"


def test_a_run_is_not_overwritten(file, tmp_path):
    """A folder that holds a run needs --resume."""
    folder = make_run(tmp_path / "mine")
    with pytest.raises(ConfigError, match="already holds a run"):
        load(file, run_dir=folder)
    assert load(file, run_dir=folder, resume=True).sections["run"]["resume"] is True


def test_a_run_goes_on_with_the_settings_that_it_was_started_with(file, tmp_path):
    """Named on the command line then, not again now; what is named now counts more, and so on for the next time."""
    folder = make_run(tmp_path / "mine")
    write_words(load(file, "learner.batch=32", "run.seed=5", run_dir=folder, resume=True))
    again = load(file, "run.seed=6", run_dir=folder, resume=True)
    assert (again.settings.learner.batch, again.settings.run.seed) == (32, 6)
    assert again.sections["learner"]["batch"] == 32
    write_words(again)
    assert load(file, run_dir=folder, resume=True).settings.run.seed == 6
    assert "learner.batch=32 run.seed=6 --resume" in again.resume_command


def test_a_moved_run_goes_on_where_it_is_now(file, tmp_path):
    """Where it lay is not among the settings that are kept."""
    folder = make_run(tmp_path / "mine")
    write_words(load(file, f"run.dir={tmp_path}/mine", "run.resume=true"))
    moved = folder.rename(tmp_path / "elsewhere")
    assert load(file, run_dir=moved, resume=True).words == ()


def test_damaged_words_are_named(file, tmp_path):
    """With what to do: the settings of the first start are not guessed."""
    folder = make_run(tmp_path / "mine")
    (folder / "words.json").write_text('["learner.batch=32"')
    with pytest.raises(ConfigError, match=r"words.json.*name the settings again"):
        load(file, run_dir=folder, resume=True)


def test_resuming_nothing_is_refused(file, tmp_path):
    """Starting from scratch is not ours to decide."""
    with pytest.raises(ConfigError, match="nothing to resume"):
        load(file, run_dir=tmp_path / "absent", resume=True)
    with pytest.raises(ConfigError, match="no run of 'small'"):
        load(file, resume=True)


def test_resume_takes_the_newest_run_of_that_name(file, tmp_path):
    """Names carry their time."""
    for name in ("small-20260101-000000", "small-20260301-000000", "other-20260401-000000"):
        make_run(tmp_path / "runs" / name)
    assert load(file, resume=True).run_dir.name == "small-20260301-000000"


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("actor.lane=4", "did you mean 'lanes'"),
        ("lerner.batch=4", "did you mean 'learner'"),
        ("actor.lanes=0", "lanes"),
        ("learner.batsh=4", "did you mean 'batch'"),
        ("algorithm.learning_rat=1e-3", "did you mean 'learning_rate'"),
        ("learner.max_policy_lag=2", "use fewer lanes"),
        ("algorithm.name=dreamer", f"none of {', '.join(BUILT_IN)}, module:Class; `seedbed settings algorithm`"),
        ("algorithm.kl_target=0.1", "a key of name = 'appo'"),
        ("env.backend=envpol", "did you mean 'envpool'"),
    ],
)
def test_mistakes_are_found_before_anything_starts(file, word, complaint):
    """Key, section and value; each named."""
    with pytest.raises(ConfigError, match=complaint):
        load(file, word)


def test_a_run_is_found_by_path_by_name_and_by_experiment(file, tmp_path):
    """Whatever a user types for RUN."""
    folder = make_run(tmp_path / "runs" / "small-20260101-000000")
    assert resolve_run(str(folder), Need.POLICY) == folder
    assert resolve_run("small-20260101-000000", Need.POLICY) == folder
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "00000001-latest-step3.json").touch()
    assert resolve_run("small", Need.POLICY) == folder
    with pytest.raises(ConfigError, match="did you mean"):
        resolve_run("small-20260101-000001", Need.POLICY)


def test_a_run_says_how_it_is_gone_on_with(file, tmp_path):
    """With the words that it was started with, as a shell reads them; an experiment of ours goes by its name."""
    folder = tmp_path / "with space"
    experiment = load(file, "learner.batch=32", "policy.hidden=[16]", run_dir=folder)
    words = shlex.split(experiment.resume_command)
    assert words == [
        "seedbed", "train", str(file), "learner.batch=32", "policy.hidden=[16]", "--resume", "--run-dir", str(folder),
    ]  # fmt: skip
    shipped = load(find_experiment("cartpole"), run_dir=folder)
    assert shipped.resume_command.startswith("seedbed train cartpole --resume")


def test_a_file_that_is_not_there_suggests_its_neighbour(file):
    """And a folder is told to be one."""
    with pytest.raises(ConfigError, match=r"did you mean small\.toml"):
        find_experiment("smal_.toml")
    (file.parent / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        find_experiment("folder.toml")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("run.seconds=5",), r"run.seconds.*set run.steps"),
        (("learner.publish_every=2",), "learner.publish_every"),
        (("tasks.a.weight=1",), "tasks"),
        (("launch.inference=2",), "launch.inference"),
        (("launch.eval_actors=2",), "launch.eval_actors"),
        (("launch.eval_actors=0", "eval.every_steps=5"), "eval.every_steps"),
        (("launch.actors=0",), "inference.lockstep_groups"),
    ],
)
def test_what_cannot_be_deterministic_is_refused_by_name(file, words, complaint):
    """Before anything starts; without the mode it is no problem."""
    load(file, "run.recipe=none", *words)
    with pytest.raises(ConfigError, match=complaint):
        load(file, "run.recipe=none", "run.deterministic=true", *words)


def test_lockstep_without_a_deterministic_run_is_refused_by_name(file):
    """With it, the number may be given."""
    with pytest.raises(ConfigError, match=r"inference\.lockstep_groups.*run\.deterministic"):
        load(file, "run.recipe=none", "inference.lockstep_groups=2")
    load(file, "run.recipe=none", "inference.lockstep_groups=2", "run.deterministic=true")


def test_a_deterministic_run_cannot_be_resumed(file):
    """It would not be the same as one that never stopped."""
    make_run(Path("runs/small-20250101-000000"))
    with pytest.raises(ConfigError, match=r"run\.resume"):
        load(file, "run.recipe=none", "run.deterministic=true", resume=True)
