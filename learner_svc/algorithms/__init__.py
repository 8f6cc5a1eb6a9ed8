"""The algorithms by name: each is one file with its loss and its own small state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from learner_svc.algorithm_config import AlgorithmConfig
from learner_svc.algorithms.vtrace import LossOutput, VTrace
from learner_svc.batch import Experience
from shared.policy.policy import Policy


class Algorithm(Protocol):
    """What the updater asks of an algorithm. Owned by the update thread."""

    def loss(self, experience: Experience) -> LossOutput:
        """The loss of one batch, and the diagnostics that `report` names."""
        ...

    def after_step(self, learning_rate: float) -> None:
        """Move what learns beside the network. Called after every optimiser step."""
        ...

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """The figures of an update by name, from the host's copy of its diagnostics."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        ...


REGISTRY: dict[str, Callable[[AlgorithmConfig, Policy], Algorithm]] = {"vtrace": VTrace}


def make_algorithm(config: AlgorithmConfig, policy: Policy) -> Algorithm:
    """The algorithm that the configuration names, for one policy."""
    return REGISTRY[config.name](config, policy)
