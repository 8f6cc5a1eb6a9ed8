"""`python cluster_dns.py ADDRESS API_URL TOKEN CA_FILE`: a cluster's DNS, for headless services alone.

It answers A questions for SERVICE.NAMESPACE.svc.cluster.local with the addresses of the service's endpoints, and for
POD.SERVICE.NAMESPACE.svc.cluster.local with a pod's, as a cluster's own server does. Any other name does not exist.
"""

import json
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address

ZONE = "svc.cluster.local"
LOOK_EVERY_S, TTL_S = 0.5, 1
TYPE_A, NO_ERROR, NO_SUCH_NAME = 1, 0, 3

Names = Mapping[str, Sequence[str]]


def names_of(endpoints: Mapping[str, object]) -> Names:
    """Name → addresses, from the API's list of Endpoints."""
    found: dict[str, list[str]] = {}
    for item in endpoints["items"]:  # type: ignore[attr-defined]
        service = f"{item['metadata']['name']}.{item['metadata']['namespace']}.{ZONE}"
        addresses = [entry for subset in item.get("subsets") or () for entry in subset.get("addresses") or ()]
        for entry in addresses:
            found.setdefault(service, []).append(entry["ip"])
            if host := entry.get("hostname"):
                found.setdefault(f"{host}.{service}", []).append(entry["ip"])
    return found


def answer(question: bytes, names: Names) -> bytes:
    """The reply to a query with one question. Raises: IndexError, struct.error for what is none."""
    number, _, count = struct.unpack_from(">HHH", question)
    labels, place = [], 12
    while length := question[place]:
        labels.append(question[place + 1 : place + 1 + length].decode("ascii", "replace"))
        place += 1 + length
    (kind,) = struct.unpack_from(">H", question, place + 1)
    addresses = names.get(".".join(labels).lower(), ())
    shown = addresses if kind == TYPE_A else ()
    flags = 0x8580 | (NO_ERROR if addresses else NO_SUCH_NAME)
    head = struct.pack(">HHHHHH", number, flags, count, len(shown), 0, 0)
    records = [struct.pack(">HHHIH", 0xC00C, TYPE_A, 1, TTL_S, 4) + IPv4Address(text).packed for text in shown]
    return head + question[12 : place + 5] + b"".join(records)


class Endpoints:
    """What the API says of all endpoints, asked again and again by a thread."""

    def __init__(self, url: str, token: str, ca_file: str) -> None:
        self.names: Names = {}
        self._request = urllib.request.Request(f"{url}/api/v1/endpoints", headers={"Authorization": f"Bearer {token}"})
        context = ssl.create_default_context(cafile=ca_file)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                with self._opener.open(self._request, timeout=5) as page:
                    self.names = names_of(json.load(page))
            except OSError as error:  # the API server starts again
                print(f"cluster_dns: {error}", file=sys.stderr, flush=True)
            time.sleep(LOOK_EVERY_S)


def main() -> None:
    """Serve until killed."""
    address, url, token, ca_file = sys.argv[1:]
    known = Endpoints(url, token, ca_file)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            question, peer = server.recvfrom(4096)
            try:
                server.sendto(answer(question, known.names), peer)
            except (IndexError, struct.error):
                continue


if __name__ == "__main__":
    main()
