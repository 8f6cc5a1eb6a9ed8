"""A run whose services know each other by name, on loopback addresses of their own, with keys: as containers are."""

import json
from collections.abc import Sequence
from pathlib import Path

from seedbed.services.tools.cli.launcher import Reservation
from seedbed.shared.net.keyring import Keyring
from tests.support.deployment import PATIENCE, WORDS, ServiceProcess, known, wait_until

LEARNER, INFERENCE = "learner", "inference"
GROUP_LANES, ACTOR_LANES = 6, 12
HOST_A, HOST_B, HOST_C = "127.0.0.2", "127.0.0.3", "127.0.0.4"
PATIENCE_S = 90.0 * PATIENCE  # five processes start at once


class NamedService(ServiceProcess):
    """A service that looks names up in the deployment's file."""

    def __init__(self, role: str, name: str, folder: Path, words: Sequence[str]) -> None:
        super().__init__(f"seedbed.{role}_svc", name, folder, words)
        self.role, self.hosts_file = role, folder / "hosts.json"

    def program(self) -> list[str]:
        """The learner dials nobody."""
        if self.role == "learner":
            return super().program()
        return ["tests.support.named_service", self.role, str(self.hosts_file)]


class NamedDeployment:
    """A context manager that leaves no process. Ports are one for each name, as in containers."""

    def __init__(self, folder: Path, *words: str, env: tuple[str, ...]) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self._reservations = {name: Reservation(HOST_A) for name in (LEARNER, INFERENCE)}
        self._env, self._words = env, [*words, f"runtime.keys={folder / 'keys'}"]
        self._hosts: dict[str, list[str]] = {}
        Keyring(folder / "keys").init()
        self.name_hosts()
        self.services: dict[str, NamedService] = {}

    def name_hosts(self, **hosts: list[str]) -> None:
        """What these names stand for from now on."""
        self._hosts |= hosts
        (self.folder / "hosts.new").write_text(json.dumps(self._hosts))
        (self.folder / "hosts.new").replace(self.folder / "hosts.json")

    def add_learner(self, host: str, name: str = "learner") -> NamedService:
        """A learner on the run, not started."""
        return self._add(LEARNER, name, self._bind(LEARNER, host), f"run.dir={self.run_dir}", *self._env)

    def add_inference(self, host: str, name: str) -> NamedService:
        """A replica, not started."""
        upstream = f"inference.upstream=tcp://{LEARNER}:{self._reservations[LEARNER].port}"
        return self._add(INFERENCE, name, self._bind(INFERENCE, host), upstream, f"inference.name={name}")

    def add_actor(self, name: str, *words: str) -> NamedService:
        """An actor with two groups, not started."""
        upstream = f"actor.upstream=tcp://{INFERENCE}:{self._reservations[INFERENCE].port}"
        return self._add("actor", name, upstream, f"actor.name={name}", *self._env, *words)

    def _bind(self, role: str, host: str) -> str:
        return f"{role}.bind=tcp://{host}:{self._reservations[role].port}"

    def _add(self, role: str, name: str, *words: str) -> NamedService:
        service = NamedService(role, name, self.folder, [*WORDS[role], *self._words, *words])
        self.services[name] = service
        return service

    def of(self, role: str) -> list[NamedService]:
        """Those that run."""
        return [service for service in self.services.values() if service.role == role and service.is_running]

    def total(self, role: str, metric: str) -> float:
        """Of all of them that run; NaN while one of them does not answer."""
        return sum(service.metric(metric) for service in self.of(role))

    def wait_lanes(self, *expected: int) -> None:
        """Until the replicas have so many slots in use each, in any order."""
        wait_until(
            lambda: sorted(service.metric("lanes") for service in self.of(INFERENCE)) == sorted(expected),
            f"lanes are {expected}",
            PATIENCE_S,
        )

    def wait_trained(self, steps: float = 500) -> None:
        """Until so many more steps are trained."""
        start = wait_until(lambda: known(self.trained()), "the learner answers", PATIENCE_S)
        wait_until(lambda: self.trained() >= start + steps, f"{steps:.0f} more steps are trained", PATIENCE_S)

    def trained(self) -> float:
        """Steps of the run; NaN while the learner does not answer."""
        return self.total(LEARNER, "learner_trained_steps_total") if self.of(LEARNER) else float("nan")

    def settle(self, *names: str) -> None:
        """Exactly these services run, each actor's groups are spread evenly, and it trains."""
        for service in [item for item in self.services.values() if item.name not in names]:
            service.close()
            del self.services[service.name]
        for service in self.services.values():
            if not service.is_running:
                service.start()
        actors, replicas = len(self.of("actor")), len(self.of(INFERENCE))
        self.wait_lanes(*[actors * ACTOR_LANES // replicas] * replicas)
        self.wait_trained(200)

    def __enter__(self) -> "NamedDeployment":
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services.values():
            service.close()
        for reservation in self._reservations.values():
            reservation.close()
