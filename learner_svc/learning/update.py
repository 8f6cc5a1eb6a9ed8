"""One update: it makes optimiser steps on one batch and returns metrics.

An update makes one or several passes over its batch, each whole or in minibatches, with one optimiser step for each.
Minibatches are of transitions where the algorithm looks at each alone and the policy has no state: those of one lane
are alike, and a minibatch of a few lanes would say little about the batch. Else they are of whole lanes.

A step computes loss and gradient, reads all metrics from the device at once, and only then changes the weights: a loss
or gradient that is not finite ends the run before that, with the batch saved. Observation statistics change at the end
of the update and count each row once.

With several ranks each passes over a batch of its own in the same steps. Losses, gradients and statistics are sums over
all ranks, so all apply the same change.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from seedbed.learner_svc.algorithms.algorithm import Prepared
from seedbed.learner_svc.algorithms.config import AlgorithmConfig, AlgorithmSettings
from seedbed.learner_svc.algorithms.lag import NUM_LAG_BUCKETS, Lag, lag_histogram, policy_lag
from seedbed.learner_svc.algorithms.registry import make_algorithm
from seedbed.learner_svc.learning.normaliser import ObservationNormaliser
from seedbed.learner_svc.learning.optimiser import FlatOptimiser, learning_rate_at
from seedbed.learner_svc.learning.rewards import TrainingRewards
from seedbed.learner_svc.ranks.ranks import ALONE, Ranks
from seedbed.learner_svc.sources.batch import Batch, Experience, as_lanes, present_rows, valid_transitions
from seedbed.shared.errors import CheckpointError, NumericsError, StorageError
from seedbed.shared.figures import columns
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.transfers import to_device
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.files import writing
from seedbed.shared.runtime.tasks import TaskConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of one update. Counts are transitions; arrays are [B], in the order of the batch's lanes.

    With several ranks the counts are of all their batches, and the arrays of this rank's.
    """

    applied: bool  # False: all transitions were too old, and the weights are unchanged
    metrics: dict[str, float]
    valid_steps: int  # trained on
    dropped_steps: int  # valid but masked: stale_steps + lost_epoch_steps
    stale_steps: int
    lost_epoch_steps: int
    dropped_unrolls: int  # lanes with valid transitions, none of which was trained on
    dropped_steps_B: Array = field(repr=False)  # for counting per actor
    task_counts: tuple[tuple[int, int], ...]  # lanes, and transitions trained on, of each task; none without tasks
    priorities_B: Array | None = field(repr=False)  # f32, where the algorithm gives sequences any
    lag_histogram: tuple[int, ...]  # valid transitions of lag 0, 1, 2–3, 4–7, …, including those too old to train on
    lag_sum: int  # over the same transitions


