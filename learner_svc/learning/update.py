"""One update: it makes optimiser steps on one batch and returns metrics.

An update makes one or several passes over its batch, each whole or in minibatches of lanes, with one optimiser step for
each. A step computes loss and gradient, reads all metrics from the device at once, and only then changes the weights:
a loss or gradient that is not finite ends the run before that, with the batch saved. Observation statistics change at
the end of the update and count each row once.
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
from seedbed.learner_svc.algorithms.lag import Lag, lag_histogram, policy_lag
from seedbed.learner_svc.algorithms.registry import make_algorithm
from seedbed.learner_svc.learning.normaliser import ObservationNormaliser
from seedbed.learner_svc.learning.optimiser import FlatOptimiser, learning_rate_at
from seedbed.learner_svc.learning.rewards import TrainingRewards
from seedbed.learner_svc.sources.batch import Batch, Experience, present_rows, valid_transitions
from seedbed.shared.errors import CheckpointError, NumericsError, StorageError
from seedbed.shared.figures import columns
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.files import writing
from seedbed.shared.runtime.tasks import TaskConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of one update. Counts are transitions; arrays are [B], in the order of the batch's lanes."""

    applied: bool  # False: all transitions were too old, and the weights are unchanged
    metrics: dict[str, float]
    valid_steps: int  # trained on
    dropped_steps: int  # valid but masked: stale_steps + lost_epoch_steps
    stale_steps: int
    lost_epoch_steps: int
    dropped_unrolls: int  # lanes with valid transitions, none of which was trained on
    dropped_steps_B: Array = field(repr=False)  # for counting per actor
    trained_steps_B: Array = field(repr=False)  # for counting per task
    priorities_B: Array | None = field(repr=False)  # f32, where the algorithm gives sequences any
    lag_histogram: tuple[int, ...]  # valid transitions of lag 0, 1, 2–3, 4–7, …, including those too old to train on
    lag_sum: int  # over the same transitions


