"""What is told of a service that died."""

import json

from seedbed.services.tools.cli.postmortem import explain_output, last_words

LOG = '{"event": "service_ready", "level": "info", "timestamp": "t", "service": "learner"}'
TRACEBACK = """Traceback (most recent call last):
  File "/a/b.py", line 3, in main
    serve()
  File "/a/c.py", line 9, in serve
    raise OSError("no such simulator")
OSError: no such simulator"""


def test_the_message_of_a_service_is_taken_whole():
    """Its own lines at the end, without the log around them."""
    lines = [LOG, "seedbed learner: one", "seedbed learner: two", ""]
    assert explain_output(lines) == "seedbed learner: one\nseedbed learner: two"


def test_a_traceback_is_shortened_to_its_end():
    """Message first, then where it was raised."""
    said = explain_output([LOG, *TRACEBACK.splitlines()])
    assert said.splitlines()[0] == "OSError: no such simulator"
    assert "/a/c.py" in said
    assert "/a/b.py" not in said


def test_only_the_last_life_counts():
    """A restarted service appends to the same file."""
    said = explain_output([*TRACEBACK.splitlines(), LOG, "seedbed learner: the second time"])
    assert said == "seedbed learner: the second time"


def test_an_error_in_the_log_is_better_than_nothing():
    """Where there is no plain text, the last error line speaks."""
    failed = '{"event": "service_failed", "error": "port taken", "level": "error", "timestamp": "t"}'
    assert explain_output([failed, LOG]) == "port taken"
    crashed = json.dumps({"event": "service_crashed", "exception": TRACEBACK, "level": "error"})
    assert explain_output([crashed]) == explain_output(TRACEBACK.splitlines())
    other = '{"event": "odd", "count": 3, "level": "error"}'
    assert explain_output([other]) == "odd count=3"


def test_silence_is_empty(tmp_path):
    """Killed processes say nothing, and a file may be missing."""
    assert explain_output([LOG]) == ""
    assert last_words(tmp_path / "absent") == ""


def test_a_huge_file_is_read_from_its_end(tmp_path):
    """A flood of output does not hold the launcher up."""
    file = tmp_path / "stderr"
    file.write_text((LOG + "\n") * 20_000 + "seedbed actor: gone\n")
    assert last_words(file) == "seedbed actor: gone"
