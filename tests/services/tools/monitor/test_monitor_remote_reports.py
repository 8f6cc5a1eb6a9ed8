"""What the monitor knows of services that it cannot visit: asked while somebody looks, told apart, silent, replaced."""

from pathlib import Path

import numpy as np
import pytest

from seedbed.services.tools.monitor.pages import PageState
from seedbed.services.tools.monitor.remote_reports import FORGET_S, SILENT_S, WANTED_S, RemoteReports
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import Ping, Report, pack_version
from seedbed.shared.protocol.pictures import pack_picture
from seedbed.shared.runtime.metrics import Metrics
from tests.support.clock import Clock

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development extra")

ROOT = Path(__file__).resolve().parents[4]
FRAME = pack_picture(np.zeros((1, 2, 3), np.uint8))
HERE = "tcp://10.0.0.2:5555"


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def reports(clock):
    return RemoteReports(clock=clock, wall_clock=clock)


def page(incarnation, steps=3):
    with Metrics("inference", "i", incarnation) as metrics:
        metrics.read_counter("steps", "Steps.", lambda: steps)
        return metrics.text().encode()


def report(incarnation, *, service="inference", run_id="run", picture=0):
    return encode(
        Report(
            incarnation=incarnation, service=service, name="i", run_id=run_id, picture=picture,
            picture_version=pack_version(1, 8), picture_age_ms=100,
        )
    )  # fmt: skip


def tell(reports, incarnation, *, address=HERE, picture=0, text=None, **kinds):
    frames = [report(incarnation, picture=picture, **kinds), page(incarnation) if text is None else text]
    reports.take(address, Role.INFERENCE, [*frames, FRAME if picture else b""])


def test_nobody_is_asked_while_nobody_looks(reports, clock):
    """Once a second while somebody does, and for some seconds after."""
    assert reports.due(HERE, Role.INFERENCE) is None
    reports.look()
    assert reports.due(HERE, Role.INFERENCE).wants_page
    clock.now += 0.5
    assert reports.due(HERE, Role.INFERENCE) is None
    clock.now += 0.6
    assert reports.due(HERE, Role.INFERENCE).wants_page
    clock.now += WANTED_S
    assert reports.due(HERE, Role.INFERENCE) is None


def test_what_a_service_says_is_a_page_of_its_run(reports):
    """And of no other."""
    reports.look()
    tell(reports, 0xA1)
    ((status, found),) = reports.of("run")
    assert (status.name, status.role, status.incarnation, found.answer) == ("i", "inference", 0xA1, PageState.UP)
    assert found.samples()["seedbed_steps_total"] == 3
    assert reports.of("other") == reports.of("") == []


def test_replicas_of_one_name_are_told_apart(reports):
    """As containers that were scaled have one."""
    tell(reports, 0xA1)
    tell(reports, 0xB2, address="tcp://10.0.0.3:5555")
    assert {status.name for status, _ in reports.of("run")} == {"i-00a1", "i-00b2"}


def test_a_page_that_names_another_life_is_no_page(reports):
    """Nor is anything else."""
    tell(reports, 0xA1, text=page(0xA2))
    tell(reports, 0xB2, address="x", text=b"\xff{")
    assert {found.answer for _, found in reports.of("run")} == {PageState.SILENT}


def test_silence_counts_from_when_it_was_asked(reports, clock):
    """A pause in which nobody looked is none of the service's."""
    reports.look()
    tell(reports, 0xA1)
    clock.now += SILENT_S + 0.1
    assert reports.of("run")[0][1].answer is PageState.SILENT
    tell(reports, 0xA1)
    clock.now += 10 * FORGET_S
    reports.look()
    assert reports.of("run")[0][1].answer is PageState.UP
    clock.now += FORGET_S
    assert reports.of("run") == []


def test_a_replica_that_left_its_name_is_forgotten_at_once(reports):
    """Scaled down in order: nobody should be told to look."""
    tell(reports, 0xA1)
    tell(reports, 0xB2, address="tcp://10.0.0.3:5555")
    reports.forget([HERE])
    assert [status.incarnation for status, _ in reports.of("run")] == [0xA1]


def test_one_that_dies_under_its_name_is_silent_for_longer_than_prometheus_waits(reports, clock):
    """Else no alert on it would ever fire; it is back under the same address as another life."""
    rules = yaml.safe_load((ROOT / "compose" / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]
    (waits,) = [rule["for"] for rule in rules if rule["alert"] == "SeedbedServiceDown"]
    reports.look()
    tell(reports, 0xA1)
    for _ in range(int(waits.removesuffix("m")) * 60 + 30):
        clock.now += 1.0
        reports.look()
        reports.forget([HERE])
        assert len(reports.of("run")) == 1
    assert reports.of("run")[0][1].answer is PageState.SILENT
    tell(reports, 0xA2)
    assert [(status.incarnation, found.answer) for status, found in reports.of("run")] == [(0xA2, PageState.UP)]


def test_a_new_life_at_an_address_takes_the_place_of_the_former(reports):
    """Its end is counted, so that a service that flaps is seen in containers too."""
    for incarnation in (1, 2, 3, 4):
        tell(reports, incarnation)
    assert [status.incarnation for status, _ in reports.of("run")] == [4]
    assert [death.service for death in reports.deaths("run")] == ["i", "i", "i"]
    assert reports.deaths("other") == []


def test_pictures_are_asked_for_while_somebody_watches(reports, clock):
    """Four times a second, of inference alone; each is sent once, and grows older here."""
    tell(reports, 0xA1)
    assert reports.due(HERE, Role.INFERENCE) is None
    assert reports.picture("run") is None
    look = reports.due(HERE, Role.INFERENCE)
    assert (look.wants_page, look.wants_picture, look.have_picture) == (False, True, 0)
    assert reports.due("tcp://10.0.0.9:5556", Role.LEARNER) is None
    tell(reports, 0xA1, picture=7, text=b"")
    clock.now += 0.3
    assert reports.due(HERE, Role.INFERENCE).have_picture == 7
    found = reports.picture("run")
    assert (found.epoch, found.step, found.frame, found.tag) == (1, 8, FRAME, "a1-7")
    assert found.age_s == pytest.approx(0.4)
    clock.now += WANTED_S + 1
    assert reports.due(HERE, Role.INFERENCE) is None


@pytest.mark.parametrize(
    "frames",
    [[], [b"x"], [report(1)], [report(1), b""], [report(1), b"", b"", b""], [report(1), b"", FRAME[:-1]],
     [report(1, service="learner"), b"", b""], [encode(Ping(sent_ms=1)), b"", b""]],
)  # fmt: skip
def test_what_is_no_report_is_refused(reports, frames):
    """And nothing of it is kept."""
    with pytest.raises(RemoteWireError):
        reports.take(HERE, Role.INFERENCE, frames)
    assert reports.of("run") == []
