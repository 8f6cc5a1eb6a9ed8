"""Unrolls in the making."""

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc import unrolls
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.shared.protocol.recording import Per, RecordField, RecordSpec
from seedbed.shared.protocol.rows import Flags
from tests.support.specs import make_spec

SPEC = make_spec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3))


STATE = (RecordField("state/x", "float32", (5,), Per.LANE),)


def record(length: int = 3, overlap: int = 0) -> RecordSpec:
    return RecordSpec(SPEC, length, overlap, state=STATE)


def tick(number: int, lanes: int, flags: int = 0) -> list[np.ndarray]:
    observation = np.full((lanes, 2), number, np.float32) + np.arange(lanes, dtype=np.float32)[:, None] / 10
    return [observation, np.full(lanes, number, np.float32), np.full(lanes, flags, np.uint8)]


def read(buffer: bytearray, lanes: int, length: int = 3) -> list[np.ndarray]:
    return record(length).layout(lanes).views([buffer])


def test_the_last_row_of_an_unroll_is_the_first_of_the_next() -> None:
    """No row is lost between two unrolls, and both carry the shared one."""
    writer, sent = UnrollWriter(record(), 2), []
    for number in range(7):
        writer.write(tick(number, 2))
        if writer.is_complete:
            sent += [read(done.buffer, done.lanes) for done in writer.complete()]
    assert [unroll[1][:, 0].tolist() for unroll in sent] == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert writer.is_boundary


def test_a_sent_unroll_is_never_written_again() -> None:
    """The buffer that was handed over keeps its rows while the next unroll fills."""
    writer, sent = UnrollWriter(record(), 1), []
    for number in range(4):
        writer.write(tick(number, 1))
    sent += [done.buffer for done in writer.complete()]
    before = bytes(sent[0])
    for number in range(3):
        writer.write(tick(50 + number, 1))
    assert bytes(sent[0]) == before


def test_large_groups_leave_in_chunks_of_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unroll over the message limit is cut by lanes; together the chunks hold every lane once."""
    monkeypatch.setattr(unrolls, "MAX_UNROLL_BYTES", 2 * record().layout(1).num_bytes)
    writer, sent = UnrollWriter(record(), 5), []
    for number in range(4):
        writer.write(tick(number, 5))
    sent += [read(done.buffer, done.lanes) for done in writer.complete()]
    assert [unroll[1].shape[1] for unroll in sent] == [2, 2, 1]
    lanes = np.concatenate([unroll[0][1, :, 0] for unroll in sent])
    assert lanes.tolist() == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4])


def test_a_shortened_first_unroll_has_no_transitions_before_its_first_row() -> None:
    """Skipped rows are absent reset rows, so nothing of them is trained; the unroll completes that much earlier."""
    writer, sent = UnrollWriter(record(), 1, skip=2), []
    writer.write(tick(0, 1, int(Flags.FIRST)))
    writer.write(tick(1, 1))
    assert writer.is_complete
    sent += [read(done.buffer, done.lanes) for done in writer.complete()]
    reward, flags = sent[0][1], sent[0][2]
    assert reward[2:, 0].tolist() == [0, 1]
    assert (flags[1:3, 0] & Flags.FIRST).all()


@pytest.mark.parametrize("overlap", [0, 2])
def test_a_shortened_first_unroll_has_the_state_before_its_first_row(overlap: int) -> None:
    """A part of the state that no row changes, such as the task, is in it too."""
    shape, sent = record(3, overlap), []
    writer = UnrollWriter(shape, 1, skip=2)
    for number in range(7):
        writer.write(tick(number, 1, int(Flags.FIRST) if number == 0 else 0))
        if writer.is_complete:
            sent += [shape.layout(1).views([done.buffer])[-1] for done in writer.complete()]
        for _chunk, places in writer.state_places():
            places[0][...] = 7 + number
    assert [state[0, 0] for state in sent] == [7, 8]


def test_a_group_that_goes_on_after_a_lost_session_is_not_shortened() -> None:
    """Its first row is no reset row: the transition into it must not look like one that can be skipped."""
    writer = UnrollWriter(record(), 1, skip=2)
    writer.write(tick(0, 1))
    assert writer.is_boundary


@pytest.mark.parametrize(("skip", "overlap"), [(0, 0), (2, 0), (0, 2), (2, 2)])
def test_steps_that_have_left_in_no_unroll_are_counted(skip: int, overlap: int) -> None:
    """Each step of each lane once: not rows that a shortened first unroll skips, that two unrolls share, or resets."""
    writer = UnrollWriter(record(3, overlap), 2, skip=skip)
    assert writer.num_unsent_steps == 0
    unsent = 0
    for number in range(12):
        first = int(Flags.FIRST) if number in {0, 5} else 0
        writer.write(tick(number, 2, first))
        unsent += 0 if first else 2
        assert writer.num_unsent_steps == unsent
        if writer.is_complete:
            writer.complete()
            unsent = 0
            assert writer.num_unsent_steps == 0


def test_actions_that_nobody_took_have_no_log_probability() -> None:
    """Those at a row that a reset row follows: whoever reads unrolls may trust it without looking at flags."""
    writer, sent = UnrollWriter(record(), 2), []
    for number, flags in enumerate((int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.FIRST), 0)):
        writer.write(tick(number, 2, flags))
        if number < 3:
            writer.decide(0, {"log_prob": np.full(2, -1, np.float32)}, 1)
    sent += [read(done.buffer, done.lanes) for done in writer.complete()]
    assert sent[0][4][:, 0].tolist() == [-1.0, 0.0, -1.0]


def test_unrolls_may_share_more_than_their_last_row() -> None:
    """With an overlap every unroll begins with transitions of the one before, and with the policy state before them."""
    shape = record(3, overlap=2)
    writer, sent = UnrollWriter(shape, 2), []
    for number in range(12):
        writer.write(tick(number, 2))
        if writer.is_complete:
            (done,) = writer.complete()
            assert (done.first_lane, done.start) == (0, 3 * len(sent))
            sent.append(shape.layout(done.lanes).views([done.buffer]))
            assert writer.is_boundary
        for chunk, places in writer.state_places():
            places[0][...] = number + chunk.start
        writer.decide(0, {"log_prob": np.full(2, -number, np.float32)}, number)
    names = [item.name for item in shape.fields]
    reward, log_prob, version, state = (names.index(name) for name in ("reward", "log_prob", "version", "state/x"))
    assert [unroll[reward][:, 1].tolist() for unroll in sent] == [
        [0, 1, 2, 3, 4, 5],
        [3, 4, 5, 6, 7, 8],
        [6, 7, 8, 9, 10, 11],
    ]
    assert [unroll[log_prob][:, 0].tolist() for unroll in sent[1:]] == [[-3, -4, -5, -6, -7], [-6, -7, -8, -9, -10]]
    assert [unroll[version].tolist() for unroll in sent[1:]] == [[3, 4, 5, 6, 7], [6, 7, 8, 9, 10]]
    assert [unroll[state][0, 0] for unroll in sent] == [0, 3, 6]
