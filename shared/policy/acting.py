"""Acting rules: they choose actions from the outputs of a forward pass, and record fields for the algorithm.

The manifest of the weights names the rule, its parameters and the recorded fields, so inference needs no setting for
them. Your own rule is named `module:Class`: a subclass of `ActingRule`, built as `Class(**parameters)`, that learner
and inference services can import.

Shape suffixes: B lanes, P parameters, A raw-action columns, M mask columns.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedbed.shared.errors import ConfigError, RemoteWireError
from seedbed.shared.policy.distributions import ActionDistribution
from seedbed.shared.policy.q_values import DuellingQ, lane_epsilons
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import LOG_PROB, RECORDED_LOG_PROB, Per, RecordField, RecordSpec
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.runtime.modules import load_class

MAX_ROWS = 1 << 16  # most rows of an unroll that a manifest may ask for
Q, MAX_Q = "q", "max_q"  # of the action taken, and of the best one
RECORDED_Q = RecordField(Q, "float32", (), Per.TRANSITION)
RECORDED_MAX_Q = RecordField(MAX_Q, "float32", (), Per.TRANSITION)
_KEY = (1 << 64) - 1
_EXPLORING = 1 << 63  # keeps the random numbers of exploration apart from those of sampling


class ActingOutputs(NamedTuple):
    """The outputs of one forward pass for B lanes."""

    params: Tensor  # f32 [B, P], for the policy's distribution
    value: Tensor  # f32 [B]


class Decision(NamedTuple):
    """The actions of B lanes, and the recorded fields."""

    action: Tensor  # raw action f32 [B, A]
    recorded: Mapping[str, Tensor]  # field name → [B, *shape]


class ActingRule:
    """Chooses actions from a policy's outputs. Stateless: its only randomness is the noise that it is passed."""

    replica: int = 0  # a number that no other inference of the run has; set by the engine
    records: ClassVar[tuple[RecordField, ...]] = ()  # the fields that it can record for each transition

    def noise(
        self, distribution: ActionDistribution, seed: int, block: int, ticks: int, slots: range
    ) -> tuple[Array, ...]:
        """Return the random arrays that `decide` needs, each [ticks, lanes, ...]; the same for the same arguments.

        Args:
          seed, block: the group's seed, and the number of this block of ticks.
          slots: the lanes' slots, which are unique within an inference service at a time.
        """
        return distribution.noise(seed, block, ticks, len(slots))

    def decide(
        self,
        distribution: ActionDistribution,
        outputs: ActingOutputs,
        noise: Sequence[Tensor],
        mask: Tensor | None,
        wanted: Collection[str],
    ) -> Decision:
        """Choose the actions of one row.

        Args:
          noise: one tick of what `noise` gave, for these lanes.
          mask: which actions are permitted, u8 [B, M].
          wanted: names of the fields of `records` to compute.
        """
        raise NotImplementedError


class Sample(ActingRule):
    """Samples actions from the policy's distribution."""

    records = (RECORDED_LOG_PROB,)

    def decide(
        self,
        distribution: ActionDistribution,
        outputs: ActingOutputs,
        noise: Sequence[Tensor],
        mask: Tensor | None,
        wanted: Collection[str],
    ) -> Decision:
        """Return sampled actions, and their log-probabilities, f32 [B], if wanted."""
        if LOG_PROB not in wanted:
            return Decision(distribution.sample(outputs.params, noise, mask), {})
        action, log_prob = distribution.sample_with_log_prob(outputs.params, noise, mask)
        return Decision(action, {LOG_PROB: log_prob})


class Mode(ActingRule):
    """Takes the most likely action, for evaluations and served policies."""

    def noise(
        self, distribution: ActionDistribution, seed: int, block: int, ticks: int, slots: range
    ) -> tuple[Array, ...]:
        """Return no noise, because the mode needs none."""
        return ()

    def decide(
        self,
        distribution: ActionDistribution,
        outputs: ActingOutputs,
        noise: Sequence[Tensor],
        mask: Tensor | None,
        wanted: Collection[str],
    ) -> Decision:
        """Return the mode of every component of the action; nothing is recorded."""
        return Decision(distribution.mode(outputs.params, mask), {})


