"""One event, one line: JSON for machines, colour for people."""

import io
import json
import logging

import pytest

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime import logs
from seedbed.shared.runtime.config import RuntimeConfig


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def lines(text: str) -> list[dict]:
    """The JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_carry_who_wrote_them():
    """Service, name and incarnation are on every line, the standard library's included."""
    stream = io.StringIO()
    log = logs.configure("inference", "inference-2", 255, RuntimeConfig(), stream)
    log.info("weights_loaded", version=7)
    logging.getLogger("other").warning("careful %s", "now")
    first, second = lines(stream.getvalue())
    assert first["event"] == "weights_loaded"
    assert (first["version"], first["level"], first["incarnation"]) == (7, "info", "ff")
    assert (second["service"], second["name"]) == ("inference", "inference-2")
    assert second["event"] == "careful now"


def test_matplotlib_tells_nobody_of_its_fonts():
    """A learner that draws its curves in a new container would."""
    stream = io.StringIO()
    logs.configure("learner", "learner", 1, RuntimeConfig(), stream)
    logging.getLogger("matplotlib.font_manager").info("generated new fontManager")
    logging.getLogger("matplotlib.font_manager").warning("no such font")
    (only,) = lines(stream.getvalue())
    assert only["event"] == "no such font"


def test_the_level_is_kept():
    """Events below the level are not written."""
    stream = io.StringIO()
    log = logs.configure("actor", "a", 1, RuntimeConfig(log_level="warning"), stream)
    log.info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines(stream.getvalue())] == ["loud"]


def test_the_log_file_is_appended_to(tmp_path):
    """A restarted service goes on in the same file; away from a terminal only the file is written."""
    file = tmp_path / "logs" / "learner.jsonl"
    stream = io.StringIO()
    for number in range(2):
        log = logs.configure("learner", "l", 1, RuntimeConfig(log_file=file), stream)
        log.info("started", number=number)
        logs.close()
    assert [line["number"] for line in lines(file.read_text())] == [0, 1]
    assert stream.getvalue() == ""


@pytest.mark.parametrize("is_text", [True, False])
def test_the_format_can_be_asked_for(is_text):
    """Text without colours where nobody would see them, and JSON on a terminal."""
    stream = io.StringIO() if is_text else Terminal()
    log = logs.configure("actor", "a", 1, RuntimeConfig(log_format="text" if is_text else "json"), stream)
    log.info("started", number=3)
    line = stream.getvalue()
    assert "started" in line
    assert "\x1b" not in line
    assert line.endswith("number=3\n") if is_text else lines(line)[0]["number"] == 3


def test_a_terminal_gets_readable_lines(tmp_path):
    """Not JSON there; JSON in the file at the same time."""
    stream, file = Terminal(), tmp_path / "a.jsonl"
    log = logs.configure("learner", "l", 1, RuntimeConfig(log_file=file), stream)
    log.info("started", number=3)
    assert "started" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
    assert lines(file.read_text())[0]["number"] == 3


def test_an_exception_is_written_with_its_traceback():
    """The traceback is a field of the line."""
    stream = io.StringIO()
    log = logs.configure("learner", "l", 1, RuntimeConfig(), stream)
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("update_failed")
    assert "ValueError: boom" in lines(stream.getvalue())[0]["exception"]


def test_a_log_file_that_cannot_be_written_is_a_configuration_error(tmp_path):
    """The error names the key."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"runtime\.log_file"):
        logs.configure("learner", "l", 1, RuntimeConfig(log_file=tmp_path / "file" / "x.jsonl"), io.StringIO())
