"""What a probe found out about an environment, and its text between two processes."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from seedbed.actor_svc.backends.backend import About
from seedbed.shared.protocol.rows import EnvSpec, spec_from_wire, spec_to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One small group of an environment, made, reset and stepped with random actions."""

    spec: EnvSpec
    backend: str  # envpool, ale_sync, vector, gymnasium (one by one), function, or service
    about: About
    lanes: int  # of the group: one, or as many as come together
    tick_s: float  # seconds for one step of all of them
    seen: tuple[tuple[float, float], ...] = ()  # least and greatest value of each observation leaf, canonical order
    newer_id: str = ""  # of the same environment, where there is one
    failure: str = ""  # of a lane while it was stepped, the last one; it was made anew

    @property
    def stepped_by(self) -> str:
        """The back-end and the wrappers, for people."""
        how = {
            "envpool": "EnvPool",
            "ale_sync": "ALE, games one after the other",
            "vector": "Gymnasium's vector form",
            "gymnasium": "Gymnasium, one by one",
            "service": "a program of its own",
            "function": "a function, " + ("all lanes at once" if self.about.is_vector else "one by one"),
        }[self.backend]
        layers = "<".join(self.about.layers) + ">" * (len(self.about.layers) - 1)
        return f"{how}: {layers}" if layers and self.backend not in ("envpool", "ale_sync") else how


def to_json(probe: Probe) -> dict[str, Any]:
    """Return a probe as values that JSON takes; bytes become {"hex": …}."""
    fields = {name: getattr(probe, name) for name in ("backend", "lanes", "tick_s", "seen", "newer_id", "failure")}
    return {**fields, "spec": spec_to_json(probe.spec), "about": asdict(probe.about)}


def from_json(found: dict[str, Any]) -> Probe:
    """The probe that `to_json` wrote."""
    about = {**found["about"], "layers": tuple(found["about"]["layers"])}
    seen = tuple((least, greatest) for least, greatest in found["seen"])
    return Probe(**{**found, "spec": spec_from_json(found["spec"]), "about": About(**about), "seen": seen})


def spec_to_json(spec: EnvSpec) -> str:
    """A specification as one line of JSON, bytes as {"hex": …}."""
    return json.dumps(spec_to_wire(spec), default=lambda value: {"hex": value.hex()})


def spec_from_json(text: str) -> EnvSpec:
    """The specification that `spec_to_json` wrote."""
    return spec_from_wire(json.loads(text, object_hook=_bytes_of))


def _bytes_of(found: dict[str, Any]) -> Any:
    return bytes.fromhex(found["hex"]) if found.keys() == {"hex"} else found
