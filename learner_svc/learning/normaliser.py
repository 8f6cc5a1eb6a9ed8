"""Running statistics of observations and of value targets, in float64.

They change after the update that used them, never during it, so that one update sees one set of statistics. They stay
on the policy's device, so no update waits for the host.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seedbed.learner_svc.ranks.ranks import ALONE, Ranks
from seedbed.shared.policy.observations import LeafNormaliser

MIN_STD, MAX_STD = 1e-4, 1e6  # bounds of the deviation of value targets, from Hessel et al. 2018


class RunningMoments:
    """Mean and variance of all rows so far, in the shape of one row, by Chan's pairwise update."""

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.square_sum = torch.zeros(tuple(shape), dtype=torch.float64, device=device)  # of deviations from the mean

    @torch.no_grad()
    def update(self, rows: Tensor, ranks: Ranks = ALONE) -> None:
        """Add rows [N, *shape] of this rank, and those that the other ranks add."""
        total_rows = sum(float(told[0]) for told in ranks.gather([len(rows)]))
        if not total_rows:
            return
        number = float(total_rows)
        rows = rows if rows.dtype == torch.float64 else rows.float()
        # Sums about a value near the mean, in the rows' own precision: torch.var_mean of columns is ten times slower.
        known = self.mean.to(rows.dtype)
        near = torch.where(self.count > 0, known, ranks.mean(rows[0] if len(rows) else known))
        deviation = rows - near
        first = ranks.sum(deviation.sum(0).double())
        second = ranks.sum(deviation.square_().sum(0).double())
        square_sum = (second - first.square() / number).clamp_(min=0.0)
        total = self.count + number
        difference = near.double() + first / number - self.mean
        self.mean.add_(difference * (number / total))
        self.square_sum.add_(square_sum + difference.square() * (self.count * number / total))
        self.count.copy_(total)

    @property
    def variance(self) -> Tensor:
        """Return the population variance, float64; 1 before the first row."""
        return torch.where(self.count > 0, self.square_sum / self.count.clamp(min=1.0), 1.0)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        return {"count": self.count, "mean": self.mean, "square_sum": self.square_sum}


class ObservationNormaliser:
    """Maintains the policy's observation statistics from rows 1…T of each batch, so that every row counts once."""

    def __init__(self, published: Sequence[LeafNormaliser]) -> None:
        """Write into `published`, the policy's f32 statistics; make `FlatParameters` of the policy before."""
        self._published = tuple(published)
        self._moments = {item.index: RunningMoments(item.mean.shape, item.mean.device) for item in self._published}

    @torch.no_grad()
    def update(self, observation: Sequence[Tensor], counted: Tensor | None, ranks: Ranks = ALONE) -> None:
        """Add a batch's rows, of every rank, and write the new statistics into the policy.

        Args:
          observation: leaves [T+1, B, ...]; row 0 was counted as the last row of the previous unroll.
          counted: which of rows 1…T are added, as indices into [T·B], i64; None for all.
        """
        for item in self._published:
            rows, moments = observation[item.index][1:].flatten(0, 1), self._moments[item.index]
            if counted is not None:
                rows = rows.index_select(0, counted)
            moments.update(rows.reshape(len(rows), *item.mean.shape), ranks)
            item.mean.copy_(moments.mean)
            variance = moments.variance if item.rstd.shape == item.mean.shape else moments.variance.mean()
            item.rstd.copy_((variance + item.variance_floor).rsqrt())

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        return {f"{leaf}.{name}": x for leaf, moments in self._moments.items() for name, x in moments.state().items()}


class ValueNormaliser:
    """Moving mean and deviation of value targets; the network's value output is (V - mean) / std.

    They are scalars, or f64 [K] where each of K tasks has a value output of its own. PopArt rescales the value head
    whenever the statistics change, so that V stays the same.
    Source: Hessel et al. 2018, arXiv 1809.04474, eq. 9–10; the moving averages are debiased as Adam's are.
    """

    def __init__(self, rate: float, device: torch.device, shape: Sequence[int] = ()) -> None:
        self._rate, shape = rate, tuple(shape)
        self._weight = torch.zeros(shape, dtype=torch.float64, device=device)  # of all targets: 1 - (1-rate)^updates
        self._first = torch.zeros(shape, dtype=torch.float64, device=device)
        self._second = torch.zeros(shape, dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.std = torch.ones(shape, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(
        self, target_mean: Tensor, target_variance: Tensor, is_present: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Update the statistics by one batch's mean and variance of value targets, in units of reward.

        Args:
          is_present: which tasks have targets in the batch, bool [K]; the others' statistics stay. None: all. They
            stay where targets are not finite, too: then the update ends the run, and the weights show what was wrong.
        Returns: the scale and shift to apply to the value head's output so that V stays the same; 1 and 0 where the
          statistics stayed.
        """
        old_mean, old_std = self.mean.clone(), self.std.clone()
        mean, second = target_mean.double(), target_variance.double() + target_mean.double().square()
        weight = self._weight.lerp(torch.ones_like(mean), self._rate)
        first, second = self._first.lerp(mean, self._rate), self._second.lerp(second, self._rate)
        new_mean = first / weight
        new_std = (second / weight - new_mean.square()).clamp(min=0.0).sqrt().clamp(MIN_STD, MAX_STD)
        moves = second.isfinite() if is_present is None else second.isfinite() & is_present
        for tensor, moved in zip(self.state().values(), (weight, first, second, new_mean, new_std), strict=True):
            tensor.copy_(torch.where(moves, moved, tensor))
        return old_std / self.std, (old_mean - self.mean) / self.std

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        return {
            "weight": self._weight, "first": self._first, "second": self._second, "mean": self.mean, "std": self.std,
        }  # fmt: skip
