"""The interface of an algorithm: a loss on batches of experience, and state that is trained besides the policy.

The updater does not depend on any algorithm. For every batch it calls

    prepare(whole batch)                                    once, without gradient
    loss(part, prepared part) → backward → optimiser steps → after_step     for each minibatch of each pass
    after_batch                                             once

Your own algorithm is a subclass in any module that the learner can import, named `module:Class`
(docs/own_algorithm.md).

Shape suffixes: T transitions, B lane-unrolls, D diagnostics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from seedbed.learner_svc.algorithms.config import AlgorithmSettings
from seedbed.learner_svc.ranks.ranks import ALONE, Ranks
from seedbed.learner_svc.sources.batch import Experience
from seedbed.learner_svc.sources.echo import EchoSource
from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.learner_svc.sources.source import K, Source, SourcePlan
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.protocol.recording import RecordSpec

Prepared = Mapping[str, Tensor]  # constants of all passes over a batch, each [T, B, ...]


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The result of one evaluation of the loss.

    With several learner ranks, each rank's loss and diagnostics are its part of a sum over all of them.
    """

    loss: Tensor  # scalar, with gradient
    diagnostics: Tensor  # f32 [D], detached; the algorithm's `report` names their sums after the step's one sync
    priorities_B: Tensor | None = None  # f32 [B], detached: for a source that draws by priority


class Algorithm:
    """The base class of algorithms. Owned by the update thread.

    A subclass must define `loss`. The updater saves and restores `networks()` and `state()`.
    """

    Settings: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings  # the model of its section [algorithm]
    # Whether `loss` looks at each transition alone, because `prepare` did all that needs those after it, and gives no
    # priorities. Minibatches for a policy without an LSTM then hold any transitions, and not whole lanes.
    is_by_transition: ClassVar[bool] = False
    ranks: Ranks = ALONE  # for what must be summed over all ranks before the loss; set by the updater

    def __init__(self, config: Any, policy: Policy) -> None:
        """Make the algorithm for a policy that is on its device already.

        Args:
          config: an instance of `Settings`.
        """
        self.config, self.policy = config, policy

    @classmethod
    def recording(cls, config: Any, unroll_length: int) -> Recording:
        """Return how inference acts and what it records; by default it samples actions and records log_prob."""
        return Recording(unroll_length=unroll_length)

    @classmethod
    def make_source(cls, config: Any, record: RecordSpec, plan: SourcePlan) -> Source[K]:
        """What turns unrolls into batches. By default a queue: every unroll is used once, in the order of arrival.

        With `learner.echo` above 1 each is used that often, shuffled.
        """
        if plan.echo > 1:
            return EchoSource(record, plan)
        return QueueSource(
            record, batch=plan.batch, num_buffers=plan.num_buffers, weights=plan.weights, is_pinned=plan.is_pinned
        )

    def networks(self) -> Mapping[str, nn.Module]:
        """Return the networks besides the policy by name, on its device; every call returns the same ones.

        A network with parameters that require a gradient gets its own optimiser and gradient clip, with the policy's
        settings. All of them are in checkpoints; none is published.
        """
        return {}

    @property
    def value_units(self) -> str:
        """The units of the policy's value outputs, in words; weights with values in other units are refused."""
        return "rewards"

    @property
    def rate_factor(self) -> float:
        """A factor for the configured learning rate of the next batch."""
        return 1.0

    def prepare(self, experience: Experience) -> Prepared:
        """Return the constants of all passes over a batch, each [T, B, ...], by name. Called before the first pass."""
        return {}

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """Return the loss of a batch or minibatch, and the diagnostics that `report` names."""
        raise NotImplementedError

    def after_step(self, learning_rate: float) -> None:
        """Called after every optimiser step."""

    def is_too_far(self, report: Mapping[str, float]) -> bool:
        """Whether no more optimiser steps are to be made on this batch, given the report of the last one."""
        return False

    def after_batch(self, last_pass: Sequence[Mapping[str, float]]) -> None:
        """Called after the last optimiser step on a batch, with the reports of its last pass."""

    def weights_replaced(self) -> None:
        """Called when the policy's weights were exchanged for another run's, before the first update."""

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """Return the metrics of a step by name, from the host's copy of its diagnostics."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return the tensors outside all networks that a resume needs, without a copy."""
        return {}

    def statistics(self) -> dict[str, Tensor]:
        """Return those tensors of `state` that the meaning of the policy's weights depends on."""
        return {}
