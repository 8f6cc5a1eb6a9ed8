"""Who may look over the link, and what is answered."""

import asyncio

import pytest

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.reports import MAX_WAITING, Reports, ShownPicture
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Look, Ping, Report, pack_version
from seedbed.shared.runtime.config import RuntimeConfig
from seedbed.shared.runtime.service import Service
from tests.support.heard import Changes

LOOK = encode(Look(wants_page=True, wants_picture=False, have_picture=0))
PICTURE = Look(wants_page=False, wants_picture=True, have_picture=0)


class AskedReports(Changes):
    """Reports of a service that owns one counter, and what was sent."""

    def __init__(self, owner="", shown=None):
        super().__init__()
        self.sent, self.looked = [], []
        service = Service("inference", RuntimeConfig(name="i-0", metrics_address=""), incarnation=0xAB)
        service.run_id = "run-1"
        service.metrics.read_counter("steps", "Steps.", lambda: 7)
        self.reports = Reports(service, self._send, lambda _route: owner, picture=self._picture)
        self._shown = shown

    def _send(self, route, frames):
        self.sent.append((route, decode(bytes(frames[0])), bytes(frames[1]), bytes(frames[2])))
        self.tell()
        return True

    def _picture(self, now):
        self.looked.append(now)
        return self._shown

    async def wait_sent(self, count):
        await self.until(lambda: len(self.sent) >= count)


@pytest.mark.parametrize("owner", ["", "monitor:default"])
def test_a_monitor_is_given_the_page_with_who_it_is_of(owner):
    """Without keys anybody on this machine is, as at /metrics."""

    async def test():
        seen = AskedReports(owner)
        assert seen.reports.take(b"r", [LOOK])
        await seen.wait_sent(1)
        route, report, page, picture = seen.sent[0]
        assert route == b"r"
        assert report == Report(
            incarnation=0xAB, service="inference", name="i-0", run_id="run-1", picture=0, picture_version=0,
            picture_age_ms=0,
        )  # fmt: skip
        assert b"seedbed_steps_total 7.0" in page
        assert b'incarnation="ab"' in page
        assert picture == b""

    asyncio.run(test())


def test_who_asks_again_at_once_gets_the_same_page():
    """It is written twice a second at most, and once for all who wait."""

    async def test():
        seen = AskedReports()
        for number in range(3):
            assert seen.reports.take(b"%d" % number, [LOOK])
        await seen.wait_sent(3)
        assert seen.reports.take(b"r", [LOOK])
        assert len(seen.sent) == 4
        assert len({page for _, _, page, _ in seen.sent}) == 1

    asyncio.run(test())


def test_a_flood_of_askers_is_bounded():
    """Those beyond get no answer, and ask again."""

    async def test():
        seen = AskedReports()
        for number in range(3 * MAX_WAITING):
            assert seen.reports.take(b"%d" % number, [LOOK])
        await seen.wait_sent(MAX_WAITING)
        assert len(seen.sent) == MAX_WAITING

    asyncio.run(test())


@pytest.mark.parametrize(
    ("owner", "header"),
    [
        ("environment:robot", LOOK),
        ("inference:main", LOOK),
        ("monitor:default", encode(Ping(sent_ms=1))),
        ("monitor:default", b"\x94\x21"),
        ("monitor:default", b""),
        ("", b"\x94\x21\xc0\xc0\xc0"),
    ],
)
def test_nobody_else_may_look_and_a_monitor_may_do_nothing_else(owner, header):
    """Whatever it is, it is refused here and goes no further."""

    async def test():
        seen = AskedReports(owner)
        with pytest.raises(RemoteWireError):
            seen.reports.take(b"r", [header])
        assert seen.sent == []

    asyncio.run(test())


def test_other_messages_are_left_to_the_server():
    """Of all other roles."""

    async def test():
        for owner in ("", "environment:robot", "inference:main"):
            assert not AskedReports(owner).reports.take(b"r", [encode(Ping(sent_ms=1)), b"x"])
        assert not AskedReports().reports.take(b"r", [])

    asyncio.run(test())


def test_a_picture_is_sent_once_and_tells_the_service_that_somebody_watches():
    """The page is not written for it."""

    async def test():
        loop = asyncio.get_running_loop()
        seen = AskedReports(
            shown=ShownPicture(number=4, version=pack_version(1, 9), at=loop.time() - 0.5, frame=b"frame")
        )
        assert seen.reports.take(b"r", [encode(PICTURE)])
        _, report, page, picture = seen.sent[0]
        assert (report.picture, report.picture_version, page, picture) == (4, pack_version(1, 9), b"", b"frame")
        assert 500 <= report.picture_age_ms < 5000
        known = Look(wants_page=False, wants_picture=True, have_picture=4)
        assert seen.reports.take(b"r", [encode(known)])
        assert seen.sent[1][3] == b""
        assert len(seen.looked) == 2

    asyncio.run(test())


def test_a_connection_is_given_each_page_and_picture_once():
    """One that asks and does not read would fill the memory; another connection is given them as well."""

    async def test():
        seen = AskedReports(shown=ShownPicture(number=3, version=1, at=0.0, frame=b"picture"))
        look = encode(Look(wants_page=True, wants_picture=True, have_picture=0))
        assert seen.reports.take(b"r", [look])
        await seen.wait_sent(1)
        assert seen.reports.take(b"r", [look])
        assert seen.reports.take(b"s", [look])
        await seen.wait_sent(3)
        assert [(bool(page), picture) for _, _, page, picture in seen.sent] == [
            (True, b"picture"), (False, b""), (True, b"picture"),
        ]  # fmt: skip

    asyncio.run(test())
