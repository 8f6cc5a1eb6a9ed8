"""What is looked at before a run: mistakes leave nothing behind, and what steps an environment is kept."""

import io
import sys
import tomllib

import pytest
from rich.console import Console

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.experiment import RECIPE, RECORD, choose_source, load_experiment, write_words
from seedbed.services.tools.cli.preflight import look_before_start
from seedbed.shared.errors import ConfigError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; the command's search path ends with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def load(*words: str, env: str = "CartPole-v1", memory: bool = False, **options):
    """An experiment of an environment alone."""
    file, given = choose_source(None, words, env=env, memory=memory)
    return load_experiment(file, given, **{"run_dir": None, "resume": False, **options})


def look(experiment):
    """The experiment once it was looked at, and what was said."""
    said = io.StringIO()
    return look_before_start(experiment, Console(file=said, width=200)), said.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["--env", "CartPole-v9"],
        ["--env", "CartPole-v1", "policy.network=nonsense"],
        ["--env", "CartPole-v1", "learner.batsh=4"],
        ["cartpole", "policy.network=no_such_module:Net"],
        ["cartpole", "env.id=Taxi-v3"],
        ["cartpole", "--env", "CartPole-v1"],
        ["cartpole", "--memory"],
        ["cartpole", "algorithm.name=r2d2", "learner.echo=2"],
        ["cartpole", "policy.value_heads=per_task"],
    ],
)
def test_a_mistake_leaves_no_run_behind(here, words, capsys):
    """Its exit status is that of a wrong configuration, and it is told."""
    assert main(["train", *words]) == 78
    assert "error" in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_an_environment_alone_is_trained_by_a_recipe_and_its_own_words(here):
    """Named after it; what is said beside counts more; how it is gone on with names it."""
    experiment = load("learner.batch=48", env="CartPole-v1")
    assert experiment.name == "CartPole-v1"
    assert experiment.settings.run.recipe == experiment.sections["run"]["recipe"] == "vector-discrete"
    assert experiment.settings.learner.batch == 48
    assert experiment.settings.algorithm.name == experiment.recipe.settings["algorithm"]["name"]
    assert experiment.resume_command.startswith("seedbed train --env CartPole-v1 learner.batch=48 --resume")
    assert load("run.name=other").name == "other"


def test_a_setting_may_stand_where_an_experiments_name_does(here):
    """`seedbed train --env ID learner.batch=3`: there is no experiment to name."""
    assert choose_source("learner.batch=3", ["run.seed=2"], env="X-v0", memory=True) == (
        None, ['env.id="X-v0"', "run.recipe=auto+memory", "learner.batch=3", "run.seed=2"],
    )  # fmt: skip


def test_memory_is_given_where_it_is_asked_for(here):
    """As part of the recipe's name, which resuming repeats."""
    experiment = load(memory=True, env="seedbed.services.memory.env:make")
    assert (experiment.name, experiment.settings.run.recipe) == ("memory", "vector-discrete+memory")
    assert experiment.settings.policy.lstm > 0
    assert "run.recipe=auto+memory" in experiment.resume_command


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ('[env]\nid = "CartPole-v1"\n', "vector-discrete"),
        ('[env]\nid = "CartPole-v1"\n[learner]\nbatch = 8\n', ""),
        ('[run]\nrecipe = "auto"\n[env]\nid = "CartPole-v1"\n[learner]\nbatch = 40\n', "vector-discrete"),
        ('[run]\nrecipe = "none"\n[env]\nid = "CartPole-v1"\n', "none"),
        ('[run]\nrecipe = "vector-continuous"\n[env]\nid = "CartPole-v1"\n', "vector-continuous"),
        ('[run]\nrecipe = "none"\n[env]\nid = "CartPole-v1"\n[launch]\nactors = 0\neval_actors = 0\n', "none"),
    ],
)
def test_a_file_gets_a_recipe_if_it_asks_or_says_nothing_of_learning(here, text, recipe):
    """What it says itself stays."""
    (here / "one.toml").write_text(text)
    experiment = load_experiment(here / "one.toml", [], run_dir=None, resume=False)
    assert experiment.settings.run.recipe == recipe
    if "batch" in text:
        assert f"batch = {experiment.settings.learner.batch}\n" in text


def test_a_run_that_makes_no_environment_must_say_how_to_learn(here):
    """Plain defaults in silence would learn nothing for hours; a name is enough."""
    (here / "one.toml").write_text('[env]\nid = "CartPole-v1"\n')
    words = ["launch.actors=0", "launch.eval_actors=0"]
    with pytest.raises(ConfigError, match=r"run\.recipe="):
        load_experiment(here / "one.toml", words, run_dir=None, resume=False)
    named = load_experiment(here / "one.toml", [*words, "run.recipe=vector-discrete"], run_dir=None, resume=False)
    assert named.settings.learner.reuse > 1