class Updater:
    """Weights, optimiser and statistics. Owned by the update thread.

    Large because an optimiser step needs all of them at once.

    Memory: the policy, its gradient and two more flat copies, and the activations of one batch.
    """

    def __init__(
        self,
        policy: Policy,
        parameters: FlatParameters,
        config: AlgorithmConfig,
        *,
        passes: int = 1,
        minibatches: int = 1,
        seed: int = 0,
        run_steps: int = 0,
        tasks: Mapping[str, TaskConfig] | None = None,
        epoch_start_step: int = 0,
        crash_folder: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Make an updater of a policy.

        Args:
          parameters: those of the policy, made after it was moved to its device.
          passes: number of passes over each batch.
          minibatches: number of even parts into which each pass splits the lanes or transitions; at most one for each.
          seed: seed of the order of these in minibatches; a resumed run repeats the order of each update.
          run_steps: the run's configured length in trained steps, 0 for none; the learning rate may decay over it.
          tasks: the tasks of the run in the order of their numbers, for their names and reward settings.
          epoch_start_step: the step that this learner epoch resumed from.
          crash_folder: where a batch whose loss is not finite is saved.
          ranks: the others that train the same policy, with the same configuration.
        """
        self.policy = policy.train()
        self.parameters = parameters
        self.device = parameters.flat.device
        self.algorithm = make_algorithm(config, policy)
        self.algorithm.ranks = self._ranks = ranks
        self.config: AlgorithmSettings = self.algorithm.config
        self.optimiser = FlatOptimiser(self.config, parameters.trained, parameters.grad)
        self._networks = {name: _Network(self.config, module) for name, module in self.algorithm.networks().items()}
        self.normaliser = ObservationNormaliser(policy.normalisers())
        tasks = tasks or {}
        self._rewards = TrainingRewards(self.config, tuple(tasks.values()), self.device)
        self._tasks = tuple(tasks)
        self._passes, self._minibatches, self._seed = passes, minibatches, seed
        self._by_transition = minibatches > 1 and self.algorithm.is_by_transition and not policy.state_fields
        self._run_steps = run_steps
        self._epoch_start_step = epoch_start_step
        self._crash_folder = crash_folder

    def update(
        self, batch: Batch, *, step: int, trained_steps: int, max_policy_lag: int, version_now: int,
        task_B: Array | None = None, weight_B: Array | None = None, fresh_B: Array | None = None,
    ) -> UpdateResult:  # fmt: skip
        """Count a batch, tell the other ranks, and train, with the arguments and errors of `count` and `train`."""
        counted = self.count(
            batch, step=step, max_policy_lag=max_policy_lag, version_now=version_now, task_B=task_B, fresh_B=fresh_B
        )
        told = self._ranks.gather(counted.numbers)
        return self.train(counted, told, step=step, trained_steps=trained_steps, weight_B=weight_B)

    def count(
        self, batch: Batch, *, step: int, max_policy_lag: int, version_now: int, task_B: Array | None = None,
        fresh_B: Array | None = None,
    ) -> "CountedBatch":  # fmt: skip
        """Decide what of a batch is trained on, and count it.

        Args:
          batch: on the host.
          step: number of updates so far.
          max_policy_lag: transitions with a larger lag are masked, unless the algorithm is for any age.
          version_now: packed policy_version of the weights before this update.
          task_B: number of each lane's task, i64 [B]; None in a run without tasks.
          fresh_B: lanes that no update had before, bool [B]: observation statistics count these; None: all.
        """
        started = time.perf_counter()
        valid = valid_transitions(batch.flags.numpy())
        valid[: batch.record.overlap] = False  # burn-in: these transitions only bring the memory up to date
        lag = policy_lag(batch.version.numpy(), version_now, max_policy_lag, epoch_start_step=self._epoch_start_step)
        if not self.config.is_lag_bounded:
            lag = replace(lag, fresh=np.ones_like(lag.fresh), lost=np.zeros_like(lag.lost))
        trained = valid & lag.fresh
        masks = _Masks(valid=valid, trained=trained, current=trained & (lag.lag == 0))
        order = np.random.Generator(np.random.Philox(key=(self._seed, step)))  # a resumed run repeats it
        cut = masks.by_transition() if self._by_transition else masks
        lanes = list(_lanes_of_steps(order, cut.num_lanes, self._passes, min(self._minibatches, cut.num_lanes)))
        numbers = _count(masks, lag, _count_steps(cut, lanes), _by_task(trained, task_B, len(self._tasks)))
        present = _uncounted_rows(batch, fresh_B)
        return CountedBatch(batch, numbers, masks, lanes, present, task_B, time.perf_counter() - started)

    def train(
        self, counted: "CountedBatch", told: Sequence[Array], *, step: int, trained_steps: int,
        weight_B: Array | None = None,
    ) -> UpdateResult:  # fmt: skip
        """Train on a batch that was counted; with several ranks, at the same time as all others.

        Args:
          counted: its batch's arrays may be reused once this returns.
          told: the numbers that were counted of each rank's batch.
          step: number of updates so far.
          trained_steps: valid transitions trained on so far; the learning rate follows it.
          weight_B: factor for each lane's loss, f32 [B]; None: 1.
        Raises: NumericsError if a loss or its gradient is not finite; that optimiser step is not taken.
        """
        started = time.perf_counter()
        batch, masks, lanes, present, task_B = (
            counted.batch, counted.masks, counted.lanes_of_steps, counted.present, counted.task_B
        )  # fmt: skip
        counts = _Counts.of(told, num_steps=len(lanes))
        metrics: dict[str, float] = {}
        priorities_B: Array | None = None
        if counts.num_trained:
            tasks, weights = (None if array is None else self._on_device(array) for array in (task_B, weight_B))
            numbers = counts.num_trained, counts.num_current
            rate = learning_rate_at(self.config, trained_steps, self._run_steps)
            rows = None if present is None else self._on_device(np.flatnonzero(present))
            with batch.on(self.device) as there:
                reward_TB = self._rewards.of(there.reward[1:], tasks)
                whole = self._experience(there, masks, numbers, reward_TB, tasks, weights)
                metrics, priorities_B = self._train(whole, masks, lanes, counts, step, rate)
                self.normaliser.update(there.observation, rows, self._ranks)
        metrics |= {columns.UPDATE_TIME.name: 1e3 * (counted.seconds + time.perf_counter() - started)}
        return _describe(metrics, masks, counts, priorities_B)

    def _experience(
        self, batch: Batch, masks: "_Masks", numbers: tuple[int, int], reward_TB: Tensor, task_B: Tensor | None,
        weight_B: Tensor | None,
    ) -> Experience:  # fmt: skip
        num_trained, num_current = numbers
        return Experience(
            batch=batch,
            valid_TB=self._on_device(masks.valid),
            trained_TB=self._on_device(masks.trained),
            current_TB=self._on_device(masks.current),
            num_trained=num_trained,
            num_current=num_current,
            reward_TB=reward_TB,
            task_B=task_B,
            tasks=self._tasks if task_B is not None else (),
            weight_B=weight_B,
        )

    def _train(
        self, whole: Experience, masks: "_Masks", lanes_of_steps: Sequence[Array | None], counts: "_Counts", step: int,
        learning_rate: float,
    ) -> tuple[dict[str, float], Array | None]:  # fmt: skip
        """Make all passes over one batch; return means of the metrics over its steps, and the newest priorities [B]."""
        learning_rate *= self.algorithm.rate_factor
        prepared = self.algorithm.prepare(whole)
        if self._by_transition:
            whole, masks = whole.by_transition(), masks.by_transition()
            prepared = {name: as_lanes(tensor) for name, tensor in prepared.items()}
        reports: list[dict[str, float]] = []
        num_lanes = whole.batch.num_lanes
        parts = min(self._minibatches, num_lanes)
        priorities_B: Array | None = None
        for lanes, numbers in zip(lanes_of_steps, counts.steps, strict=True):
            part, fixed = (whole, prepared) if lanes is None else self._cut(whole, prepared, masks, numbers, lanes)
            if part.num_trained:
                report, found = self._step(part, fixed, step, learning_rate)
                reports.append(report)
                if found:
                    priorities_B = np.zeros(num_lanes, np.float32) if priorities_B is None else priorities_B
                    priorities_B[slice(None) if lanes is None else lanes] = found
                if self.algorithm.is_too_far(reports[-1]):
                    break
            whole, masks = _moved(whole), masks.moved()
        self.algorithm.after_batch(reports[-parts:])
        return merge_metrics(reports), priorities_B

    def _cut(
        self, whole: Experience, prepared: Prepared, masks: "_Masks", numbers: tuple[int, int], lanes: Array
    ) -> tuple[Experience, Prepared]:
        """Return some lanes of a batch, and of its prepared constants."""
        index = self._on_device(lanes)
        task_B, weight_B = (
            None if of_lanes is None else of_lanes.index_select(0, index) for of_lanes in (whole.task_B, whole.weight_B)
        )
        reward_TB = whole.reward_TB.index_select(1, index)
        experience = self._experience(
            whole.batch.lanes(torch.from_numpy(lanes)), masks.lanes(lanes), numbers, reward_TB, task_B, weight_B
        )
        return experience, {name: tensor.index_select(1, index) for name, tensor in prepared.items()}

    def _step(
        self, experience: Experience, prepared: Prepared, step: int, learning_rate: float
    ) -> tuple[dict[str, float], list[float]]:
        """Make one optimiser step: loss, backward, one synchronisation, clip, step. Returns metrics and priorities."""
        trained = {"": (self.parameters.grad, self.optimiser)}
        trained |= {name: (x.parameters.grad, x.optimiser) for name, x in self._networks.items() if x.is_trained}
        for gradient, _ in trained.values():
            gradient.zero_()
        output = self.algorithm.loss(experience, prepared)
        output.loss.backward()  # type: ignore[no-untyped-call]
        loss_part, diagnostics_part = self._add_up(
            [gradient for gradient, _ in trained.values()], output.loss.detach(), output.diagnostics
        )
        head = torch.stack([loss_part, *(torch.linalg.vector_norm(grad) for grad, _ in trained.values())])
        number = len(diagnostics_part)
        measured = [diagnostics_part] if output.priorities_B is None else [diagnostics_part, output.priorities_B]
        loss, *rest = torch.cat([head, *measured]).tolist()
        norms, rest = rest[: len(trained)], rest[len(trained) :]
        diagnostics, priorities = rest[:number], rest[number:]
        if not all(map(math.isfinite, (loss, *norms))):
            raise NumericsError(self._save_crash(experience.batch, step, loss, max(norms)))
        for (gradient, optimiser), norm in zip(trained.values(), norms, strict=True):
            if 0 < self.config.grad_clip < norm:
                gradient.mul_(self.config.grad_clip / norm)
            optimiser.step(learning_rate)
        self.algorithm.after_step(learning_rate)
        metrics = {columns.LOSS.name: loss, columns.GRAD_NORM.name: norms[0], columns.LEARNING_RATE.name: learning_rate}
        return metrics | self.algorithm.report(diagnostics, experience), priorities

    def _add_up(self, gradients: Sequence[Tensor], loss: Tensor, diagnostics: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the gradients by their sums over all ranks, in one message; return those of loss and diagnostics."""
        if self._ranks.is_alone:
            return loss, diagnostics
        parts = [*gradients, loss.reshape(1), diagnostics]
        summed = self._ranks.sum(torch.cat([part.float() for part in parts]))
        total = torch.split(summed, [len(part) for part in parts])
        for gradient, part in zip(gradients, total, strict=False):
            gradient.copy_(part)
        return total[-2][0], total[-1]

    def _save_crash(self, batch: Batch, step: int, loss: float, norm: float) -> str:
        """Save batch and weights for inspection, and return the text of the error."""
        problem = f"update {step}: loss {loss}, gradient norm {norm}"
        if self._crash_folder is None:
            return problem
        path = self._crash_folder / f"non-finite-step{step}.safetensors"
        tensors = batch.named_tensors() | {"policy.flat": self.parameters.flat.detach().cpu()}
        data = safetensors.torch.save(tensors, metadata={"loss": str(loss), "grad_norm": str(norm)})
        try:
            with writing(path):
                self._crash_folder.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        except StorageError as error:
            return f"{problem}; its batch is lost: {error}"
        return f"{problem}; batch and weights are in {path}"

    def _on_device(self, array: Array) -> Tensor:
        return to_device(array, self.device)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return copied host arrays by name, and JSON that describes them: all that an exact resume needs.

        "policy.flat" is the flat weight buffer, as published.
        """
        tensors = self.tensors()
        arrays = {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in tensors.items()}
        return arrays, {"algorithm": self.config.name, "optimizer": self.config.optimizer}

    def load_state(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises: CheckpointError naming what does not fit this configuration; the updater is unchanged then.
        """
        ours = {"algorithm": self.config.name, "optimizer": self.config.optimizer}
        for name, value in ours.items():
            if meta.get(name) != value:
                raise CheckpointError(f"the checkpoint's {name} is {meta.get(name)!r}, this run's {value!r}")
        tensors = self.tensors()
        if missing := sorted(tensors.keys() - arrays.keys()):
            raise CheckpointError(f"the checkpoint lacks {', '.join(missing)}: set [algorithm] as it was trained with")
        for name, tensor in tensors.items():
            if tuple(arrays[name].shape) != tuple(tensor.shape):
                raise CheckpointError(f"{name} is {arrays[name].shape} in the checkpoint, {tuple(tensor.shape)} here")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(np.array(arrays[name])))

    def statistics(self) -> dict[str, Tensor]:
        """Return the live tensors that the meaning of the policy's weights depends on."""
        named = {f"algorithm.{name}": tensor for name, tensor in self.algorithm.statistics().items()}
        return named | {f"normaliser.{name}": tensor for name, tensor in self.normaliser.state().items()}

    @torch.no_grad()
    def start_from(self, weights: Mapping[str, Tensor], statistics: Mapping[str, Array]) -> None:
        """Take the weights of another run, by name and in any memory format, and all of its `statistics`."""
        for name, tensor in self.parameters.views(self.parameters.flat).items():
            tensor.copy_(weights[name])
        for name, tensor in self.statistics().items():
            tensor.copy_(torch.from_numpy(np.array(statistics[name])))
        self.algorithm.weights_replaced()

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors of the whole state by name."""
        named = {"policy.flat": self.parameters.flat}
        named |= {f"optimiser.{name}": tensor for name, tensor in self.optimiser.state().items()}
        named |= {f"algorithm.{name}": tensor for name, tensor in self.algorithm.state().items()}
        for name, network in self._networks.items():
            named |= {f"network.{name}.{part}": tensor for part, tensor in network.state().items()}
        named |= {f"normaliser.{name}": tensor for name, tensor in self.normaliser.state().items()}
        return named


class _Network:
    """A network besides the policy, and its optimiser if it has parameters to train."""

    def __init__(self, config: AlgorithmSettings, module: nn.Module) -> None:
        self.parameters = FlatParameters(module)
        self.is_trained = self.parameters.trained.numel() > 0 and any(x.requires_grad for x in module.parameters())
        self.optimiser = FlatOptimiser(config, self.parameters.trained, self.parameters.grad)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        state = {"flat": self.parameters.flat}
        if self.is_trained:
            state |= {f"optimiser.{name}": tensor for name, tensor in self.optimiser.state().items()}
        return state


def _uncounted_rows(batch: Batch, fresh_B: Array | None) -> Array | None:
    """Rows 1… that have an agent and that no update had before, bool [R-1, B]; None if that is all of them."""
    present, overlap = present_rows(batch.flags.numpy()), batch.record.overlap
    if fresh_B is None and not overlap:
        return present
    counted = np.ones(batch.reward.shape, bool)[1:] if present is None else present
    counted[:overlap] = False
    return counted if fresh_B is None else counted & fresh_B


@dataclass(frozen=True, slots=True)
class _Masks:
    """Masks of a batch's transitions on the host, each bool [T, B]."""

    valid: Array
    trained: Array
    current: Array  # trained, and acted by the present weights

    @property
    def num_lanes(self) -> int:
        return len(self.valid[0])

    def by_transition(self) -> "_Masks":
        """Return the masks of the same transitions, each as a lane of its own."""
        return _Masks(self.valid.reshape(1, -1), self.trained.reshape(1, -1), self.current.reshape(1, -1))

    def lanes(self, index: Array) -> "_Masks":
        return _Masks(self.valid[:, index], self.trained[:, index], self.current[:, index])

    def moved(self) -> "_Masks":
        """Return the masks after an optimiser step: no transition was acted by the present weights."""
        return _Masks(self.valid, self.trained, np.zeros_like(self.current))


