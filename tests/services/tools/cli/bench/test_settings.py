"""Settings that a benchmark would not use are refused."""

import pytest

from seedbed.services.tools.cli.bench import run_bench
from seedbed.shared.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "words", "curve"),
    [("transport", ["runtime.uvloop=false"], False), ("replay", ["learner.batch=9"], False), ("inference", [], True)],
)
def test_what_would_say_nothing_is_refused_at_once(name: str, words: list[str], curve: bool) -> None:
    """A figure that was measured with something else than was asked for misleads."""
    with pytest.raises(ConfigError, match=name):
        next(run_bench(name, 1.0, words, curve=curve))