def test_a_run_goes_on_with_the_recipe_that_it_began_with(here):
    """As it was kept, whatever the recipe says by then and however fast the environment is."""
    folder = here / "runs" / "one"
    folder.mkdir(parents=True)
    experiment = load(run_dir=folder)
    write_words(experiment)
    (folder / RECORD).touch()
    kept = tomllib.loads((folder / RECIPE).read_text())
    assert kept["name"] == "vector-discrete"
    text = (folder / RECIPE).read_text()
    (folder / RECIPE).write_text(text.replace("unroll_length = ", "unroll_length = 1"))
    again = load(run_dir=folder, resume=True)
    assert again.settings.learner.unroll_length == int(f"1{experiment.settings.learner.unroll_length}")
    assert again.settings.run.recipe == "vector-discrete"


def test_what_steps_an_environment_is_said_and_kept(here):
    """In its [env], which the run's record has too; a run that goes on is not looked at again, and keeps it."""
    experiment, said = look(load(env="MountainCar-v0", run_dir=here / "one"))
    found = experiment.sections["env"]["stepped_by"]
    assert "TimeLimit<OrderEnforcing<MountainCarEnv>>" in found
    assert found in said
    (here / "one").mkdir()
    write_words(experiment)
    (here / "one" / RECORD).write_text('[env]\nstepped_by = "as it was"\n')
    again, said = look(load(env="MountainCar-v0", run_dir=here / "one", resume=True))
    assert again.sections["env"]["stepped_by"] == "as it was"
    assert said == ""


def test_lanes_that_come_together_fill_the_groups(here):
    """Those of evaluations too; what would fit is said."""
    pytest.importorskip("mpe2")
    (here / "world.toml").write_text(
        '[env]\nid = "seedbed.services.pettingzoo.env:make"\nkwargs.env = "mpe2.simple_spread_v3"\n'
    )
    found, _ = look(load_experiment(here / "world.toml", [], run_dir=None, resume=False))
    assert found.settings.actor.lanes % 3 == found.settings.eval.lanes % 3 == 0
    with pytest.raises(ConfigError, match=r"actor\.lanes.*66"):
        look(load_experiment(here / "world.toml", ["actor.lanes=64"], run_dir=None, resume=False))
    with pytest.raises(ConfigError, match=r"eval\.lanes.*12"):
        look(load_experiment(here / "world.toml", ["eval.lanes=10"], run_dir=None, resume=False))


def test_tasks_may_play_the_same_environment(here):
    """And differ in what their rewards count."""
    (here / "two.toml").write_text(
        '[run]\nrecipe = "auto"\n[env]\nid = "CartPole-v1"\n[tasks.a]\n[tasks.b]\nweight = 2\n'
    )
    _, said = look(load_experiment(here / "two.toml", [], run_dir=None, resume=False))
    assert said.count("CartPole") == 2


def test_the_environment_of_evaluations_is_looked_at_too(here):
    """It is another one if [eval] says so, and must have the same spaces."""
    memory = "seedbed.services.memory.env:make"
    words = ["--env", memory, "env.kwargs.cues=4"]
    assert main(["train", *words, "eval.env.kwargs.cues=3"]) == 78
    assert main(["train", *words, "eval.env.kwargs.cuse=4"]) == 78
    experiment, _ = look(
        load("env.kwargs.cues=4", "eval.env.kwargs.max_delay=9", env="seedbed.services.memory.env:make")
    )
    assert experiment.settings.eval.env == {"kwargs": {"max_delay": 9}}


def test_each_task_is_looked_at(here):
    """Spaces that differ are told by task; what steps each is kept with it."""
    (here / "two.toml").write_text(
        '[run]\nrecipe = "auto"\n[env]\nid = "seedbed.services.memory.env:make"\n'
        "[tasks.a]\nenv.kwargs = { cues = 4 }\n[tasks.b]\nenv.kwargs = { cues = 4, max_delay = 9 }\n"
    )
    words = ["learner.batch=64"]
    experiment, said = look(load_experiment(here / "two.toml", words, run_dir=None, resume=False))
    assert {table["env"]["stepped_by"] for table in experiment.sections["tasks"].values()} != {""}
    assert said.count("MemoryEnv") == 2
    (here / "two.toml").write_text((here / "two.toml").read_text().replace("cues = 4, max", "cues = 3, max"))
    assert main(["train", str(here / "two.toml"), *words]) == 78


def test_a_recipe_for_other_spaces_is_told(here):
    """It is used all the same: it was named."""
    experiment = load("run.recipe=vector-continuous")
    assert "vector-discrete suits these" in look(experiment)[1]
    assert "suits" not in look(load())[1]


def test_nothing_is_looked_at_where_that_does_harm(here):
    """launch.probe=false, as for a robot."""
    experiment = load("launch.probe=false", "run.recipe=vector-discrete", env="no_such_module:make")
    assert look(experiment) == (experiment, "")


def test_a_recipe_is_listed_and_written_out(here, capsys):
    """The file trains as the environment would have been."""
    assert main(["recipes"]) == 0
    assert "image-continuous" in capsys.readouterr().out
    assert main(["recipes", "--env", "CartPole-v1", "learner.unroll_length=8"]) == 0
    (here / "written.toml").write_text(capsys.readouterr().out)
    written = load_experiment(here / "written.toml", [], run_dir=here / "a", resume=False).settings
    meant = load("learner.unroll_length=8", run_dir=here / "a").settings
    assert written.model_dump(exclude={"run": {"name"}}) == meant.model_dump(exclude={"run": {"name"}})
