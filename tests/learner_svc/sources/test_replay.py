"""Sequences are kept, drawn by priority, trained on as often as the ratio says, and found again after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seedbed.learner_svc.sources import replay
from seedbed.learner_svc.sources.replay import ReplaySource
from seedbed.learner_svc.sources.sequences import DATA, ENTRY, INDEX, sequence_bytes
from seedbed.learner_svc.sources.source import Origin, SourcePlan
from seedbed.shared.errors import ConfigError, RemoteWireError, StorageError
from seedbed.shared.protocol.layout import Array
from tests.learner_svc.sources.test_queue import RECORD, an_unroll, lanes_of

BATCH = 4


def a_replay(folder: Path = Path("."), ranks_here: int = 1, **changes: object) -> ReplaySource[int]:
    """A replay of 16 sequences whose first priorities are the numbers of their lanes, one at least."""
    options: dict[str, object] = {
        "capacity": 16, "max_bytes": 1 << 20, "start": 4, "ratio": 1.0, "priority_exponent": 1.0,
        "importance_exponent": 0.5, "is_file": False,
        "first_priorities": lambda arrays, _task: np.maximum(arrays["reward"][0], 1.0),
    } | changes  # fmt: skip
    plan = SourcePlan(
        batch=BATCH, num_buffers=2, weights={"": 1.0}, folder=folder, seed=1, ranks_here=ranks_here
    )  # fmt: skip
    return ReplaySource(RECORD, plan, **options)  # type: ignore[arg-type]


class Feeder:
    """Offers unrolls of lanes that count on, each named after its first lane."""

    def __init__(self, source: ReplaySource[int]) -> None:
        self.source, self.lane, self.offered = source, 0, 0

    def offer(self, lanes: int) -> int:
        self.source.offer(self.offered, lanes, an_unroll(self.lane, lanes), origin=Origin(7, self.offered))
        self.lane += lanes
        self.offered += 1
        return self.offered - 1

    def train(self, priorities: float | None = None) -> list[tuple[list[int], Array]]:
        """Take and release all batches that there are; the lanes of each, which agree in all fields, and weights."""
        batches = []
        self.source.fill()
        while (batch := self.source.take()) is not None:
            assert batch.weight_B is not None
            batches.append((lanes_of(batch.arrays), batch.weight_B))
            self.source.release(batch, None if priorities is None else np.full(BATCH, priorities, np.float32))
            self.source.fill()
        return batches


def test_unrolls_are_done_with_once_they_are_stored() -> None:
    """Not once they were trained on: what a queue waits for."""
    source = a_replay()
    feeder = Feeder(source)
    feeder.offer(3)
    assert source.fill() == [0]
    assert source.used() == [(0, 3)]
    assert source.used() == []
    assert source.take() is None, "training begins with 4 sequences"


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_the_ratio_is_held(ratio: float) -> None:
    """Over 400 new sequences, to two batches."""
    source = a_replay(ratio=ratio)
    feeder = Feeder(source)
    feeder.offer(4)
    drawn = BATCH * len(feeder.train())
    for _ in range(200):
        feeder.offer(2)
        drawn += BATCH * len(feeder.train())
    assert abs(drawn - 400 * ratio) <= 2 * BATCH
    assert source.metrics()["replay_ratio"] == pytest.approx(ratio, abs=2 * BATCH / 400)


def test_a_slow_learner_leaves_unrolls_waiting() -> None:
    """So that credit runs out: nothing is stored that the ratio has no use for yet."""
    source = a_replay()
    feeder = Feeder(source)
    for _ in range(20):
        feeder.offer(2)
    stored = [key for _ in range(5) for key in source.fill()]
    assert len(stored) == 10  # 4 lanes to begin with, those of both buffers, and two batches' worth
    first = source.take()
    assert first is not None
    assert source.fill() == []
    source.release(first)
    source.fill()
    assert source.fill() == [10, 11]


def test_the_oldest_give_way_to_the_newest() -> None:
    """First in, first out; the bound holds whatever comes."""
    source = a_replay()
    feeder = Feeder(source)
    for _ in range(30):
        feeder.offer(3)
        feeder.train()
    assert source.size == 16
    newest = {lane % 200 for lane in range(feeder.lane - 16, feeder.lane)}
    seen = set()
    for _ in range(40):
        feeder.offer(1)
        newest = {lane % 200 for lane in range(feeder.lane - 16, feeder.lane)}
        for lanes, _ in feeder.train():
            assert set(lanes) <= newest
            seen |= set(lanes)
    assert len(seen) > 16


def test_an_unroll_of_more_lanes_than_there_is_room() -> None:
    """Its last lanes are kept."""
    source = a_replay()
    Feeder(source).offer(21)
    source.fill()
    batch = source.take()
    assert batch is not None
    assert source.size == 16
    assert set(lanes_of(batch.arrays)) <= set(range(5, 21))


def test_sequences_are_drawn_by_priority_and_weighed_for_it() -> None:
    """P ∝ p^α; w = (P_min / P)^β of a batch, whose lanes are all different."""
    source = a_replay(capacity=64, ratio=200.0, priority_exponent=0.5)
    feeder = Feeder(source)
    feeder.offer(16)
    share = np.maximum(np.arange(16.0), 1.0) ** 0.5
    feeder.train()
    feeder.offer(1)  # lane 16, and 200 batches with it
    counts, share = np.zeros(17), np.append(share, 4.0)
    for lanes, weight_B in feeder.train():
        assert len(set(lanes)) == BATCH
        np.testing.assert_allclose(weight_B, (share[lanes].min() / share[lanes]) ** 0.5, rtol=1e-5)
        counts[lanes] += 1
    assert counts.sum() == 200
    assert counts[12:].sum() > 1.5 * counts[:5].sum()


def test_new_priorities_count_from_the_next_draw_on_but_not_for_successors() -> None:
    """What gave way while it was trained on leaves its place's new sequence as it is."""
    source = a_replay(capacity=8, ratio=1.0)
    feeder = Feeder(source)
    feeder.offer(8)
    source.fill()
    batch = source.take()
    assert batch is not None
    for _ in range(4):
        feeder.offer(2)
        source.fill()
    assert feeder.lane == 16
    source.release(batch, np.full(BATCH, 1e9, np.float32))
    assert source.metrics()["replay_priority_max"] == 15.0


