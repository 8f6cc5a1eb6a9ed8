"""Several seeds of one experiment, and what they say together."""

import csv
import json
import struct

import numpy as np
import pytest
from rich.console import Console

from seedbed.services.tools.cli import seeds
from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.experiment import write_words
from seedbed.services.tools.cli.runs import resolve_source
from seedbed.services.tools.cli.seeds import draw, interval, train_seeds, write_csv
from seedbed.shared.errors import ConfigError
from tests.support.run_folders import write_run

WORDS = [
    "run.steps=4096", "actor.lanes=8", "learner.batch=16", "learner.unroll_length=16", "eval.episodes=4",
    "eval.lanes=4",
    "launch.video=false", "learner.tensorboard=false", "run.seed=5",
]  # fmt: skip


def test_the_interval_is_students(tmp_path):
    """As tables give it: ten values of deviation 1 lie 0.715 about their mean; one value has none."""
    values = np.random.default_rng(0).normal(size=10)
    values = (values - values.mean()) / values.std(ddof=1) + 3
    low, high = interval(list(values)) or (0, 0)
    assert (low, high) == (pytest.approx(3 - 0.7154, abs=1e-3), pytest.approx(3 + 0.7154, abs=1e-3))
    assert interval([1.0]) is None
    wide = interval([0.0, 1.0] * 50) or (0, 0)
    assert wide[1] - wide[0] == pytest.approx(2 * 1.984 * 0.5025 / 10, rel=0.03)


def training(tmp_path, folder, *words):
    """The command line that trains CartPole for a moment."""
    file = tmp_path / "short.toml"
    file.write_text('[env]\nid = "CartPole-v1"\n')
    return ["train", str(file), *WORDS, "--run-dir", str(folder), *words]


def test_seeds_go_on_with_the_settings_that_they_were_started_with(tmp_path, monkeypatch, capsys):
    """Also those that are not begun yet, with the recipe that was chosen for the first one; later words count more."""
    file = tmp_path / "short.toml"
    file.write_text('[env]\nid = "CartPole-v1"\n')
    started = []

    def train(experiment, _console):
        started.append(experiment)
        experiment.run_dir.mkdir(parents=True, exist_ok=True)
        write_words(experiment)
        return 130 if len(started) == 2 else 0

    monkeypatch.setattr(seeds, "train", train)
    monkeypatch.setattr(seeds, "play_fresh", lambda *_: {"fresh_return_mean": 1.0})
    monkeypatch.setattr(seeds, "read_metrics", lambda _: [])
    folder, console = tmp_path / "runs", Console()
    assert (
        train_seeds(file, ["learner.batch=48", "run.seed=10"], 3, run_dir=folder, resume=False, console=console) == 130
    )
    recipe = (folder / "seed-10" / "recipe.toml").read_text()
    assert train_seeds(file, ["actor.groups=1"], 3, run_dir=folder, resume=True, console=console) == 0
    assert [experiment.settings.run.seed for experiment in started] == [10, 11, 11, 12]
    assert {experiment.sections["learner"]["batch"] for experiment in started} == {48}
    assert started[-1].settings.actor.groups == 1
    assert (folder / "seed-12" / "recipe.toml").read_text() == recipe


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_seeds_are_trained_kept_and_summed_up(tmp_path, capsys):
    """Each has a run folder of its own; what was trained is not trained again; one more seed is one more run."""
    folder = tmp_path / "runs"
    assert main(training(tmp_path, folder, "--seeds", "1")) == 0
    first = (folder / "seed-5" / "metrics.csv").read_bytes()
    assert main(training(tmp_path, folder, "--seeds", "2")) == 78
    assert "already holds seeds" in capsys.readouterr().err.replace("\n", "")
    source = folder / "seed-5"
    (source / "precision.json").write_text("{}")  # as measured there
    assert main(training(tmp_path, folder, "--seeds", "2", "--resume", f"learner.init_from={source}")) == 0
    assert (folder / "seed-5" / "metrics.csv").read_bytes() == first
    assert (folder / "seed-6" / "precision.json").read_text() == "{}"
    summary = json.loads((folder / "seed-6" / "summary.json").read_text())
    assert summary["precision"]["dtype"] == "float32"
    assert summary["precision"]["channels_last"] is False
    assert "seed = 6" in (folder / "seed-6" / "config.toml").read_text()
    result = json.loads((folder / "seeds.json").read_text())
    returns = [item["fresh_return_mean"] for item in result["seeds"]]
    assert [item["seed"] for item in result["seeds"]] == [5, 6]
    assert [item["fresh_episodes"] for item in result["seeds"]] == [4, 4]
    assert result["mean"] == pytest.approx(np.mean(returns))
    assert result["interval"][0] <= result["mean"] <= result["interval"][1]
    with (folder / "curves.csv").open() as file:
        assert {row["seed"] for row in csv.DictReader(file)} == {"5", "6"}
    assert (folder / "curves.png").stat().st_size > 1000
    assert "over 2 seeds" in capsys.readouterr().out
    assert str(source / "checkpoints") in taken_over(folder / "seed-6"), "it began from scratch"


