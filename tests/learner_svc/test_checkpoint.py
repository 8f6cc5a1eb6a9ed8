"""Checkpoints: what is kept, what is refused, and that kill -9 at any moment costs at most the save it hit."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from seedbed.learner_svc.run.checkpoint import clean, list_checkpoints, load, load_latest, save
from seedbed.shared.errors import CheckpointError, StorageError
from tests.support.full_disk import full_disk

ROOT = Path(__file__).parents[2]


def save_step(folder, step, kind="latest", keep=3):
    """A small checkpoint that says its step twice."""
    arrays = {"weights": np.full((3, 2), step, np.float32), "count": np.array(step, np.int64)}
    return save(folder, step=step, arrays=arrays, meta={"trained_steps": 10 * step}, kind=kind, keep=keep)


def kept(folder):
    """(kind, step) of every checkpoint, oldest first."""
    return [(item.kind, item.step) for item in list_checkpoints(folder)]


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    """Arrays with dtype and shape, writable; meta as JSON."""
    path = save_step(tmp_path / "new", 7)
    checkpoint = load(path)
    assert (checkpoint.step, checkpoint.kind, checkpoint.meta) == (7, "latest", {"trained_steps": 70})
    assert checkpoint.arrays["weights"].dtype == np.float32
    np.testing.assert_array_equal(checkpoint.arrays["weights"], np.full((3, 2), 7))
    assert checkpoint.arrays["count"].shape == ()
    checkpoint.arrays["weights"][0, 0] = 1


def test_transposed_arrays_are_saved_by_value(tmp_path):
    """Memory order is not part of a checkpoint."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    path = save(tmp_path, step=1, arrays={"x": array}, meta={})
    np.testing.assert_array_equal(load(path).arrays["x"], array)


def test_the_newest_few_one_best_and_every_milestone_are_kept(tmp_path):
    """Each kind has its own limit, and no tensors stay behind."""
    for step in range(1, 5):
        save_step(tmp_path, step, keep=2)
        save_step(tmp_path, step, "best", keep=2)
        if step % 2:
            save_step(tmp_path, step, "milestone", keep=2)
    assert kept(tmp_path) == [
        ("milestone", 1), ("latest", 3), ("milestone", 3), ("latest", 4), ("best", 4),
    ]  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 10


def test_the_newest_is_what_was_saved_last_even_if_its_step_is_lower(tmp_path):
    """After falling back to an older checkpoint, steps go back; serial numbers do not."""
    save_step(tmp_path, 50)
    save_step(tmp_path, 20)
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 20


def test_a_best_one_is_no_newer_than_those_saved_before_it(tmp_path):
    """It was written when its evaluation ended, and holds the weights that it began with."""
    for step, kind in ((5, "latest"), (9, "latest"), (5, "best")):
        save_step(tmp_path, step, kind)
    newest = load_latest(tmp_path)
    assert newest is not None
    assert (newest.kind, newest.step) == ("latest", 9)
    for path in tmp_path.glob("*-latest-*.safetensors"):
        path.write_bytes(b"broken")
    left = load_latest(tmp_path)
    assert left is not None
    assert left.kind == "best"


def test_one_that_is_of_no_use_is_passed_over(tmp_path):
    """Whole, and refused by who asked."""
    for step in (1, 2):
        save_step(tmp_path, step)

    def check(checkpoint):
        if checkpoint.step == 2:
            raise CheckpointError("of no use")

    found = load_latest(tmp_path, check=check)
    assert found is not None
    assert found.step == 1


def test_every_changed_bit_is_found(tmp_path):
    """Anywhere in either file, a thousand times; the one before is loaded then."""
    before, newest = save_step(tmp_path, 1), save_step(tmp_path, 2)
    rng = random.Random(5)
    found = 0
    for path in (newest, newest.with_suffix(".safetensors")):
        whole = path.read_bytes()
        for number in range(500):
            place = number * len(whole) // 500  # every region
            changed = bytearray(whole)
            changed[place] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(CheckpointError):
                load(newest)
            found += 1
        latest = load_latest(tmp_path)
        assert latest is not None
        assert latest.path == before
        path.write_bytes(whole)
    assert found == 1000
    assert load(newest).step == 2


def test_a_manifest_of_the_first_format_is_still_read(tmp_path):
    """It has no digest of itself."""
    path = save_step(tmp_path, 1)
    manifest = json.loads(path.read_text()) | {"format": 1}
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    assert load(path).step == 1


def test_a_kind_can_be_asked_for(tmp_path):
    """`eval` loads the best one, though others are newer."""
    save_step(tmp_path, 1, "best")
    save_step(tmp_path, 2)
    best = load_latest(tmp_path, kinds=("best",))
    assert best is not None
    assert best.step == 1
    assert load_latest(tmp_path, kinds=("milestone",)) is None