class Updater:
    """Weights, optimiser and statistics. Owned by the update thread.

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
        tasks: Sequence[TaskConfig] = (),
        epoch_start_step: int = 0,
        crash_folder: Path | None = None,
    ) -> None:
        """Make an updater of a policy.

        Args:
          parameters: those of the policy, made after it was moved to its device.
          passes: number of passes over each batch.
          minibatches: number of even parts into which each pass splits the lanes; at most one for each lane.
          seed: seed of the order of lanes in minibatches; a resumed run repeats the order of each update.
          run_steps: the run's configured length in trained steps, 0 for none; the learning rate may decay over it.
          tasks: the tasks of the run in the order of their numbers, for their reward settings.
          epoch_start_step: the step that this learner epoch resumed from.
          crash_folder: where a batch whose loss is not finite is saved.
        """
        self.policy = policy.train()
        self.parameters = parameters
        self.device = parameters.flat.device
        self.algorithm = make_algorithm(config, policy)
        self.config: AlgorithmSettings = self.algorithm.config
        self.optimiser = FlatOptimiser(self.config, parameters.trained, parameters.grad)
        self._networks = {name: _Network(self.config, module) for name, module in self.algorithm.networks().items()}
        self.normaliser = ObservationNormaliser(policy.normalisers())
        self._rewards = TrainingRewards(self.config, tasks, self.device)
        self._passes, self._minibatches, self._seed = passes, minibatches, seed
        self._run_steps = run_steps
        self._epoch_start_step = epoch_start_step
        self._crash_folder = crash_folder

    def update(
        self, batch: Batch, *, step: int, trained_steps: int, max_policy_lag: int, version_now: int,
        task_B: Array | None = None, weight_B: Array | None = None, fresh_B: Array | None = None,
    ) -> UpdateResult:  # fmt: skip
        """Train on one batch.

        Args:
          batch: on the host; its arrays may be reused once this returns.
          step: number of updates so far.
          trained_steps: valid transitions trained on so far; the learning rate follows it.
          max_policy_lag: transitions with a larger lag are masked, unless the algorithm is for any age.
          version_now: packed policy_version of the weights before this update.
          task_B: number of each lane's task, i64 [B]; None in a run without tasks.
          weight_B: factor for each lane's loss, f32 [B]; None: 1.
          fresh_B: lanes that no update had before, bool [B]: observation statistics count these; None: all.
        Raises: NumericsError if a loss or its gradient is not finite; that optimiser step is not taken.
        """
        started = time.perf_counter()
        valid = valid_transitions(batch.flags.numpy())
        valid[: batch.record.overlap] = False  # burn-in: these transitions only bring the memory up to date
        lag = policy_lag(batch.version.numpy(), version_now, max_policy_lag, epoch_start_step=self._epoch_start_step)
        if not self.config.is_lag_bounded:
            lag = replace(lag, fresh=np.ones_like(lag.fresh), lost=np.zeros_like(lag.lost))
        trained = valid & lag.fresh
        present = _uncounted_rows(batch, fresh_B)
        metrics: dict[str, float] = {}
        priorities_B: Array | None = None
        if trained.any():
            batch = batch.to(self.device)
            masks = _Masks(valid=valid, trained=trained, current=trained & (lag.lag == 0))
            tasks, weights = (None if array is None else self._on_device(array) for array in (task_B, weight_B))
            reward_TB = self._rewards.of(batch.reward[1:], tasks)
            whole = self._experience(batch, masks, reward_TB, tasks, weights)
            rate = learning_rate_at(self.config, trained_steps, self._run_steps)
            metrics, priorities_B = self._train(whole, masks, step, rate)
            self.normaliser.update(batch.observation, None if present is None else self._on_device(present))
        metrics |= {columns.UPDATE_TIME.name: 1e3 * (time.perf_counter() - started)}
        return _describe(metrics, valid, trained, lag, priorities_B)

    def _experience(
        self, batch: Batch, masks: "_Masks", reward_TB: Tensor, task_B: Tensor | None, weight_B: Tensor | None
    ) -> Experience:
        return Experience(
            batch=batch,
            valid_TB=self._on_device(masks.valid),
            trained_TB=self._on_device(masks.trained),
            current_TB=self._on_device(masks.current),
            num_trained=int(np.count_nonzero(masks.trained)),
            num_current=int(np.count_nonzero(masks.current)),
            reward_TB=reward_TB,
            task_B=task_B,
            weight_B=weight_B,
        )

    def _train(
        self, whole: Experience, masks: "_Masks", step: int, learning_rate: float
    ) -> tuple[dict[str, float], Array | None]:
        """Make all passes over one batch; return means of the metrics over its steps, and the newest priorities [B]."""
        learning_rate *= self.algorithm.rate_factor
        prepared = self.algorithm.prepare(whole)
        order = np.random.Generator(np.random.Philox(key=(self._seed, step)))  # a resumed run repeats it
        reports: list[dict[str, float]] = []
        num_lanes = whole.batch.num_lanes
        parts = min(self._minibatches, num_lanes)
        priorities_B: Array | None = None
        for lanes in _lanes_of_steps(order, num_lanes, self._passes, parts):
            part, fixed = (whole, prepared) if lanes is None else self._cut(whole, prepared, masks, lanes)
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

    def _cut(self, whole: Experience, prepared: Prepared, masks: "_Masks", lanes: Array) -> tuple[Experience, Prepared]:
        """Return some lanes of a batch, and of its prepared constants."""
        index = self._on_device(lanes)
        task_B, weight_B = (
            None if of_lanes is None else of_lanes.index_select(0, index) for of_lanes in (whole.task_B, whole.weight_B)
        )
        reward_TB = whole.reward_TB.index_select(1, index)
        experience = self._experience(whole.batch.lanes(index), masks.lanes(lanes), reward_TB, task_B, weight_B)
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
        head = torch.stack([output.loss.detach(), *(torch.linalg.vector_norm(grad) for grad, _ in trained.values())])
        number = len(output.diagnostics)
        measured = [output.diagnostics] if output.priorities_B is None else [output.diagnostics, output.priorities_B]
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
                self._crash_folder.mkdir(exist_ok=True)
                path.write_bytes(data)
        except StorageError as error:
            return f"{problem}; its batch is lost: {error}"
        return f"{problem}; batch and weights are in {path}"

    def _on_device(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return copied host arrays by name, and JSON that describes them: all that an exact resume needs.

        "policy.flat" is the flat weight buffer, as published.
        """
        tensors = self._tensors()
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
        tensors = self._tensors()
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

    def _tensors(self) -> dict[str, Tensor]:
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
    """Return the mean over a batch's optimiser steps of each metric that the first one reported."""
    merged = {}
    for name in reports[0]:
        found = [report[name] for report in reports if name in report]
        merged[name] = sum(found) / len(found)
    return merged


def _describe(
    metrics: dict[str, float], valid: Array, trained: Array, lag: Lag, priorities_B: Array | None
) -> UpdateResult:
    """Return the result, with everything that is counted on the host."""
    num_valid, num_trained = int(np.count_nonzero(valid)), int(np.count_nonzero(trained))
    num_lost = int(np.count_nonzero(valid & lag.lost))
    dropped_B = np.count_nonzero(valid & ~trained, axis=0)
    trained_lags, counted = lag.lag[trained], valid & ~lag.lost  # lost weights have no meaningful lag
    if num_trained:
        metrics[columns.LAG_MEAN.name], metrics[columns.LAG_MAX.name] = (
            float(trained_lags.mean()),
            float(trained_lags.max()),
        )
    metrics[columns.VALID_SHARE.name] = num_valid / valid.size
    metrics[columns.DROPPED_SHARE.name] = (num_valid - num_trained) / max(1, num_valid)
    return UpdateResult(
        applied=num_trained > 0,
        metrics=metrics,
        valid_steps=num_trained,
        dropped_steps=num_valid - num_trained,
        stale_steps=num_valid - num_trained - num_lost,
        lost_epoch_steps=num_lost,
        dropped_unrolls=int(np.count_nonzero(valid.any(axis=0) & ~trained.any(axis=0))),
        dropped_steps_B=dropped_B,
        trained_steps_B=np.count_nonzero(trained, axis=0),
        priorities_B=priorities_B,
        lag_histogram=lag_histogram(lag.lag, counted),
        lag_sum=int(lag.lag[counted].sum()),
    )
