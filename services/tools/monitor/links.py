"""The monitor's connections to inference and learner, for figures that it cannot visit: dials, asks, hands on."""

import asyncio
from collections.abc import Sequence
from functools import partial

from seedbed.services.tools.monitor.config import MonitorConfig
from seedbed.services.tools.monitor.remote_reports import RemoteReports
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.figures.monitor import REFUSED_MESSAGES
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.keys import DialKeys, dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.resolver import Resolver
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.codec import encode
from seedbed.shared.runtime.service import Service

ASK_EVERY_S = 0.125


class Links:
    """One connection for each numeric address that the configured names stand for. Owned by the loop."""

    def __init__(self, config: MonitorConfig, service: Service, reactor: Reactor, reports: RemoteReports) -> None:
        """Raises: ConfigError if an address is malformed or a key wrong."""
        self._service, self._reactor, self._reports = service, reactor, reports
        folder, upstream = service.runtime.keys, {Role.INFERENCE: config.inference, Role.LEARNER: config.learner}
        self._keys: dict[Role, DialKeys | None] = {
            role: dial_keys(folder, Role.MONITOR, role) for role, addresses in upstream.items() if addresses
        }
        self._dealers: dict[tuple[Role, str], Dealer] = {}
        self._refused = service.metrics.counter(REFUSED_MESSAGES.name, REFUSED_MESSAGES.meaning)
        self._resolvers = [Resolver(upstream[role], partial(self._found, role)) for role in self._keys]

    async def work(self) -> None:
        """Ask, for ever; without addresses there is nothing to do."""
        while self._keys:
            for (role, address), dealer in self._dealers.items():
                look = self._reports.due(address, role) if dealer.is_connected else None
                if look is not None:
                    dealer.send([encode(look)])
            await asyncio.sleep(ASK_EVERY_S)

    def close(self) -> None:
        """Stop looking up names, and close the connections to all services."""
        for resolver in self._resolvers:
            resolver.close()
        for dealer in self._dealers.values():
            dealer.close()
        self._dealers.clear()

    def _found(self, role: Role, addresses: Sequence[str]) -> None:
        """Replicas come and go behind a name; one that stands for nobody keeps the addresses that it had."""
        for key in [key for key in self._dealers if key[0] is role and key[1] not in addresses]:
            self._dealers.pop(key).close()
        for address in addresses:
            if (role, address) not in self._dealers:
                self._dealers[role, address] = self._dial(role, address)
        self._reports.forget([address for _, address in self._dealers])

    def _dial(self, role: Role, address: str) -> Dealer:
        def event(kind: str) -> None:
            if kind == "handshake_failed":
                self._service.log.warning("handshake_failed", address=address, cause=dealer.refusal)

        dealer = Dealer(
            self._reactor, address, on_message=partial(self._take, role, address), on_event=event, keys=self._keys[role]
        )
        return dealer

    def _take(self, role: Role, address: str, frames: list[bytes]) -> None:
        try:
            self._reports.take(address, role, frames)
        except RemoteWireError as error:
            self._refused.inc()
            self._service.log.debug("report_refused", address=address, error=str(error))
