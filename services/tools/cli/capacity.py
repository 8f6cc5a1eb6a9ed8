"""How many services a fleet of machines needs, what its links carry and what a billion frames cost: arithmetic alone.

Two layouts are compared, with the same learner:

| layout | who runs the policy |
|---|---|
| seedbed's | inference services, for all environments in large batches |
| as in IMPALA | every actor for its own lanes, which must have the weights of each update |

Units: seconds of one core, bytes and prices are for one step of one environment; rates are steps per second.
"""

import math
from dataclasses import dataclass

HEADROOM = 0.8  # the share of its greatest rate at which a service is planned to work
HOUR_S = 3600.0
BILLION = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a step of one experiment costs on one machine."""

    env_id: str
    frames_per_step: int
    actor_s: float  # processor time of actors, with their share of the network
    inference_s: float  # of inference services
    learner_s: float  # of the learner
    impala_s: float  # of a process that steps environments and runs the policy for them, without a network
    inference_rate: float  # at which one inference service is busy all the time
    learner_rate: float  # the same of one learner
    inference_bytes: float  # between an actor and inference
    learner_bytes: float  # between inference and the learner, without weights
    weights_bytes: float  # of one version of the weights
    steps_per_update: float
    unrolls_per_update: int  # of one learner rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machines that the user has in mind, and their prices for an hour; 0: no price."""

    actor_machines: int
    cores: int  # of each, all of them for actors
    core_price: float = 0.0
    accelerator_price: float = 0.0  # with the cores that feed it
    inference_rate: float = 0.0  # of one inference service on an accelerator, if it has one
    learner_rate: float = 0.0  # of one learner on an accelerator, if it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePrice:
    """The price of a billion frames, by who is paid for it."""

    actors: float
    inference: float
    learners: float

    @property
    def total(self) -> float:
        """The price of actors, inference and learners together."""
        return self.actors + self.inference + self.learners


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What a fleet needs at the rate that its actors reach."""

    rate: float
    actors_per_inference: float  # cores of actors
    inference_services: int
    inference_per_learner: float
    learners: int
    unrolls_per_update: int  # of all ranks together
    inference_link: float  # bytes per second, of one inference service with its actors
    learner_link: float  # of one learner with all inference services, with weights
    impala_rate: float  # that the same cores reach when they run the policy as well
    impala_weights_link: float  # bytes per second of weights to all actor processes, one for each core
    seedbed: FramePrice
    impala: FramePrice


def plan_fleet(costs: Costs, fleet: Hardware) -> CapacityPlan:
    """Return what a fleet needs, at `HEADROOM` of what inference and learners can do at most."""
    cores = fleet.actor_machines * fleet.cores
    rate, impala_rate = cores / costs.actor_s, cores / costs.impala_s
    of_inference = HEADROOM * (fleet.inference_rate or costs.inference_rate)
    of_learner = HEADROOM * (fleet.learner_rate or costs.learner_rate)
    inference_services, learners = math.ceil(rate / of_inference), math.ceil(rate / of_learner)
    versions_per_s = rate / (costs.steps_per_update * learners)
    impala_versions_per_s = impala_rate / (costs.steps_per_update * math.ceil(impala_rate / of_learner))

    def price(core_s: float, accelerator_rate: float) -> float:
        """Return what a billion frames cost, if a step takes so much of a core or an accelerator has this rate."""
        steps = BILLION / costs.frames_per_step
        if accelerator_rate:
            return steps / accelerator_rate / HOUR_S * fleet.accelerator_price
        return steps * core_s / HOUR_S * fleet.core_price

    learning = price(costs.learner_s, fleet.learner_rate)
    return CapacityPlan(
        rate=rate,
        actors_per_inference=of_inference * costs.actor_s,
        inference_services=inference_services,
        inference_per_learner=of_learner / of_inference,
        learners=learners,
        unrolls_per_update=learners * costs.unrolls_per_update,
        inference_link=rate / inference_services * costs.inference_bytes,
        learner_link=rate / learners * costs.learner_bytes + inference_services * versions_per_s * costs.weights_bytes,
        impala_rate=impala_rate,
        impala_weights_link=cores * impala_versions_per_s * costs.weights_bytes,
        seedbed=FramePrice(
            actors=price(costs.actor_s, 0.0), inference=price(costs.inference_s, fleet.inference_rate),
            learners=learning,
        ),
        impala=FramePrice(actors=price(costs.impala_s, 0.0), inference=0.0, learners=learning),
    )  # fmt: skip
