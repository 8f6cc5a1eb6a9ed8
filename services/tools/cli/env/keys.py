"""Keys of a terminal, and which action each stands for; no terminal in here."""

from collections.abc import Iterator, Mapping

from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.spaces import Leaf, Space
from seedbed.shared.runtime.config_errors import suggest

DIGITS_AND_LETTERS = "0123456789abcdefghijklmnoprstuvwxyz"  # without q, which quits
NAMED = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    " ": "space", "\r": "enter", "\n": "enter", "\t": "tab", "\x03": "q", "\x04": "q",
}  # fmt: skip


def read_keys(text: str) -> Iterator[str]:
    """The keys in what a terminal sent: named ones by name, others as they are, without unknown sequences."""
    while text:
        known = next((code for code in NAMED if text.startswith(code)), None)
        if known:
            yield NAMED[known]
            text = text[len(known) :]
        elif text.startswith("\x1b"):
            text = text[3:] if text[1:2] in ("[", "O") else text[1:]
        else:
            yield text[0]
            text = text[1:]


def action_keys(action: Space, mapping: str = "") -> dict[str, int]:
    """Which key is which action of a Discrete space.

    Args:
      mapping: "left=0,right=2": keys over those that are given anyway: digits, then letters; and for two or three
        actions the arrows: left is the first, right the last.
    Raises: ConfigError for another space, key or action.
    """
    leaf = action.leaf
    if leaf is None or leaf.kind != "discrete" or leaf.nvec[0] > len(DIGITS_AND_LETTERS):
        raise ConfigError(
            f"a person can play one Discrete action of at most {len(DIGITS_AND_LETTERS)} kinds; this environment takes "
            f"{', '.join(f'{part.path} {part.describe()}'.strip() for part in action.leaves())}. Give --run to watch a "
            "policy, or use  seedbed env record"
        )
    count = leaf.nvec[0]
    keys = dict(zip(DIGITS_AND_LETTERS, range(leaf.starts[0], leaf.starts[0] + count), strict=False))
    if count <= 3:
        keys |= {"left": leaf.starts[0], "right": leaf.starts[0] + count - 1}
    return keys | _read_mapping(mapping, leaf)


def _read_mapping(mapping: str, leaf: Leaf) -> dict[str, int]:
    known = [*dict.fromkeys(NAMED.values()), *DIGITS_AND_LETTERS]
    first, last = leaf.starts[0], leaf.starts[0] + leaf.nvec[0] - 1
    keys: dict[str, int] = {}
    for part in filter(None, mapping.split(",")):
        name, equals, number = (item.strip() for item in part.partition("="))
        if not equals or name not in known or name == "q":
            raise ConfigError(f"--keys: {part!r} is no key=action such as left=0{suggest(name, known)}")
        if not number.lstrip("-").isdecimal() or not first <= int(number) <= last:
            raise ConfigError(f"--keys: {part!r}: actions are {first} to {last}")
        keys[name] = int(number)
    return keys


def describe_keys(keys: Mapping[str, int]) -> str:
    """Return every action with its keys, for people."""
    of_action: dict[int, list[str]] = {}
    for key, action in keys.items():
        of_action.setdefault(action, []).append(key)
    named = [
        "/".join(names) + ("" if names == [str(action)] else f" → {action}") for action, names in of_action.items()
    ]
    return "actions: " + "   ".join(named)
