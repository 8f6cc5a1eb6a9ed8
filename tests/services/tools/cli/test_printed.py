"""What services print stays within bounds."""

from seedbed.services.tools.cli.postmortem import last_words
from seedbed.services.tools.cli.printed import KEPT_BYTES, MAX_BYTES, trim


def test_a_file_that_grew_too_large_begins_anew_and_its_end_is_kept(tmp_path):
    """The writer, which appends, goes on at its beginning; what it says last is found."""
    file = tmp_path / "actor-0.stderr"
    with file.open("ab", buffering=0) as writer:
        writer.write(b"x" * MAX_BYTES)
        trim(file)
        assert file.stat().st_size == MAX_BYTES
        writer.write(b"\nthe end\n")
        trim(file)
        writer.write(b"ValueError: after it\n")
    assert file.read_bytes() == b"ValueError: after it\n"
    kept = (tmp_path / "actor-0.stderr.1").read_bytes()
    assert (len(kept), kept[-8:]) == (KEPT_BYTES, b"the end\n")
    assert last_words(file, MAX_BYTES) == "ValueError: after it"


def test_a_file_that_is_not_there_is_no_matter(tmp_path):
    """A service that has not begun."""
    trim(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
