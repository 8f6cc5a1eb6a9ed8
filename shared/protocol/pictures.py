"""The frame of a picture that follows a STEP: u32 height, u32 width, then u8 [height, width, 3] RGB.

It is raw, not JPEG or PNG: any simulator can send it without a codec, its size can be checked before anything is read,
and no receiver has to decode an untrusted image.
"""

import struct

from seedbed.shared.errors import LocalWireError, RemoteWireError
from seedbed.shared.protocol.layout import Array

MAX_PICTURE_BYTES = 1 << 20  # of the frame
_SIZES = struct.Struct("<II")
PICTURE_HEADER_BYTES = _SIZES.size


def pack_picture(picture: Array) -> bytes:
    """Return the frame of a picture u8 [height, width, 3]. Raises: LocalWireError if it cannot be sent."""
    if picture.dtype != "uint8" or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise LocalWireError(f"a picture must be uint8 [height, width, 3], not {picture.dtype} {list(picture.shape)}")
    frame = _SIZES.pack(*picture.shape[:2]) + picture.tobytes()
    if len(frame) > MAX_PICTURE_BYTES:
        raise LocalWireError(f"a picture of {len(frame)} bytes, allowed are {MAX_PICTURE_BYTES}")
    return frame


def check_picture(frame: bytes) -> tuple[int, int]:
    """Return (height, width) of a peer's frame. Raises: RemoteWireError if the frame has another size."""
    if _SIZES.size <= len(frame) <= MAX_PICTURE_BYTES:
        height, width = _SIZES.unpack_from(frame)
        if height and width and len(frame) == _SIZES.size + 3 * height * width:
            return height, width
    raise RemoteWireError("picture", f"a picture frame of {len(frame)} bytes does not match the height and width in it")
