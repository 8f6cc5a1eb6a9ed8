"""Which network interface a rank names to Gloo, by the addresses at which its connections to other ranks end."""

import socket

import pytest

from seedbed.learner_svc.ranks import interface
from seedbed.learner_svc.ranks.interface import VARIABLE, choose_interface, interface_of


class Met:
    """A star's end with these addresses, whose chief tells `chief` (itself: what it gave)."""

    def __init__(self, *addresses: str, chief: str | None = None) -> None:
        self.local_addresses = list(addresses)
        self._chief = chief

    def tell(self, data: bytes) -> bytes:
        return data if self._chief is None else self._chief.encode()


@pytest.mark.parametrize(
    ("star", "expected"),
    [
        (Met("::ffff:127.0.0.1", "::ffff:10.0.0.5"), "eth0"),
        (Met("127.0.1.1", chief="10.0.0.5"), "eth0"),
        (Met("fd00::5", chief="fd00::9"), "eth1"),
        (Met("127.0.0.1", "::1"), None),
        (Met("127.0.0.1", chief=""), None),
        (Met("10.9.9.9", chief="10.0.0.9"), None),
    ],
)
def test_a_rank_uses_the_interface_over_which_the_ranks_have_met(monkeypatch, star, expected):
    """That of the chief on its machine; none is named on loopback, or where no interface has the address."""
    monkeypatch.setattr(interface, "interface_of", {"10.0.0.5": "eth0", "fd00::5": "eth1"}.get)
    environment: dict[str, str] = {}
    choose_interface(star, environment)
    assert environment.get(VARIABLE) == expected


def test_an_interface_that_the_user_has_named_stays(monkeypatch):
    """Such as that of a faster network."""
    monkeypatch.setattr(interface, "interface_of", {"10.0.0.5": "eth0"}.get)
    environment = {VARIABLE: "ib0"}
    choose_interface(Met("10.0.0.5"), environment)
    assert environment == {VARIABLE: "ib0"}


def test_interfaces_are_found_by_their_addresses():
    """Loopback is on every machine; 203.0.113.0/24 is on none."""
    assert interface_of("127.0.0.1") in [name for _, name in socket.if_nameindex()]
    assert interface_of("203.0.113.9") == ""