def test_curves_of_tasks_are_kept_and_drawn_beside_their_mean(tmp_path):
    """Columns and a panel for each task; without tasks there are two panels."""
    plain = [{"trained_steps": "10", "seconds": "1", "return_mean": "2"}]
    tasked = [plain[0] | {"return_mean/easy": "3", "eval_return_mean/easy": "", "return_mean/b.2": "1"}]
    for name, curve in (("plain", plain), ("tasked", tasked)):
        write_csv(tmp_path / f"{name}.csv", {1: [], 2: curve})
        assert draw(tmp_path / f"{name}.png", name, {1: [], 2: curve})
    with (tmp_path / "tasked.csv").open() as file:
        row = next(csv.DictReader(file))
    assert list(row)[-4:] == ["return_mean/easy", "eval_return_mean/easy", "return_mean/b.2", "eval_return_mean/b.2"]
    assert (row["seed"], row["return_mean"], row["return_mean/easy"], row["return_mean/b.2"]) == ("2", "2", "3", "1")
    assert "/" not in (tmp_path / "plain.csv").read_text()
    width, height = struct.unpack(">2I", (tmp_path / "tasked.png").read_bytes()[16:24])
    plain_width, plain_height = struct.unpack(">2I", (tmp_path / "plain.png").read_bytes()[16:24])
    assert (width, height) == (1.5 * plain_width, 2 * plain_height)


def taken_over(run_dir):
    """Whose weights a run began with, as its learner logged it."""
    lines = [json.loads(line) for line in (run_dir / "logs" / "learner.jsonl").read_text().splitlines()]
    return next((line["path"] for line in lines if line["event"] == "weights_taken_over"), "")


def test_seeds_and_sources_that_are_not_there_are_told(tmp_path, capsys):
    """Before anything starts."""
    for words, message in (
        (["--seeds", "2", "--resume"], "no seeds to go on with"),
        (["--init-from", str(tmp_path / "absent")], "no run there"),
        (["--init-from", "some*where"], "no run there"),
        (["--init-from", str(tmp_path / "absent"), "--resume"], "--init-from is for new runs"),
    ):
        assert main(training(tmp_path, tmp_path / "run", *words)) == 78
        assert message in capsys.readouterr().err.replace("\n", "")
    assert not (tmp_path / "run").exists()


def test_a_source_is_a_run_or_one_of_its_checkpoints(tmp_path, monkeypatch):
    """By path or by name; a run that has saved nothing yet is refused."""
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "runs" / "toy-20260101-000000", [])
    with pytest.raises(ConfigError, match="has not a checkpoint"):
        resolve_source("toy", resume=False)
    (run / "checkpoints").mkdir()
    file = run / "checkpoints" / "00000001-latest-step3.json"
    file.touch()
    assert resolve_source("toy", resume=False) == run
    assert resolve_source(str(file), resume=False) == file