class EpsilonGreedy(ActingRule):
    """The action of greatest Q, or with probability ε any permitted one. Every lane has an ε of its own, for good.

    ε of a lane is base^(1 + alpha·u) with u in [0, 1), as `q_values.lane_epsilons` spreads it.
    """

    records = (RECORDED_Q, RECORDED_MAX_Q)

    def __init__(self, base: float = 0.4, alpha: float = 7.0) -> None:
        """Raises: ValueError if ε would be no probability."""
        if not 0.0 <= base <= 1.0 or alpha < 0.0:
            raise ValueError(f"base is {base} and alpha {alpha}, expected 0 ≤ base ≤ 1 and alpha ≥ 0")
        self._base, self._alpha = base, alpha

    def noise(
        self, distribution: ActionDistribution, seed: int, block: int, ticks: int, slots: range
    ) -> tuple[Array, ...]:
        """Return the distribution's noise, and 1 where a lane explores, f32 [ticks, lanes]."""
        key = np.array([seed & _KEY, (block ^ _EXPLORING) & _KEY], np.uint64)
        uniform = np.random.Generator(np.random.Philox(key=key)).random((ticks, len(slots)))
        epsilon = lane_epsilons(slots, base=self._base, alpha=self._alpha, replica=self.replica).numpy()
        return (*distribution.noise(seed, block, ticks, len(slots)), (uniform < epsilon).astype(np.float32))

    def decide(
        self,
        distribution: ActionDistribution,
        outputs: ActingOutputs,
        noise: Sequence[Tensor],
        mask: Tensor | None,
        wanted: Collection[str],
    ) -> Decision:
        """Return the actions, and Q of these and of the best ones, f32 [B], as far as they are wanted."""
        *sampling, explores = noise
        uniform = distribution.sample(torch.zeros_like(outputs.params), sampling, mask)
        best = distribution.mode(outputs.params, mask)
        action = torch.where(explores.unsqueeze(-1) > 0, uniform, best)
        q, recorded = DuellingQ(distribution), {}
        if Q in wanted:
            recorded[Q] = q.of(outputs.params, outputs.value, action)
        if MAX_Q in wanted:
            recorded[MAX_Q] = q.greatest(outputs.params, outputs.value, mask)
        return Decision(action, recorded)


MODE = Mode()
RULES: Mapping[str, type[ActingRule]] = {"sample": Sample, "mode": Mode, "epsilon_greedy": EpsilonGreedy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How inference acts for an algorithm, and which fields it records; part of the weights' manifest."""

    rule: str = "sample"  # a name of RULES, or module:Class
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the rule
    decided: tuple[str, ...] = (LOG_PROB,)  # names of the fields that the rule records
    unroll_length: int  # T
    overlap: int = 0  # transitions of the previous unroll that are stored again, without a loss

    def make_rule(self) -> ActingRule:
        """Return the acting rule. Raises: ConfigError if it does not exist, or does not take these parameters."""
        setting = f"acting rule {self.rule!r}"
        kind = RULES.get(self.rule) or load_class(self.rule, setting, known=RULES, base=ActingRule)
        try:
            return kind(**self.parameters)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{setting}: {error}") from error

    def make_record(self, spec: EnvSpec, state: Sequence[RecordField]) -> RecordSpec:
        """Return the record specification for an environment, and a policy with these state fields.

        Raises: ConfigError naming what the rule cannot record.
        """
        available = {item.name: item for item in self.make_rule().records}
        if missing := [name for name in self.decided if name not in available]:
            known = ", ".join(available) or "nothing"
            raise ConfigError(f"acting rule {self.rule!r} can record {known}, but not {', '.join(missing)}")
        return RecordSpec(
            spec, self.unroll_length, self.overlap,
            decided=tuple(available[name] for name in self.decided), state=tuple(state),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the recording as JSON values, for the manifest's `extra`."""
        acting = {"rule": self.rule, "parameters": dict(self.parameters), "decided": list(self.decided)}
        return {"unroll_length": self.unroll_length, "overlap": self.overlap, "acting": acting}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Recording":
        """Return the recording in a manifest's `extra`; without "acting", as in earlier versions, actions are sampled.

        Raises: RemoteWireError if it cannot be read.
        """
        acting = obj.get("acting", {"rule": "sample", "parameters": {}, "decided": [LOG_PROB]})
        if type(acting) is not dict:
            raise RemoteWireError("manifest", "`acting` must be a JSON object")
        length, overlap = obj.get("unroll_length"), obj.get("overlap", 0)
        if (
            type(length) is not int
            or not 0 < length < MAX_ROWS
            or type(overlap) is not int
            or not 0 <= overlap <= length
        ):
            raise RemoteWireError("manifest", f"invalid unroll length {length!r} or overlap {overlap!r}")
        rule, parameters, decided = (acting.get(name) for name in ("rule", "parameters", "decided"))
        if type(rule) is not str or type(parameters) is not dict or type(decided) is not list:
            raise RemoteWireError("manifest", "the acting rule must be a name with parameters and fields")
        return cls(
            rule=rule, parameters=parameters, decided=tuple(map(str, decided)), unroll_length=length, overlap=overlap
        )