def _moved(experience: Experience) -> Experience:
    """Return the experience after an optimiser step: no transition was acted by the present weights."""
    if not experience.num_current:
        return experience
    return replace(experience, current_TB=torch.zeros_like(experience.current_TB), num_current=0)


def _lanes_of_steps(
    order: np.random.Generator, num_lanes: int, passes: int, minibatches: int
) -> Iterator[Array | None]:
    """Return the lanes of each optimiser step, i64; None for all lanes."""
    for _ in range(passes):
        yield from np.array_split(order.permutation(num_lanes), minibatches) if minibatches > 1 else [None]


def merge_metrics(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over those of a batch's optimiser steps that reported it."""
    merged = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        found = [report[name] for report in reports if name in report]
        merged[name] = sum(found) / len(found)
    return merged


@dataclass(frozen=True, slots=True)
class _Counts:
    """What is counted on the host before an update, over the batches of all ranks. Transitions where nothing else."""

    num_trained: int
    num_current: int
    num_valid: int
    num_lost: int
    dropped_unrolls: int
    size: int
    lag_mean: float  # over trained transitions
    lag_max: float
    lag_sum: int
    lag_histogram: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]  # of each optimiser step: trained, and acted by the present weights
    tasks: tuple[tuple[int, int], ...]  # of each task: lanes, and transitions trained on

    @classmethod
    def of(cls, told: Sequence[Array], *, num_steps: int) -> "_Counts":
        """Add up what was counted of each rank's batch."""
        totals = np.sum(told, axis=0).tolist()
        num_trained, num_current, num_valid, num_lost, dropped, size, lags, _, lag_sum, *rest = totals
        buckets, pairs = rest[:NUM_LAG_BUCKETS], [int(count) for count in rest[NUM_LAG_BUCKETS:]]
        both = tuple(zip(pairs[::2], pairs[1::2], strict=True))
        return cls(
            num_trained=int(num_trained), num_current=int(num_current), num_valid=int(num_valid),
            num_lost=int(num_lost), dropped_unrolls=int(dropped), size=int(size),
            lag_mean=lags / num_trained if num_trained else 0.0,
            lag_max=float(max(numbers[7] for numbers in told)), lag_sum=int(lag_sum),
            lag_histogram=tuple(map(int, buckets)), steps=both[:num_steps], tasks=both[num_steps:],
        )  # fmt: skip


