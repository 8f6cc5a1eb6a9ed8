"""What a person sees of an environment in the terminal: its picture in half blocks, its values as a table."""

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.color import Color
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from seedbed.services.tools.cli.env.scene import Scene
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.protocol.spaces import Leaf, decode_text

HALF_BLOCK = "▀"
MAX_VALUES = 24  # of one leaf
BORDER_ROWS = 8  # kept free of the picture, for figures and help


def draw_picture(picture: Array, columns: int, rows: int) -> RenderableType:
    """A picture, u8 [height, width, 3], in at most so many columns and rows; two pixels to a character."""
    small = shrink(picture, columns, 2 * rows)
    small = small if len(small) % 2 == 0 else np.concatenate([small, np.zeros_like(small[:1])])
    segments: list[Segment] = []
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        for top, bottom in zip(upper, lower, strict=True):
            segments.append(Segment(HALF_BLOCK, Style(color=Color.from_rgb(*top), bgcolor=Color.from_rgb(*bottom))))
        segments.append(Segment.line())
    return Segments(segments)


def shrink(picture: Array, width: int, height: int) -> Array:
    """The mean over equal parts, so that it fits; smaller pictures stay as they are. u8 [h, w, 3]."""
    factor = max(picture.shape[1] / width, picture.shape[0] / height, 1.0)
    new_height, new_width = max(1, int(picture.shape[0] / factor)), max(1, int(picture.shape[1] / factor))
    edges = (np.linspace(0, size, count + 1).astype(int)[:-1] for size, count in
             ((picture.shape[0], new_height), (picture.shape[1], new_width)))  # fmt: skip
    top, left = edges
    sums = np.add.reduceat(np.add.reduceat(picture.astype(np.float64), top, 0), left, 1)
    counts = np.multiply.outer(np.diff([*top, picture.shape[0]]), np.diff([*left, picture.shape[1]]))
    shrunk: Array = np.rint(sums / counts[..., None]).astype(np.uint8)
    return shrunk


def draw_values(scene: Scene) -> Table:
    """Draw the observation as text: a line with name and value of each leaf that is no image."""
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for leaf, view in zip(scene.spec.observation.leaves(), scene.observation, strict=True):
        if not leaf.image:
            table.add_row(leaf.path or "observation", Text(describe_value(leaf, view)))
    return table


def describe_value(leaf: Leaf, value: Array) -> str:
    """One lane's value, [1, *wire_shape], as text."""
    if leaf.kind == "text":
        return decode_text(leaf, value)[0]
    flat = value.ravel()
    numbers = [f"{number:.3f}" if value.dtype.kind == "f" else str(number) for number in flat[:MAX_VALUES]]
    return "  ".join(numbers) + (f"  … {flat.size} in all" if flat.size > MAX_VALUES else "")


def draw_scene(scene: Scene, columns: int, rows: int) -> RenderableType:
    """Draw the scene's picture if there is one, and its values."""
    values = draw_values(scene)
    if scene.picture is None:
        return values
    num_lines = len(scene.observation) if values.rows else 0
    picture = draw_picture(scene.picture, columns, max(4, rows - BORDER_ROWS - num_lines))
    return Lines(picture, values) if values.rows else picture


def describe_flags(flags: int) -> str:
    """What the flags of one row say, for people."""
    return " ".join(flag.name.lower() for flag in Flags if flags & flag and flag.name)