def test_priorities_decide_what_is_drawn() -> None:
    """Sequences of next to no error are next to never drawn again."""
    source = a_replay(capacity=64, ratio=4.0)
    feeder = Feeder(source)
    feeder.offer(4)
    assert sorted(feeder.train(priorities=0.0)[0][0]) == [0, 1, 2, 3]
    feeder.offer(8)
    assert all(min(lanes) >= 4 for lanes, _ in feeder.train())


def test_a_large_batch_is_copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the loop is not held up; what it was drawn from stays where it is until all of it is copied."""
    monkeypatch.setattr(replay, "COPIED_BYTES", 1)  # one sequence in each call
    source = a_replay(capacity=4)
    feeder = Feeder(source)
    feeder.offer(4)
    for _ in range(BATCH - 1):
        source.fill()
        assert source.has_more
        assert source.take() is None
        feeder.offer(1)  # would overwrite what is still to be copied
    source.fill()
    batch = source.take()
    assert batch is not None
    assert sorted(lanes_of(batch.arrays)) == [0, 1, 2, 3]


def test_no_room_for_a_batch_is_refused_with_what_there_is() -> None:
    """Before anything is trained; so is more memory than the machine has."""
    with pytest.raises(ConfigError, match=r"replay_start"):
        a_replay(capacity=3)
    with pytest.raises(ConfigError, match=r"replay_bytes"):
        a_replay(max_bytes=3 * sequence_bytes(RECORD))
    with pytest.raises(ConfigError, match=r"replay_file"):
        a_replay(capacity=1 << 40, max_bytes=1 << 60)


def test_the_replays_of_all_ranks_on_a_machine_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone would."""
    monkeypatch.setattr(replay, "available_bytes", lambda: 40 * sequence_bytes(RECORD))
    assert a_replay(ranks_here=2).size == 0
    with pytest.raises(ConfigError, match="3 learner ranks"):
        a_replay(ranks_here=3)


def test_the_bound_in_bytes_is_kept() -> None:
    """Fewer sequences where they need more."""
    source = a_replay(max_bytes=9 * sequence_bytes(RECORD))
    feeder = Feeder(source)
    for _ in range(10):
        feeder.offer(3)
        feeder.train()
    assert source.size == 9
    assert source.metrics()["replay_bytes"] <= 9 * sequence_bytes(RECORD)


def test_a_frame_of_another_size_is_refused() -> None:
    """As by every source."""
    with pytest.raises(RemoteWireError):
        a_replay().check(2, 7)


