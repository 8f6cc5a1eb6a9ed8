"""Live pictures of a run's evaluation: fetched from its inference services when somebody looks. Blocking.

Nobody looks, nothing is fetched, and inference asks its environments for hardly any.
"""

import http.client
from collections.abc import Iterable
from dataclasses import dataclass

from seedbed.services.tools.cli.scrape import Fetched, fetch
from seedbed.services.tools.monitor.folder import Status
from seedbed.services.tools.monitor.pages import is_loopback
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.messages import unpack_version
from seedbed.shared.protocol.pictures import MAX_PICTURE_BYTES, check_picture

MAX_ANSWER_BYTES = MAX_PICTURE_BYTES + 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture. `frame`: as `seedbed.shared.protocol.pictures` has it."""

    incarnation: str  # of the inference service that has it, hexadecimal
    number: int  # there
    epoch: int  # of the policy that plays
    step: int
    age_s: float
    frame: bytes

    @property
    def tag(self) -> str:
        """A text that is equal for equal pictures alone: the process and the picture's number."""
        return f"{self.incarnation}-{self.number}"


def newest_picture(statuses: Iterable[Status]) -> Picture | None:
    """The newest that any of these inference services has."""
    found = [picture for status in statuses if (picture := fetch_picture(status)) is not None]
    return min(found, key=lambda picture: picture.age_s, default=None)


def fetch_picture(status: Status) -> Picture | None:
    """What one service has; None if it has none, does not answer, or is another by now."""
    host, _, port = status.metrics.rpartition(":")
    if not port.isdecimal() or not is_loopback(host):
        return None
    try:
        picture = read_answer(fetch(status.metrics, "/picture", max_bytes=MAX_ANSWER_BYTES))
    except (OSError, ValueError, OverflowError, RemoteWireError, http.client.HTTPException):
        return None
    return picture if picture is not None and picture.incarnation == f"{status.incarnation:x}" else None


def read_answer(answer: Fetched) -> Picture | None:
    """The picture in a service's answer. Raises: ValueError or RemoteWireError for what is none."""
    if answer.status != http.HTTPStatus.OK:
        return None
    check_picture(answer.body)
    epoch, step = unpack_version(int(answer.headers.get("x-seedbed-version", "")))
    return Picture(
        incarnation=answer.headers.get("x-seedbed-incarnation", ""),
        number=int(answer.headers.get("x-seedbed-number", "")),
        epoch=epoch,
        step=step,
        age_s=float(answer.headers.get("x-seedbed-age", "")),
        frame=answer.body,
    )
