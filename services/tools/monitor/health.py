"""The map of a run's services: who is there, how it fares, how often it died, and what it let fall and why. Pure."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from seedbed.services.tools.cli.board import ServiceFigures
from seedbed.services.tools.monitor.folder import Death, Facts, Status
from seedbed.services.tools.monitor.pages import Page, PageState
from seedbed.shared.figures import actor, inference, learner
from seedbed.shared.figures import service as any_service
from seedbed.shared.figures.declare import declared

STARTING_S = 60.0  # how long a service that is not ready counts as starting, after the last death

LOSSES = {  # what should not happen: counter → what it counts, in words
    metric.sample: metric.loss for module in (learner, inference, actor) for metric in declared(module) if metric.loss
}
ACTOR_LANES = inference.ENVIRONMENT_LANES.sample
ACTOR_RESTARTS = inference.ENVIRONMENT_RESTARTS.family
REFUSED_PEERS = any_service.REFUSED_PEERS.family


class Health:
    """What is said of a service, in the page's words."""

    UP = "up"
    STARTING = "starting"
    SILENT = "not answering"
    GONE = "gone"
    ENDED = "ended"
    UNKNOWN = "not visible from here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What a service let fall, and how often since its start."""

    count: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """One service of a run. `restarts`: lives beyond the first that the launcher began; times in s since 1970."""

    name: str
    role: str  # "learner", "rank", "inference", "actor", or empty while unknown
    health: str
    incarnation: str  # hexadecimal, empty while it is not ready
    started_at: float | None
    restarts: int
    last_death: Death | None
    cpu_percent: float | None
    memory_bytes: float | None
    loop_lag_ms: float | None
    drops: tuple[Drop, ...]
    lanes: int | None = None  # of an actor that only inference tells of


def map_services(
    facts: Facts, pages: Mapping[int, Page], figures: Mapping[str, ServiceFigures], *, is_over: bool, now: float
) -> list[ServiceHealth]:
    """Every service that the run is known to have, in the order of the data: environments, inference, learner.

    Args:
      pages: the last visit, by incarnation.
      figures: of the services that were visited, by name.
      is_over: the run has ended, so that who is gone went in order.
    """
    statuses = {status.name: status for status in facts.statuses}
    deaths = {death.service: death for death in facts.deaths}
    order = {"actor": 0, "inference": 1, "learner": 2, "rank": 3}
    services = []
    for name in dict.fromkeys((*statuses, *facts.started)):
        status = statuses.get(name)
        page = pages.get(status.incarnation) if status else None
        known = figures.get(name) if page is not None and page.answer is PageState.UP else None
        services.append(
            ServiceHealth(
                name=name,
                role=status.role if status else guess_role(name),
                health=_health(status, page, deaths.get(name), is_over=is_over, now=now),
                incarnation=f"{status.incarnation:x}" if status else "",
                started_at=page.samples().get("process_start_time_seconds") if page and page.families else None,
                restarts=facts.num_deaths.get(name, 0),
                last_death=deaths.get(name),
                cpu_percent=known.cpu_percent if known else None,
                memory_bytes=known.memory_bytes if known else None,
                loop_lag_ms=known.loop_lag_ms if known else None,
                drops=drops_of(page),
            )
        )
    services += told_actors(pages, known={*statuses, *facts.started}, is_over=is_over)
    return sorted(services, key=lambda service: (order.get(service.role, 3), service.name))


def told_actors(pages: Mapping[int, Page], *, known: Container[str], is_over: bool) -> list[ServiceHealth]:
    """The actors that inference tells of and nobody else does: those in other containers and on other machines."""
    lanes, restarts = (_by_actor(pages, name) for name in (ACTOR_LANES, ACTOR_RESTARTS))
    return [
        ServiceHealth(
            name=name, role="actor", health=Health.UP if count else Health.ENDED if is_over else Health.GONE,
            incarnation="", started_at=None, restarts=int(restarts.get(name, 0)), last_death=None, cpu_percent=None,
            memory_bytes=None, loop_lag_ms=None, drops=(), lanes=int(count),
        )
        for name, count in lanes.items() if name not in known
    ]  # fmt: skip


def _by_actor(pages: Mapping[int, Page], metric: str) -> dict[str, float]:
    """A figure of each actor, summed over the replicas of inference."""
    found: dict[str, float] = {}
    for page in pages.values():
        for family in page.families if page.answer is PageState.UP else ():
            for sample in family.samples if family.name == metric else ():
                if not sample.name.endswith("_created"):
                    name = sample.labels.get("actor", "")
                    found[name] = found.get(name, 0.0) + sample.value
    return found


def guess_role(name: str) -> str:
    """The role behind a name that the launcher gives; empty for others."""
    stem, _, number = name.partition("-")
    if stem == "learner" and number.isdecimal() and int(number):
        return "rank"
    return {"learner": "learner", "inference": "inference", "actor": "actor", "eval": "actor"}.get(stem, "")


def _health(status: Status | None, page: Page | None, death: Death | None, *, is_over: bool, now: float) -> str:
    if page is not None and page.answer is PageState.UP:
        return Health.UP
    if is_over:
        return Health.ENDED
    if status is None:  # the launcher removes the status file when it starts a process
        return Health.STARTING if death is None or now - death.at < STARTING_S else Health.GONE
    if page is None or page.answer is PageState.ELSEWHERE:
        return Health.UNKNOWN
    return Health.SILENT if page.answer is PageState.SILENT else Health.GONE


def drops_of(page: Page | None) -> tuple[Drop, ...]:
    """What a service's page says that it let fall, the most first; nothing that did not happen."""
    if page is None:
        return ()
    samples = page.samples()
    found = [Drop(count=samples[name], reason=reason) for name, reason in LOSSES.items() if samples.get(name)]
    found += [
        Drop(count=sample.value, reason=f"peers refused: {sample.labels.get('reason', 'no reason')}")
        for family in page.families
        if family.name == REFUSED_PEERS
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    ]
    return tuple(sorted(found, key=lambda drop: (-drop.count, drop.reason)))


def ups(services: Sequence[ServiceHealth]) -> int:
    """How many of them are up."""
    return sum(service.health == Health.UP for service in services)