def _count_steps(masks: _Masks, lanes_of_steps: Sequence[Array | None]) -> list[tuple[int, int]]:
    """Count the trained transitions of each optimiser step, and those of them acted by the present weights."""
    trained_B, current_B = np.count_nonzero(masks.trained, axis=0), np.count_nonzero(masks.current, axis=0)
    return [
        (int((trained_B if lanes is None else trained_B[lanes]).sum()),
         int((current_B if lanes is None else current_B[lanes]).sum()) if number == 0 else 0)
        for number, lanes in enumerate(lanes_of_steps)
    ]  # fmt: skip


def _count(masks: _Masks, lag: Lag, steps: Sequence[tuple[int, int]], tasks: Sequence[tuple[int, int]]) -> list[float]:
    """Count one rank's batch, for `_Counts.of`."""
    valid, trained = masks.valid, masks.trained
    trained_lags, counted = lag.lag[trained], valid & ~lag.lost  # lost weights have no meaningful lag
    return [
        float(np.count_nonzero(trained)),
        float(np.count_nonzero(masks.current)),
        float(np.count_nonzero(valid)),
        float(np.count_nonzero(valid & lag.lost)),
        float(np.count_nonzero(valid.any(axis=0) & ~trained.any(axis=0))),
        valid.size,
        trained_lags.sum(),
        trained_lags.max() if len(trained_lags) else 0.0,
        lag.lag[counted].sum(),
        *lag_histogram(lag.lag, counted),
        *(count for pair in (*steps, *tasks) for count in pair),
    ]


