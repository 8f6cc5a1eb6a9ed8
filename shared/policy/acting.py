"""Acting rules: what turns a forward pass into actions, and what it records for the algorithm that learns from them.

The learner names a rule, its parameters and what is to be recorded in the weights' manifest, so an inference needs no
setting of its own. One of your own is named `module:Class`: a subclass of `ActingRule`, built as `Class(**parameters)`,
that the learner and every inference can import.

Shape suffixes: B lanes, P parameters, A own-action columns, M mask columns.
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

MAX_ROWS = 1 << 16  # of an unroll, as a manifest may say
Q, MAX_Q = "q", "max_q"  # of the action taken, and of the best one
RECORDED_Q = RecordField(Q, "float32", (), Per.TRANSITION)
RECORDED_MAX_Q = RecordField(MAX_Q, "float32", (), Per.TRANSITION)
_KEY = (1 << 64) - 1
_EXPLORING = 1 << 63  # keeps the random numbers of exploration apart from those of sampling


class ActingOutputs(NamedTuple):
    """What one row of a forward pass gives for B lanes."""

    params: Tensor  # f32 [B, P], for the policy's distribution
    value: Tensor  # f32 [B]


class Decision(NamedTuple):
    """The actions of B lanes, and what is recorded of them."""

    action: Tensor  # own action f32 [B, A]
    recorded: Mapping[str, Tensor]  # by the name of a field, [B, *shape]


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
          slots: the lanes' slots, which are unique within this inference at the time.
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
          wanted: names of `records` to compute; the others may be left out.
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
        """Return sampled actions, and their log-probabilities, f32 [B], if these are wanted."""
        if LOG_PROB not in wanted:
            return Decision(distribution.sample(outputs.params, noise, mask), {})
        action, log_prob = distribution.sample_with_log_prob(outputs.params, noise, mask)
        return Decision(action, {LOG_PROB: log_prob})


class Mode(ActingRule):
    """The most likely action: for evaluations, and for a policy that is served."""

    def noise(
        self, distribution: ActionDistribution, seed: int, block: int, ticks: int, slots: range
    ) -> tuple[Array, ...]:
        """No noise: the mode needs none."""
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
    """How inference acts for an algorithm, and what it records of that. The weights' manifest carries it."""

    rule: str = "sample"  # a name of RULES, or module:Class
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the rule
    decided: tuple[str, ...] = (LOG_PROB,)  # what the rule records, by name
    unroll_length: int  # T
    overlap: int = 0  # transitions of the unroll before that an unroll stores again: its loss leaves them out

    def make_rule(self) -> ActingRule:
        """Return the acting rule. Raises: ConfigError if it does not exist, or does not take these parameters."""
        setting = f"acting rule {self.rule!r}"
        kind = RULES.get(self.rule) or load_class(self.rule, setting, known=RULES, base=ActingRule)
        try:
            return kind(**self.parameters)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{setting}: {error}") from error

    def make_record(self, spec: EnvSpec, state: Sequence[RecordField]) -> RecordSpec:
        """Return what an unroll records of an environment, and of a policy with these state fields.

        Raises: ConfigError naming what the rule cannot record.
        """
        available = {item.name: item for item in self.make_rule().records}
        if missing := [name for name in self.decided if name not in available]:
            known = ", ".join(available) or "nothing"
            raise ConfigError(f"acting rule {self.rule!r} records {known}, and not {', '.join(missing)}")
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
            raise RemoteWireError("manifest", "the acting rule is no object")
        length, overlap = obj.get("unroll_length"), obj.get("overlap", 0)
        if (
            type(length) is not int
            or not 0 < length < MAX_ROWS
            or type(overlap) is not int
            or not 0 <= overlap <= length
        ):
            raise RemoteWireError("manifest", f"unrolls of length {length!r} with an overlap of {overlap!r}")
        rule, parameters, decided = (acting.get(name) for name in ("rule", "parameters", "decided"))
        if type(rule) is not str or type(parameters) is not dict or type(decided) is not list:
            raise RemoteWireError("manifest", "the acting rule is not a name with parameters and fields")
        return cls(
            rule=rule, parameters=parameters, decided=tuple(map(str, decided)), unroll_length=length, overlap=overlap
        )