def test_a_file_is_found_again_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    """With its priorities; unrolls that come again are done with at once."""
    first = a_replay(tmp_path, is_file=True)
    feeder = Feeder(first)
    for _ in range(3):
        feeder.offer(4)
    first.fill()
    second = a_replay(tmp_path, is_file=True)
    assert second.num_recovered == second.size == 12
    assert second.metrics()["replay_priority_max"] == 11.0
    again = Feeder(second)
    for _ in range(4):
        again.offer(4)
    assert second.fill()
    assert second.size == 16
    assert sum(lanes for _, lanes in second.used()) == 16


def test_what_a_disk_spoilt_is_left_out_and_counted(tmp_path: Path) -> None:
    """One bit of one sequence."""
    source = a_replay(tmp_path, is_file=True)
    Feeder(source).offer(6)
    source.fill()
    data = tmp_path / "replay" / "sequences.bin"
    spoilt = bytearray(data.read_bytes())
    spoilt[3 * (len(spoilt) // 16) + 1] ^= 4
    data.write_bytes(spoilt)
    again = a_replay(tmp_path, is_file=True)
    assert (again.num_recovered, again.num_torn) == (5, 1)


def test_rows_that_were_counted_are_not_counted_again_after_a_kill(tmp_path: Path) -> None:
    """Statistics of observations count a sequence in its first batch alone."""
    first = a_replay(tmp_path, is_file=True)
    Feeder(first).offer(6)
    first.fill()
    batch = first.take()
    assert batch is not None
    assert batch.fresh_B.all()
    drawn = set(lanes_of(batch.arrays))
    second = a_replay(tmp_path, is_file=True)
    Feeder(second).offer(6)
    fresh = {}
    for _ in range(20):
        second.fill()
        again = second.take()
        if again is None:
            break
        fresh = dict(zip(lanes_of(again.arrays), again.fresh_B.tolist(), strict=True)) | fresh
        second.release(again)
    assert not any(is_fresh for lane, is_fresh in fresh.items() if lane in drawn)


@pytest.mark.parametrize("changes", [{"capacity": 17}, {"max_bytes": 9 * sequence_bytes(RECORD)}])
def test_sequences_of_another_kind_are_kept_and_the_setting_is_named(tmp_path: Path, changes: dict[str, int]) -> None:
    """With the settings that they were made with they are found again."""
    source = a_replay(tmp_path, is_file=True)
    Feeder(source).offer(6)
    source.fill()
    with pytest.raises(ConfigError, match=r"algorithm\.replay_sequences or replay_bytes"):
        a_replay(tmp_path, is_file=True, **changes)
    assert a_replay(tmp_path, is_file=True).num_recovered == 6


def test_a_file_that_cannot_be_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, or one on a disk with a fault: what to do about it is said."""
    source = a_replay(tmp_path, is_file=True)
    Feeder(source).offer(6)
    source.fill()

    def is_refused(*_args: object, **_options: object) -> str:
        raise PermissionError(13, os.strerror(13))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", is_refused)
        with pytest.raises(StorageError, match="writable"):
            a_replay(tmp_path, is_file=True)
    assert a_replay(tmp_path, is_file=True).num_recovered == 6


def test_what_a_kill_left_before_the_files_were_ready_is_replaced(tmp_path: Path) -> None:
    """The header is written last."""
    folder = tmp_path / "replay"
    folder.mkdir()
    (folder / DATA).write_bytes(b"\xff" * 10_000)
    (folder / INDEX).write_bytes(b"\xff" * 10_000)
    assert a_replay(tmp_path, is_file=True).num_recovered == 0


def test_a_full_disk_is_told_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file that finds no block later would end the process by SIGBUS. What was tried takes no room then."""

    def is_full(*_args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    with pytest.raises(StorageError):
        a_replay(tmp_path, is_file=True)
    assert list((tmp_path / "replay").iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from tests.learner_svc.sources.test_replay import Feeder, a_replay
feeder = Feeder(a_replay(Path(sys.argv[1]), is_file=True, capacity=500, start=500, ratio=1e-9))
print("begun", flush=True)
while True:
    feeder.offer(5)
    feeder.source.fill()
"""


def test_a_kill_at_any_moment_leaves_whole_sequences(tmp_path: Path) -> None:
    """Ten SIGKILLs while it is written: every sequence that counts has its checksum."""
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            index = tmp_path / "replay" / INDEX
            before = np.fromfile(index, ENTRY)["number"].max()
            while process.poll() is None and np.fromfile(index, ENTRY)["number"].max() < before + 50:
                pass
            process.send_signal(signal.SIGKILL)
        found = a_replay(tmp_path, is_file=True, capacity=500, start=500)
        assert found.num_torn == 0
        assert found.num_recovered >= 50