@dataclass(frozen=True, slots=True)
class CountedBatch:
    """A batch, what of it is trained on, and what was counted: all that is known before the other ranks are asked."""

    batch: Batch
    numbers: list[float]  # what all ranks must know of it
    masks: _Masks
    lanes_of_steps: list[Array | None]
    present: Array | None  # rows that observation statistics count, bool [R-1, B]; None: all
    task_B: Array | None
    seconds: float  # that it took


def _describe(metrics: dict[str, float], masks: _Masks, counts: _Counts, priorities_B: Array | None) -> UpdateResult:
    """Return the result, with everything that is counted on the host."""
    valid, trained = masks.valid, masks.trained
    num_dropped = counts.num_valid - counts.num_trained
    if counts.num_trained:
        metrics[columns.LAG_MEAN.name], metrics[columns.LAG_MAX.name] = counts.lag_mean, counts.lag_max
    metrics[columns.VALID_SHARE.name] = counts.num_valid / counts.size
    metrics[columns.DROPPED_SHARE.name] = num_dropped / max(1, counts.num_valid)
    return UpdateResult(
        applied=counts.num_trained > 0,
        metrics=metrics,
        valid_steps=counts.num_trained,
        dropped_steps=num_dropped,
        stale_steps=num_dropped - counts.num_lost,
        lost_epoch_steps=counts.num_lost,
        dropped_unrolls=counts.dropped_unrolls,
        dropped_steps_B=np.count_nonzero(valid & ~trained, axis=0),
        priorities_B=priorities_B,
        lag_histogram=counts.lag_histogram,
        lag_sum=counts.lag_sum,
        task_counts=counts.tasks,
    )


def _by_task(trained: Array, task_B: Array | None, num_tasks: int) -> list[tuple[int, int]]:
    """Return (lanes, trained transitions) of each task in a batch; none without tasks."""
    if task_B is None:
        return [(0, 0)] * num_tasks
    steps_B = np.count_nonzero(trained, axis=0)
    return [(int(np.count_nonzero(task_B == task)), int(steps_B[task_B == task].sum())) for task in range(num_tasks)]
