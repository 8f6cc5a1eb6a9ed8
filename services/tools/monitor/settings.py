"""What a run was told to do: its settings in one flat table, and which of them set it apart from its like. Pure.

Secrets are hidden before anything leaves here: sections that may hold them, values whose name says what they are, and
what looks like one within a text.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

MAX_SETTINGS = 2000  # of one run
MAX_CHARACTERS = 300  # of a value
HIDDEN = "(hidden)"
PRIVATE_SECTIONS = ("runtime", "monitor")  # of one process: keys, tokens, addresses of its own
NOT_COMPARED = (
    "run.name",
    "run.dir",
    "run.resume",
    "learner.bind",
    "inference.bind",
)  # differ for no reason of interest

_WORD = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|keys?|tokens?|secrets?|password|passwd|pwd|credentials?"
    r"|auth(?:orization)?)"
)
_HUMP = r"(?-i:(?<=[a-z0-9])(?=[A-Z]))"  # where a word begins in camelCase
_SCHEME = r"(?:(?:Bearer|Basic|Digest|Token)\s+)?"
_VALUE = r"""(?:"(?:[^"\\]|\\.)*(?:"|$)|'(?:[^'\\]|\\.)*(?:'|$)|[^\s,;&"'}\])]+)"""  # quotes may be cut off
_SECRET_NAME = re.compile(rf"(?:^|[_.-]|{_HUMP}){_WORD}(?:$|[_.-])", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    rf"""((?:\b|_|{_HUMP}){_WORD}["']?\s*[=:]\s*{_SCHEME}){_VALUE}"""
    r"""|(\bBearer\s+)[^\s"']+"""
    r"""|(://)(?:[^/@\s"':]{1,200}:[^\s"']{1,200}|[^/@\s"']{1,200})(?=@)""",  # a password may have slashes
    re.IGNORECASE | re.DOTALL,
)


def hide_secrets(text: str) -> str:
    """A text without what looks like a password, token or key in it. Cut it afterwards: half of one is not seen."""
    return _SECRET_TEXT.sub(lambda found: next(filter(None, found.groups())) + HIDDEN, text)


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Setting → its value as text, tables within tables with dots between their names."""
    public = {name: table for name, table in config.items() if name not in PRIVATE_SECTIONS}
    return dict(_flat(public, "", MAX_SETTINGS))


def _flat(table: Mapping[str, Any], prefix: str, room: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in table.items():
        if len(found) >= room:
            break
        name = f"{prefix}{key}"
        if _SECRET_NAME.search(key):
            found.append((name, HIDDEN))
        elif isinstance(value, Mapping) and value:
            found += _flat(value, f"{name}.", room - len(found))
        else:
            found.append((name, _text(value)))
    return found


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not text:
        return '""'
    public = hide_secrets(text)
    return public[:MAX_CHARACTERS] + ("…" if len(public) > MAX_CHARACTERS else "")


def differences(runs: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return, for each run, the settings whose value differs from that of most runs which have the setting."""
    tables = list(runs)
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for table in tables:
        for key, value in table.items():
            values[key][value] += 1
    usual = {
        key: found.most_common(1)[0] for key, found in values.items() if len(found) > 1 and key not in NOT_COMPARED
    }
    common = {key: value for key, (value, count) in usual.items() if 2 * count > values[key].total()}
    return [{key: table[key] for key in usual if key in table and table[key] != common.get(key)} for table in tables]
