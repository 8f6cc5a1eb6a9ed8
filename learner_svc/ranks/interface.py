"""Which network interface a rank's process group uses: the one over which the ranks have met.

Left to itself, Gloo uses the interface to which this host's own name resolves. On Debian and Ubuntu that is often
loopback (127.0.1.1), where no other machine can connect.
"""

import ipaddress
import os
from collections.abc import MutableMapping

import psutil

from seedbed.learner_svc.ranks.star import Star

VARIABLE = "GLOO_SOCKET_IFNAME"


def choose_interface(star: Star, environment: MutableMapping[str, str] = os.environ) -> None:
    """Name to Gloo the interface over which this rank reaches the others, unless the environment names one.

    Nothing changes if all ranks have met over loopback. Every rank must call it at the same time.
    """
    own = next((address for text in star.local_addresses if (address := _beyond_this_machine(text))), "")
    chief = star.tell(own.encode()).decode()
    # a rank that reaches the chief over loopback is on the chief's machine
    if (address := own or chief) and not environment.get(VARIABLE) and (name := interface_of(address)):
        environment[VARIABLE] = name


def interface_of(address: str) -> str:
    """Return the name of this machine's interface that has a numeric address; empty without one."""
    for name, items in psutil.net_if_addrs().items():
        if any(item.address.partition("%")[0] == address for item in items):
            return str(name)
    return ""


def _beyond_this_machine(text: str) -> str:
    """Return a numeric address, an IPv4 address as such; empty for a loopback address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    plain = getattr(address, "ipv4_mapped", None) or address
    return "" if plain.is_loopback else str(plain)
