"""Running statistics of the learner, in float64: of observations for the torso, of value targets for the value head.

Both are updated after the update that used them, never during it, so that every row of a batch meets the statistics
that its policy version carried. They stay on the policy's device: no update waits for the host.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seedbed.shared.policy.observations import LeafNormaliser

MIN_STD, MAX_STD = 1e-4, 1e6  # of value targets; bounds of Hessel et al. 2018


class RunningMoments:
    """Mean and variance of all rows seen, by Chan's pairwise update. Shape: one row's."""

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.square_sum = torch.zeros(tuple(shape), dtype=torch.float64, device=device)  # of deviations

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Count each of rows [N, *shape] once."""
        if not len(rows):
            return
        number = float(len(rows))
        rows = rows if rows.dtype == torch.float64 else rows.float()
        # Sums about a value near the mean, in the rows' own precision: torch.var_mean of columns is ten times slower.
        near = torch.where(self.count > 0, self.mean.to(rows.dtype), rows[0])
        deviation = rows - near
        first = deviation.sum(0).double()
        second = deviation.square_().sum(0).double()
        square_sum = (second - first.square() / number).clamp_(min=0.0)
        total = self.count + number
        difference = near.double() + first / number - self.mean
        self.mean.add_(difference * (number / total))
        self.square_sum.add_(square_sum + difference.square() * (self.count * number / total))
        self.count.copy_(total)

    @property
    def variance(self) -> Tensor:
        """Population variance, 1 before the first row. float64."""
        return torch.where(self.count > 0, self.square_sum / self.count.clamp(min=1.0), 1.0)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        return {"count": self.count, "mean": self.mean, "square_sum": self.square_sum}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class ObservationNormaliser:
    """Keeps the policy's observation statistics: rows 1…T of each batch, so that every row counts once."""

    def __init__(self, published: Sequence[LeafNormaliser]) -> None:
        """`published`: the policy's own f32 statistics, written in place; take them after the weights became flat."""
        self._published = tuple(published)
        self._moments = {item.index: RunningMoments(item.mean.shape, item.mean.device) for item in self._published}

    @torch.no_grad()
    def update(self, observation: Sequence[Tensor], present_TB: Tensor | None) -> None:
        """Count a batch's rows and publish the new statistics into the policy.

        Args:
          observation: leaves [T+1, B, ...]; row 0 was counted as the last row of the unroll before.
          present_TB: rows 1…T that have an agent, bool; None for all.
        """
        for item in self._published:
            rows_TB, moments = observation[item.index][1:], self._moments[item.index]
            rows = rows_TB.flatten(0, 1) if present_TB is None else rows_TB[present_TB]
            moments.update(rows.reshape(len(rows), -1))
            item.mean.copy_(moments.mean)
            variance = moments.variance if item.rstd.shape == item.mean.shape else moments.variance.mean()
            item.rstd.copy_((variance + item.variance_floor).rsqrt())

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        return {f"{leaf}.{name}": x for leaf, moments in self._moments.items() for name, x in moments.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class ValueNormaliser:
    """Moving mean and deviation of value targets; the network's value output is (V - mean) / std.

    PopArt rescales the value head whenever the statistics move, so that V stays what it was.
    Source: Hessel et al. 2018, arXiv 1809.04474, eq. 9–10; the moving averages are debiased as Adam's are.
    """

    def __init__(self, rate: float, device: torch.device) -> None:
        self._rate = rate
        self._weight = torch.zeros((), dtype=torch.float64, device=device)  # of all targets seen: 1 - (1-rate)^updates
        self._first = torch.zeros((), dtype=torch.float64, device=device)
        self._second = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros((), dtype=torch.float64, device=device)
        self.std = torch.ones((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, target_mean: Tensor, target_variance: Tensor) -> tuple[Tensor, Tensor]:
        """Take in one batch's mean and variance of value targets, in raw units.

        Returns: scale and shift that turn the value head's output into the one that means the same V from now on.
        """
        old_mean, old_std = self.mean.clone(), self.std.clone()
        mean = target_mean.double()
        self._weight.lerp_(torch.ones_like(self._weight), self._rate)
        self._first.lerp_(mean, self._rate)
        self._second.lerp_(target_variance.double() + mean.square(), self._rate)
        self.mean.copy_(self._first / self._weight)
        variance = (self._second / self._weight - self.mean.square()).clamp(min=0.0)
        self.std.copy_(variance.sqrt().clamp(MIN_STD, MAX_STD))
        return old_std / self.std, (old_mean - self.mean) / self.std

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        return {
            "weight": self._weight, "first": self._first, "second": self._second, "mean": self.mean, "std": self.std,
        }  # fmt: skip

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