def test_no_checkpoint_ever_is_none(tmp_path):
    """An empty folder, or none at all, is a fresh start."""
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "absent") is None


def damage_tensors(path):
    """One bit."""
    tensors = path.with_suffix(".safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)


def cut_tensors(path):
    """As a full disk leaves them."""
    tensors = path.with_suffix(".safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-3])


def remove_tensors(path):
    """As an eager clean-up leaves them."""
    path.with_suffix(".safetensors").unlink()


def cut_manifest(path):
    """Half a JSON text."""
    path.write_text(path.read_text()[:40])


def change_format(path):
    """Written by a later version."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))


@pytest.mark.parametrize("damage", [damage_tensors, cut_tensors, remove_tensors, cut_manifest, change_format])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, damage):
    """And named, never loaded in part."""
    save_step(tmp_path, 1)
    newest = save_step(tmp_path, 2)
    damage(newest)
    with pytest.raises(CheckpointError, match=newest.name):
        load(newest)
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 1


def test_checkpoints_of_which_none_can_be_read_are_an_error(tmp_path):
    """Training never starts from scratch in silence."""
    cut_tensors(save_step(tmp_path, 1))
    with pytest.raises(CheckpointError, match="move them away"):
        load_latest(tmp_path)


def test_a_manifest_cannot_name_tensors_elsewhere(tmp_path):
    """Only the file's own name counts."""
    (tmp_path / "inside").mkdir()
    path = save_step(tmp_path / "inside", 1)
    manifest = json.loads(path.read_text())
    path.with_suffix(".safetensors").rename(tmp_path / "outside.safetensors")
    manifest["tensors"]["file"] = "../outside.safetensors"
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        load(path)


def test_cleaning_removes_strays_and_nothing_else(tmp_path):
    """Temporary files, and tensors whose manifest was never written."""
    save_step(tmp_path, 1)
    (tmp_path / ".tmp-00000002-latest-step2.safetensors").write_bytes(b"half")
    (tmp_path / "00000003-latest-step3.safetensors").write_bytes(b"no manifest")
    (tmp_path / "notes.txt").write_text("mine")
    assert clean(tmp_path) == 2
    assert kept(tmp_path) == [("latest", 1)]
    assert (tmp_path / "notes.txt").exists()
    assert clean(tmp_path / "absent") == 0


@pytest.fixture
def killer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process whose children save into `tmp_path` until killed."""
    program = ROOT / "tests" / "support" / "save_until_killed.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
    ) as process:  # fmt: skip
        yield process


def survive_kills(folder: Path, killer: subprocess.Popen[str], times: int) -> None:
    """Each kill leaves the newest checkpoint that had returned, or the one that the kill met, whole."""
    assert killer.stdin is not None
    assert killer.stdout is not None
    generator, promised, num_met = random.Random(11), 0, 0
    for _ in range(times):
        killer.stdin.write(f"{generator.uniform(0.005, 0.1)}\n")
        killer.stdin.flush()
        while (line := killer.stdout.readline()) != "killed\n":
            promised = int(line.removeprefix("saved "))
        if not promised:
            continue
        checkpoint = load_latest(folder)
        assert checkpoint is not None
        assert checkpoint.step in (promised, promised + 1)
        assert checkpoint.meta == {"step": checkpoint.step}
        assert all((array == checkpoint.step).all() for array in checkpoint.arrays.values())
        promised = checkpoint.step
        num_met += clean(folder) > 0
        assert not [path for path in folder.iterdir() if path.name.startswith(".tmp-")]
    assert promised > 0
    assert num_met > 0, "no kill met a save: the test shows nothing"
    killer.stdin.close()


def test_twenty_kills_cost_no_checkpoint(tmp_path, killer):
    """kill -9 at a random moment, twenty times."""
    survive_kills(tmp_path, killer, 20)


@pytest.mark.slow
def test_two_hundred_kills_cost_no_checkpoint(tmp_path, killer):
    """The same, for longer."""
    survive_kills(tmp_path, killer, 200)


def test_a_save_that_the_disk_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    """The error names file and remedy; nothing half written keeps the space that the next attempt needs."""
    save(tmp_path, step=1, arrays={"x": np.zeros(4, np.float32)}, meta={})
    with full_disk(), pytest.raises(StorageError, match=r"cannot write .*latest-step2\.safetensors: File too large"):
        save(tmp_path, step=2, arrays={"x": np.zeros(4, np.float32)}, meta={})
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    assert len(list(tmp_path.iterdir())) == 2
    assert save(tmp_path, step=2, arrays={"x": np.zeros(4, np.float32)}, meta={}).exists()
