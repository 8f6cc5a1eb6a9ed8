"""Pictures of an evaluation on their way from inference's page to the visitor's."""

import http.client
import struct

import numpy as np
import pytest

from seedbed.services.tools.cli.scrape import Fetched
from seedbed.services.tools.monitor.folder import Status
from seedbed.services.tools.monitor.pictures import fetch_picture, newest_picture, read_answer
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.pictures import pack_picture
from seedbed.shared.runtime.metrics import Metrics, describe_picture
from tests.support.monitor_process import running
from tests.support.run_folders import row, write_run, write_status

for module in ("starlette", "uvicorn"):
    pytest.importorskip(module, reason="the extra `monitor` is not installed")

FRAME = pack_picture(np.arange(18, dtype=np.uint8).reshape(2, 3, 3))


def status(metrics, incarnation=0xB2, name="inference-0"):
    return Status(name=name, role="inference", incarnation=incarnation, metrics=metrics.address, at=0.0)


@pytest.fixture
def inference():
    """A page with a picture of update 12, and how often it was asked for."""
    with Metrics("inference", "inference-0", 0xB2) as metrics:
        asked = []

        def read():
            asked.append(1)
            return describe_picture(0xB2, 4, pack_version(2, 12), 0.3), FRAME

        metrics.page("/picture", read)
        metrics.serve("127.0.0.1:0")
        yield metrics, asked


def test_a_picture_is_fetched_with_what_is_known_of_it(inference):
    """Whose policy plays, and how old it is."""
    picture = fetch_picture(status(inference[0]))
    assert (picture.epoch, picture.step, picture.number, picture.age_s) == (2, 12, 4, 0.3)
    assert picture.frame == FRAME


def test_another_incarnation_or_address_has_none(inference):
    """Nor one that is not on this machine, or not there."""
    assert fetch_picture(status(inference[0], incarnation=0xB3)) is None
    away = Status(name="x", role="inference", incarnation=0xB2, metrics="10.1.2.3:80", at=0.0)
    nobody = Status(name="x", role="inference", incarnation=0xB2, metrics="127.0.0.1:1", at=0.0)
    assert newest_picture([away, nobody]) is None


def test_the_newest_of_several_is_shown(inference):
    """Where an evaluation plays at one of several replicas."""
    with Metrics("inference", "inference-1", 0xB3) as older:
        older.page("/picture", lambda: (describe_picture(0xB3, 9, pack_version(1, 1), 60.0), FRAME))
        older.serve("127.0.0.1:0")
        assert newest_picture([status(older, 0xB3), status(inference[0])]).incarnation == "b2"


@pytest.mark.parametrize("body", [b"", FRAME[:-1], b"\xff" * 26])
def test_what_is_no_picture_is_refused(body):
    """Its size says so."""
    with pytest.raises(RemoteWireError):
        read_answer(Fetched(status=200, headers=describe_picture(1, 1, 1, 0.0), body=body))


def test_the_page_is_given_the_picture_once(inference, tmp_path):
    """Again only when it has changed; other runs have none, and nobody is asked who does not exist."""
    metrics, asked = inference
    run = write_run(tmp_path / "runs" / "live", [row(1)])
    write_status(run, "inference-0", "inference", incarnation=0xB2, metrics=metrics.address)
    write_run(tmp_path / "runs" / "other", [row(1)])
    with running(tmp_path / "runs") as (_, where):

        def get(name, **headers):
            connection = http.client.HTTPConnection(*where, timeout=20)
            try:
                connection.request("GET", f"/api/runs/{name}/picture", headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read()
            finally:
                connection.close()

        code, headers, body = get("live")
        assert (code, headers["X-Seedbed-Version"], headers["X-Seedbed-Age"]) == (200, "2:12", "0.3")
        assert struct.unpack_from("<II", body) == (2, 3)
        assert body == FRAME
        assert headers["X-Content-Type-Options"] == "nosniff"
        code, again, body = get("live", **{"If-None-Match": headers["ETag"]})
        assert (code, body, again["X-Seedbed-Age"]) == (304, b"", "0.3")
        assert len(asked) == 2
        assert get("other")[0] == get("absent")[0] == 204
        assert len(asked) == 2
