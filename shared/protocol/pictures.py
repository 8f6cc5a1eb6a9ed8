"""A picture of an environment, as it follows STEP: u32 height, u32 width, then u8 [height, width, 3] RGB.

Raw, not JPEG or PNG: any simulator can send it without a codec, its size is compared with integers before anything is
read, and nobody behind it has to decode an image of a stranger's.
"""

import struct

from seedbed.shared.errors import LocalWireError, RemoteWireError
from seedbed.shared.protocol.layout import Array

MAX_PICTURE_BYTES = 1 << 20  # of the frame
_SIZES = struct.Struct("<II")
PICTURE_HEADER_BYTES = _SIZES.size


def pack_picture(picture: Array) -> bytes:
    """The frame of a picture u8 [height, width, 3]. Raises: LocalWireError if it is none, or too large."""
    if picture.dtype != "uint8" or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise LocalWireError(f"a picture is uint8 [height, width, 3], not {picture.dtype} {list(picture.shape)}")
    frame = _SIZES.pack(*picture.shape[:2]) + picture.tobytes()
    if len(frame) > MAX_PICTURE_BYTES:
        raise LocalWireError(f"a picture of {len(frame)} bytes, at most {MAX_PICTURE_BYTES}")
    return frame


def check_picture(frame: bytes) -> tuple[int, int]:
    """(height, width) of a peer's frame. Raises: RemoteWireError if its size is not theirs."""
    if _SIZES.size <= len(frame) <= MAX_PICTURE_BYTES:
        height, width = _SIZES.unpack_from(frame)
        if height and width and len(frame) == _SIZES.size + 3 * height * width:
            return height, width
    raise RemoteWireError("picture", f"a picture's frame of {len(frame)} bytes that does not hold what it says")
