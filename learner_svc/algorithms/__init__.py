"""The algorithms by name: each is one file with its loss and its own small state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from learner_svc.algorithm_config import AlgorithmConfig
from learner_svc.algorithms.actor_critic import LossOutput, Prepared
from learner_svc.algorithms.appo import Appo
from learner_svc.algorithms.vtrace import VTrace
from learner_svc.batch import Experience
from shared.policy.policy import Policy


class Algorithm(Protocol):
    """What the updater asks of an algorithm. Owned by the update thread."""

    @property
    def rate_factor(self) -> float:
        """Multiplies the configured learning rate of the next batch."""
        ...

    def prepare(self, experience: Experience) -> Prepared:
        """What stays the same in all passes over a batch, each [T, B], by name; computed before the first."""
        ...

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """The loss of a batch or of a minibatch, and the diagnostics that `report` names."""
        ...

    def after_step(self, learning_rate: float) -> None:
        """Move what learns beside the network. Called after every optimiser step."""
        ...

    def is_too_far(self, report: Mapping[str, float]) -> bool:
        """Whether this optimiser step, by its report, is the last one on its batch."""
        ...

    def after_batch(self, last_pass: Sequence[Mapping[str, float]]) -> None:
        """Called after the last optimiser step on a batch, with the reports of its last pass."""
        ...

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """The figures of a step by name, from the host's copy of its diagnostics."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        ...


REGISTRY: Mapping[str, Callable[[Any, Policy], Algorithm]] = {"vtrace": VTrace, "appo": Appo}


def make_algorithm(config: AlgorithmConfig, policy: Policy) -> Algorithm:
    """The algorithm that the configuration names, for one policy."""
    return REGISTRY[config.name](config, policy)
