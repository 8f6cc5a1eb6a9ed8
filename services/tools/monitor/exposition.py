"""Every live service's metrics as one page: each sample gains the labels run, service, name and incarnation. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import prometheus_client
from prometheus_client import Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSource:
    """One service's page and the labels that tell it from the others."""

    labels: Mapping[str, str]
    families: Iterable[Metric]


class _Families(Collector):
    """Hands families to prometheus_client's writer."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """All families of metrics, in the order of the page."""
        return self._families


def merge(sources: Iterable[MetricsSource]) -> list[Metric]:
    """Families of the same name and type joined; one of another type than its namesake is left out.

    A label that a sample has already keeps its value as `exported_<label>`, unless it says the same.
    """
    merged: dict[str, Metric] = {}
    for source in sources:
        for family in source.families:
            known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            if known.type != family.type:
                continue
            known.samples += [
                sample._replace(labels=join_labels(sample.labels, source.labels)) for sample in family.samples
            ]
    return list(merged.values())


def join_labels(own: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """A sample's labels with those of its source."""
    kept = {
        f"exported_{name}" if name in added else name: value for name, value in own.items() if added.get(name) != value
    }
    return kept | dict(added)


def render(sources: Iterable[MetricsSource]) -> bytes:
    """The page, in Prometheus' text format."""
    return prometheus_client.generate_latest(_Families(merge(sources)))
