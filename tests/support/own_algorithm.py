"""The module of docs/own_algorithm.md, as a reader would copy it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "own_algorithm.md"
NAME = "my_algorithms:OwnCritic"


def write_module(folder: Path) -> None:
    """my_algorithms.py, out of the page."""
    found = re.search(r"```python\n(# my_algorithms.py.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    (folder / "my_algorithms.py").write_text(found[1], encoding="utf-8")
