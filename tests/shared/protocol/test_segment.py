"""Segments of shared memory: both ends in one process, and producers that lie, are killed or find no room."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.segment import NoSegmentError, OpenedSegment, Segment, remove_orphans

SIZE = 100
PAGE = 4096


@pytest.fixture
def segment(shm_folder: Path) -> Segment:
    made = Segment(SIZE, shm_folder)
    yield made
    made.close()


def open_segment(segment: Segment, folder: Path) -> OpenedSegment:
    reader = OpenedSegment.open(segment.id, segment.num_bytes, folder)
    assert reader is not None
    return reader


def test_what_is_put_at_a_place_is_read_there(segment: Segment, shm_folder: Path) -> None:
    """Whoever has the file open knows its secret."""
    reader = open_segment(segment, shm_folder)
    assert reader.secret == segment.secret
    place = segment.put(0, [b"ab", bytearray(b"cd")])
    assert place is not None
    assert (place.segment, reader.read(place.offset, place.length)) == (segment.id, b"abcd")
    reader.close()


def test_the_name_is_gone_once_the_learner_has_opened_the_file(segment: Segment, shm_folder: Path) -> None:
    """So a process that is killed from then on leaves nothing."""
    assert list(shm_folder.iterdir())
    open_segment(segment, shm_folder).close()
    assert not list(shm_folder.iterdir())
    assert OpenedSegment.open(segment.id, SIZE, shm_folder) is None


def test_the_producer_removes_the_name_by_itself(segment: Segment, shm_folder: Path) -> None:
    segment.withdraw()
    segment.withdraw()
    assert not list(shm_folder.iterdir())


def test_places_are_a_ring(segment: Segment) -> None:
    """They follow each other, begin again where the first ones are free, and never overlap one that is taken."""
    assert [segment.put(seq, [bytes(40)]).offset for seq in (0, 1)] == [0, 40]
    assert segment.put(2, [bytes(40)]) is None
    segment.free(1)
    assert segment.put(2, [bytes(40)]).offset == 0
    assert segment.put(3, [bytes(1)]) is None
    segment.free(2)
    assert segment.put(3, [bytes(40)]).offset == 40
    segment.free(4)
    assert segment.put(4, [bytes(SIZE)]).offset == 0


def test_an_unroll_keeps_its_place_until_it_is_freed(segment: Segment) -> None:
    """It may be sent again; one that found no place before finds none when it is sent again."""
    place = segment.put(5, [b"abc"])
    assert segment.put(5, [b"abc"]) == place
    assert segment.put(4, [b"abc"]) is None
    segment.free(5)
    assert segment.put(5, [b"abc"]) == place
    segment.free(6)
    assert segment.put(7, [b"abc"]) is not None


@pytest.fixture
def large(shm_folder: Path) -> Segment:
    """A segment with room for weights, which begin a page."""
    made = Segment(4 * PAGE, shm_folder)
    yield made
    made.close()


def test_weights_are_put_at_the_place_that_was_named(large: Segment, shm_folder: Path) -> None:
    """Once for each request, and only weights of that size; none are there before."""
    opened = open_segment(large, shm_folder)
    place = large.place_for_weights(5)
    assert place is not None
    assert large.take_weights(7) is None
    opened.request_weights(*place)
    assert opened.put_weights(7, b"seven")
    assert (large.take_weights(7), large.take_weights(8)) == (b"seven", None)
    assert not opened.put_weights(8, b"eight"), "the producer may still read the former"
    opened.request_weights(*place)
    assert not opened.put_weights(8, b"longer")
    assert large.take_weights(7) == b"seven"
    opened.close()


def test_weights_that_change_while_they_are_read_are_not_taken(large: Segment, shm_folder: Path) -> None:
    """As by a late answer: the version that is there says so."""
    opened = open_segment(large, shm_folder)
    place = large.place_for_weights(5)
    assert place is not None
    for version, weights in ((7, b"seven"), (8, b"eight")):
        opened.request_weights(*place)
        assert opened.put_weights(version, weights)
    assert (large.take_weights(7), large.take_weights(8)) == (None, b"eight")
    opened.close()


def test_unrolls_and_weights_do_not_meet(large: Segment, shm_folder: Path) -> None:
    """The ring ends before the weights, which wait for unrolls that lie there."""
    unroll = large.put(0, [bytes(4 * PAGE)])
    assert unroll is not None
    assert large.place_for_weights(5) is None
    large.free(1)
    place = large.place_for_weights(5)
    assert place is not None
    assert (place.offset, place.length) == (3 * PAGE, 13)
    assert large.put(1, [bytes(4 * PAGE)]) is None
    assert large.put(2, [bytes(3 * PAGE)]) is not None
    assert large.put(3, [bytes(1)]) is None


@pytest.mark.parametrize("num_bytes", [2 * PAGE, 4 * PAGE, 1 << 40])
def test_weights_larger_than_half_a_segment_find_no_place(large: Segment, num_bytes: int) -> None:
    """Nor do others, once there is a place."""
    assert large.place_for_weights(num_bytes) is None
    assert large.place_for_weights(PAGE) is not None
    assert large.place_for_weights(PAGE + 1) is None


def test_a_request_for_weights_is_judged(large: Segment, shm_folder: Path) -> None:
    """A place beyond the segment is an error; one in another segment is none."""
    opened = open_segment(large, shm_folder)
    with pytest.raises(RemoteWireError):
        opened.request_weights(large.id, 4 * PAGE, 13)
    opened.request_weights(large.id + 1, 0, 13)
    assert not opened.put_weights(7, b"seven")
    opened.close()


def test_an_unroll_larger_than_the_segment_finds_no_place(segment: Segment) -> None:
    assert segment.put(0, [bytes(SIZE + 1)]) is None
    assert segment.put(1, [bytes(SIZE)]) is not None


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE + 1), (SIZE, 1), (2**62, 8), (1, 2**62)])
def test_a_place_beyond_the_segment_is_refused(segment: Segment, shm_folder: Path, offset: int, length: int) -> None:
    reader = open_segment(segment, shm_folder)
    with pytest.raises(RemoteWireError) as refused:
        reader.read(offset, length)
    assert refused.value.code == "segment"
    reader.close()


def test_a_file_that_was_cut_off_is_refused(segment: Segment, shm_folder: Path) -> None:
    """By a short read: with a map the process would get SIGBUS."""
    path = next(shm_folder.iterdir())
    file = os.open(path, os.O_RDWR)
    reader = open_segment(segment, shm_folder)
    place = segment.put(0, [b"abcd"])
    assert place is not None
    os.ftruncate(file, 10)
    os.close(file)
    with pytest.raises(RemoteWireError) as refused:
        reader.read(place.offset, place.length)
    assert refused.value.code == "segment"
    reader.close()


def test_a_copy_does_not_change_with_its_place(segment: Segment, shm_folder: Path) -> None:
    """What is judged is the copy, so writing to a place that was given away is of no use."""
    reader = open_segment(segment, shm_folder)
    place = segment.put(0, [b"good"])
    assert place is not None
    copy = reader.read(place.offset, place.length)
    segment.free(1)
    segment.put(1, [b"evil"])
    assert copy == b"good"
    assert reader.read(place.offset, place.length) == b"evil"
    reader.close()


@pytest.mark.parametrize("kind", ["nothing", "other", "pipe", "link", "short"])
def test_only_a_segment_is_opened(shm_folder: Path, kind: str) -> None:
    """No other file, and nothing that could block."""
    path, elsewhere = shm_folder / f"seedbed-{7:016x}", shm_folder / "elsewhere"
    with_secret = Segment(SIZE, shm_folder)
    next(shm_folder.iterdir()).rename(elsewhere)
    match kind:
        case "other":
            path.write_bytes(b"x" * 5000)
        case "short":
            path.write_bytes(b"seedbed1")
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(elsewhere)
    assert OpenedSegment.open(7, SIZE, shm_folder) is None
    with_secret.close()


def test_without_a_folder_or_room_there_is_no_segment(shm_folder: Path) -> None:
    space = os.statvfs(shm_folder)
    assert space.f_bavail * space.f_frsize < 1 << 60
    with pytest.raises(NoSegmentError):
        Segment(SIZE, shm_folder / "missing")


def test_a_segment_larger_than_the_free_space_is_not_made(shm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where /dev/shm has 64 MB unless it is told otherwise."""
    space = os.statvfs(shm_folder)
    full = os.statvfs_result((*space[:3], 0, 0, *space[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(NoSegmentError):
        Segment(SIZE, shm_folder)
    assert not list(shm_folder.iterdir())


def test_an_unroll_finds_no_place_when_memory_is_full(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have used it up since the segment was made: the process must not write to memory that is not there."""

    def full(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert segment.put(0, [bytes(40)]) is not None
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert segment.put(1, [bytes(40)]) is None
    segment.free(1)
    assert segment.put(2, [bytes(40)]) is not None, "this memory was there before"


def test_a_killed_producers_file_is_removed_and_a_living_ones_is_not(segment: Segment, shm_folder: Path) -> None:
    """The producer is killed between HELLO and WELCOME, the only time when the file has a name."""
    code = (
        "import os, signal, sys, pathlib; from seedbed.shared.protocol.segment import Segment; "
        "made = Segment(100, pathlib.Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(shm_folder)], check=False)
    (shm_folder / "seedbed-notes").write_text("of somebody else")
    assert len(list(shm_folder.iterdir())) == 3
    assert remove_orphans(shm_folder) == 1
    assert {path.name for path in shm_folder.iterdir()} == {f"seedbed-{segment.id:016x}", "seedbed-notes"}
