"""Action values from a policy's two heads: a duelling network whose value head is V and whose parameters are A.

Q(x, a) = V(x) + Σ_c (A_c(x, a_c) - mean A_c(x, ·)), the sum over the components of the action: one of a Discrete space,
several of a MultiDiscrete one or of a Dict of them. So the greedy action is the mode of the policy's distribution.
Source: Wang et al. 2016, arXiv 1511.06581, eq. 9.

Shape suffixes: C components, K categories, P parameters, A own-action columns, M mask columns.
"""

import math

import torch
from torch import Tensor

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.distributions import MASKED, ActionDistribution

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class DuellingQ:
    """Q of one action space. Stateless but for the distribution's index tables.

    Raises: ConfigError unless every action is a choice among categories.
    """

    def __init__(self, distribution: ActionDistribution) -> None:
        if distribution.num_binaries or distribution.num_normals:
            kind = "Box" if distribution.num_normals else "MultiBinary"
            raise ConfigError(
                f"the environment has {kind} actions, and Q-learning needs Discrete or MultiDiscrete ones: "
                "use algorithm.name = 'appo' or 'vtrace'"
            )
        self._distribution = distribution

    def of(self, params: Tensor, value: Tensor, action: Tensor) -> Tensor:
        """Q f32 [...] of own actions f32 [..., A], for params f32 [..., P] and values f32 [...]."""
        chosen = self._distribution.categories(action).unsqueeze(-1)
        return value + self._advantages(params).gather(-1, chosen).squeeze(-1).sum(-1)

    def greatest(self, params: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """max Q f32 [...] over the actions that the mask u8 [..., M] permits."""
        advantages = self._advantages(params)
        if mask is not None:
            permitted = self._distribution.components(params, mask) > MASKED
            advantages = advantages.masked_fill(~permitted, MASKED)
        return value + advantages.amax(-1).sum(-1)

    def _advantages(self, params: Tensor) -> Tensor:
        """A less its mean over the categories, f32 [..., C, K]; padding at MASKED."""
        logits = self._distribution.components(params)
        is_padding = self._distribution.is_padding
        real = logits.masked_fill(is_padding, 0.0)
        mean = real.sum(-1, keepdim=True) / (~is_padding).sum(-1, keepdim=True)
        return (logits - mean).masked_fill(is_padding, MASKED)


def lane_epsilons(slots: range, *, base: float, alpha: float, replica: int = 0) -> Tensor:
    """ε of the lanes in these slots, f32 [lanes]: base^(1 + alpha·u), with u spread evenly over [0, 1).

    u is the van der Corput sequence in base 2 at the slot, rotated by the replica's multiple of the golden ratio: it is
    even for any number of lanes, so nobody needs to know how many there are. Source: Horgan et al. 2018, arXiv
    1803.00933, for a fixed number of lanes.
    """
    turn = replica * _GOLDEN_RATIO
    u = [(_van_der_corput(slot) + turn) % 1.0 for slot in slots]
    return base ** (1.0 + alpha * torch.tensor(u, dtype=torch.float64)).float()


def _van_der_corput(index: int) -> float:
    """The bits of an index mirrored at the binary point: 0, 1/2, 1/4, 3/4, 1/8, …"""
    result, bit = 0.0, 0.5
    while index:
        result += bit * (index & 1)
        index, bit = index >> 1, bit / 2
    return result
