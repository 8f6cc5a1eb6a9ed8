"""docs/protocol.md says what the code does: fields, limits, codes, bytes."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np

from docs.generator.protocol import with_tables
from seedbed.shared.protocol import fields, space_wire
from seedbed.shared.protocol.layout import OWN_FRAME_BYTES
from seedbed.shared.protocol.messages import HEADERS, LEARNER_PROTOCOL_MAX, MAX_HEADER_BYTES, PROTOCOL_MAX
from seedbed.shared.protocol.pictures import MAX_PICTURE_BYTES, check_picture, pack_picture
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.protocol.spaces import DTYPES
from tests.support.protocol_examples import CARTPOLE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
GOLDEN = json.loads((ROOT / "tests" / "golden" / "headers.json").read_text())


def test_the_tables_are_those_of_the_messages() -> None:
    """Fields in order, what may stand there, and what it means; `python -m docs.generator.protocol` writes them."""
    assert with_tables(PAGE) == PAGE


def test_the_pages_bytes_are_the_golden_ones() -> None:
    """What the page prints as examples is what the code writes."""
    block = re.search(r"```text\nHELLO (.*?)```", PAGE, re.DOTALL)
    assert block
    parts = re.split(r"(STEP|ACT|CHALLENGE)", block[1])
    printed = dict(zip(["HELLO", *parts[1::2]], parts[0::2], strict=True))
    for name, text in printed.items():
        assert "".join(text.split()) == GOLDEN[name.lower()]


def test_the_hello_taken_apart_is_the_golden_one() -> None:
    """The commented form has the same bytes."""
    block = re.search(r"```text\ndc0010 (.*?)```", PAGE, re.DOTALL)
    assert block
    data = "".join(line.split(";")[0] for line in f"dc0010 {block[1]}".splitlines())
    assert "".join(data.split()) == GOLDEN["hello"]


def test_the_pages_picture_is_what_is_written() -> None:
    """Height, width, then pixels from the top."""
    printed = re.search(r"```text\nPICTURE +([0-9a-f]+)", PAGE)
    assert printed
    picture = np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8)
    assert pack_picture(picture).hex() == printed[1]
    assert check_picture(bytes.fromhex(printed[1])) == (2, 1)
    assert f"at most {MAX_PICTURE_BYTES:,} bytes: lane 0".replace(",", " ") in PAGE


def test_limits_on_the_page_are_the_codes() -> None:
    """Numbers that a stranger would build on."""

    def spaced(number: int) -> str:
        return f"{number:,}".replace(",", " ")

    assert f"Protocol version: {PROTOCOL_MAX} for environments, up to {LEARNER_PROTOCOL_MAX} between" in PAGE
    assert f"A header has at most {MAX_HEADER_BYTES} bytes" in PAGE
    large = PAGE.split("A header has at most")[1].split("\n", 1)[0].split(", except: ")[1]
    said: dict[str, str] = {}
    for names, size in re.findall(r"([A-Z_, ]+) (\d[\d ]*\d)", large):
        said |= dict.fromkeys(re.findall(r"[A-Z_]+", names), size)
    assert said == {
        header.kind.name: spaced(header.max_bytes)
        for header in HEADERS.values()
        if header.max_bytes != MAX_HEADER_BYTES
    }
    assert f"of {spaced(OWN_FRAME_BYTES)} bytes or more" in PAGE
    assert f"at most {fields.MAX_LABEL} characters" in PAGE
    assert f"at most {fields.MAX_PROSE} characters" in PAGE
    assert f"at most {fields.MAX_CAPABILITIES} |" in PAGE
    assert f"At most {spaced(space_wire.MAX_BOUNDS_BYTES)} bytes each" in PAGE
    assert f"at most {space_wire.MAX_DEPTH} deep, {space_wire.MAX_LEAVES} leaves" in PAGE
    assert f"≤ max_length ≤ {spaced(space_wire.MAX_TEXT_LENGTH)} characters" in PAGE
    assert f"charset: 1…{space_wire.MAX_CHARSET} characters" in PAGE
    assert f"1…{space_wire.MAX_NAME_BYTES} bytes" in PAGE


def test_dtypes_and_flags_on_the_page_are_the_codes() -> None:
    """Indices and bits."""
    assert ", ".join(f"{index} {name}" for index, name in enumerate(DTYPES)) in PAGE
    flags = ", ".join(f"{int(flag)} {str(flag.name).lower()}" for flag in Flags)
    assert f"Flags: {flags}." in PAGE


def test_the_digest_can_be_computed_from_the_page() -> None:
    """Only the page's rule: ASCII JSON without spaces, bins as hex, SHA-256, sixteen digits."""
    low, high = "9a9999c0000080ff5077d6be000080ff", "9a9999400000807f5077d63e0000807f"
    text = (
        f'["CartPole-v1",[["max_episode_steps","500"]],[1,9,[4],"{low}","{high}",""],[2,7,2,0],0,["return","length"]]'
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == CARTPOLE.digest()
