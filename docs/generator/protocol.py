"""Writes the tables of docs/protocol.md anew, from what `seedbed.shared.protocol.messages` declares.

.venv/bin/python -m docs.generator.protocol
"""

import re
from collections.abc import Iterator
from pathlib import Path

from seedbed.shared.protocol.fields import HeaderField, NestedRecord
from seedbed.shared.protocol.messages import HEADERS, Header

PAGE = Path(__file__).resolve().parents[1] / "protocol.md"


def with_tables(page: str) -> str:
    """The page with the table of each message as it is declared. Raises ValueError if it has no heading for one."""
    for header in HEADERS.values():
        heading = f"### {header.kind.name} ({int(header.kind)}), "
        table = re.compile(rf"^{re.escape(heading)}.*\n\n(?:\|.*\n)+(?:\nAn? \w+ is an array: .*\n)?", re.MULTILINE)
        page, count = table.subn(lambda _, header=header: _section(header), page)
        if count != 1:
            raise ValueError(f"{PAGE.name}: {count} tables under {heading!r}, not one")
    return page


def _section(header: Header) -> str:
    """Heading, table, and what each record within it is."""
    rows = [(field.name, _escaped(field.wire.name), _meaning(field)) for field in header.fields]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [("field", "type", "meaning"), *rows]]
    lines.insert(1, "|---|---|---|")
    text = f"### {header.kind.name} ({int(header.kind)}), {header.direction}\n\n" + "\n".join(lines) + "\n"
    return text + "".join(f"\n{line}\n" for line in _nested(header))


def _nested(header: Header) -> Iterator[str]:
    for field in header.fields:
        if field.wire.nested is not None:
            yield _sentence(field.wire.nested)


def _sentence(record: NestedRecord) -> str:
    """A record within a header, as one line."""
    parts = [
        f"`{field.name}` {field.wire.name}" + (f" ({field.meaning})" if field.meaning else "")
        for field in record.fields
    ]
    article = "An" if record.name[0] in "aeio" else "A"
    return f"{article} {record.name} is an array: [{'; '.join(parts)}]."


def _meaning(field: HeaderField) -> str:
    return ": ".join(filter(None, ("*optional*" if field.is_later else "", field.meaning)))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
