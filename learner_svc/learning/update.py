"""One update: it makes optimiser steps on one batch and returns metrics.

An update makes one or several passes over its batch, each whole or in minibatches, with one optimiser step for each.
A step computes loss and gradient, reads all metrics from the device at once, and only then changes the weights: a loss
or gradient that is not finite ends the run before that, with the batch saved. Observation statistics change at the end
of the update and count each row once.

With several ranks each passes over a batch of its own in the same steps. Losses, gradients and statistics are sums over
all ranks, so all apply the same change.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from seedbed.learner_svc.algorithms.algorithm import Prepared
from seedbed.learner_svc.algorithms.config import AlgorithmConfig, AlgorithmSettings
from seedbed.learner_svc.algorithms.registry import make_algorithm
from seedbed.learner_svc.learning.normaliser import ObservationNormaliser
from seedbed.learner_svc.learning.optimiser import FlatOptimiser, learning_rate_at
from seedbed.learner_svc.learning.rewards import TrainingRewards
from seedbed.learner_svc.learning.selection import CountedBatch, Counts, Selector
from seedbed.learner_svc.ranks.ranks import ALONE, Ranks
from seedbed.learner_svc.sources.batch import Batch, Experience, first_rows, take_lanes, take_transitions
from seedbed.shared.errors import CheckpointError, NumericsError, StorageError
from seedbed.shared.figures import columns
from seedbed.shared.policy.policy import Policy, RowStates
from seedbed.shared.policy.transfers import to_device
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.files import writing
from seedbed.shared.runtime.tasks import TaskConfig

VALUE_UNITS = "value_units"  # in what describes the state


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
        self._run_steps = run_steps
        self.selector = Selector(
            is_lag_bounded=self.config.is_lag_bounded,
            by_transition=minibatches > 1 and self.algorithm.is_by_transition and not policy.is_recurrent,
            passes=passes,
            minibatches=minibatches,
            seed=seed,
            num_tasks=len(tasks),
            epoch_start_step=epoch_start_step,
        )
        self._crash_folder = crash_folder

    def update(
        self, batch: Batch, *, step: int, trained_steps: int, max_policy_lag: int, version_now: int,
        task_B: Array | None = None, weight_B: Array | None = None, fresh_B: Array | None = None,
    ) -> UpdateResult:  # fmt: skip
        """Count a batch, tell the other ranks, and train. Arguments and errors: of `Selector.count` and `train`."""
        counted = self.selector.count(
            batch, step=step, max_policy_lag=max_policy_lag, version_now=version_now, task_B=task_B, fresh_B=fresh_B
        )
        counts = Counts.of(counted, self._ranks.gather(counted.numbers))
        return self.train(counted, counts, step=step, trained_steps=trained_steps, weight_B=weight_B)

    def train(
        self, counted: CountedBatch, counts: Counts, *, step: int, trained_steps: int,
        weight_B: Array | None = None, begun: Callable[[], None] = lambda: None,
    ) -> UpdateResult:  # fmt: skip
        """Train on a batch that was counted; with several ranks, at the same time as all others.

        Args:
          counted: its batch's arrays may be reused once this returns.
          counts: of the batches of all ranks.
          step: number of updates so far.
          trained_steps: valid transitions trained on so far; the learning rate follows it.
          weight_B: factor for each lane's loss, f32 [B]; None: 1.
          begun: called when what is left is to compute.
        Raises: NumericsError if a loss or its gradient is not finite; that optimiser step is not taken.
        """
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        priorities_B = None
        if counts.num_trained:
            rate = learning_rate_at(self.config, trained_steps, self._run_steps)
            rows = None if counted.present is None else self._on_device(np.flatnonzero(counted.present))
            with counted.batch.on(self.device) as batch:
                whole = self._experience(batch, counted, counts, weight_B)
                begun()
                metrics, priorities_B = self._train(whole, counted.minibatches, counts, step, rate)
                self.normaliser.update(batch.observation, rows, self._ranks)
        metrics |= {columns.UPDATE_TIME.name: 1e3 * (counted.seconds + time.perf_counter() - started)}
        return _describe(metrics, counted, counts, priorities_B)

    def _experience(self, batch: Batch, counted: CountedBatch, counts: Counts, weight_B: Array | None) -> Experience:
        """Return a batch on the device with its masks, rewards and tasks."""
        task_B, weights = (None if array is None else self._on_device(array) for array in (counted.task_B, weight_B))
        return Experience(
            batch=batch,
            valid_TB=self._on_device(counted.masks.valid),
            trained_TB=self._on_device(counted.masks.trained),
            current_TB=self._on_device(counted.masks.current),
            num_trained=counts.num_trained,
            num_current=counts.num_current,
            reward_TB=self._rewards.of(batch.reward[1:], task_B),
            task_B=task_B,
            tasks=self._tasks if task_B is not None else (),
            weight_B=weights,
        )

    def _train(
        self, whole: Experience, minibatches: Sequence[Array | None], counts: Counts, step: int, learning_rate: float
    ) -> tuple[dict[str, float], Array | None]:
        """Make all passes over one batch; return means of the metrics over its steps, and the newest priorities [B]."""
        learning_rate *= self.algorithm.rate_factor
        prepared = self.algorithm.prepare(whole)
        states = self._row_states(whole.batch) if self.selector.by_transition else None
        reports: list[dict[str, float]] = []
        priorities_B: Array | None = None
        for index, numbers in zip(minibatches, counts.steps, strict=True):
            part, fixed = (
                (whole, prepared) if index is None else self._minibatch(whole, prepared, states, index, numbers)
            )
            if part.num_trained:
                report, found = self._step(part, fixed, step, learning_rate)
                reports.append(report)
                if found:
                    if priorities_B is None:
                        priorities_B = np.zeros(whole.batch.num_lanes, np.float32)
                    priorities_B[slice(None) if index is None else index] = found
                if self.algorithm.is_too_far(report):
                    break
            whole = whole.moved()
        self.algorithm.after_batch(reports[-(len(minibatches) // self.selector.passes) :])
        return merge_metrics(reports), priorities_B

    def _row_states(self, batch: Batch) -> RowStates:
        """Return the states before the first row of each transition."""
        length = batch.num_transitions
        observation = tuple(leaf[:length] for leaf in batch.observation)
        return self.policy.row_states(observation, first_rows(batch.flags[:length]), batch.state)

    def _minibatch(
        self, whole: Experience, prepared: Prepared, states: RowStates | None, index: Array, numbers: tuple[int, int]
    ) -> tuple[Experience, Prepared]:
        """Return a part of a batch, and of its prepared constants: transitions if `states` are given, else lanes."""
        take, there = take_lanes if states is None else take_transitions, self._on_device(index)
        part = whole.minibatch(index, num_trained=numbers[0], num_current=numbers[1], states=states)
        return part, {name: take(tensor, there) for name, tensor in prepared.items()}

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
        return arrays, {
            "algorithm": self.config.name, "optimizer": self.config.optimizer, VALUE_UNITS: self.algorithm.value_units,
        }  # fmt: skip

    def load_state(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises: CheckpointError naming what does not fit this configuration; the updater is unchanged then.
        """
        ours = {"algorithm": self.config.name, "optimizer": self.config.optimizer}
        for name, value in ours.items():
            if meta.get(name) != value:
                raise CheckpointError(f"the checkpoint's {name} is {meta.get(name)!r}, this run's {value!r}")
        if problem := self.units_problem(meta):
            raise CheckpointError(problem)
        tensors = self.tensors()
        if missing := sorted(tensors.keys() - arrays.keys()):
            raise CheckpointError(f"the checkpoint lacks {', '.join(missing)}: set [algorithm] as it was trained with")
        for name, tensor in tensors.items():
            if tuple(arrays[name].shape) != tuple(tensor.shape):
                raise CheckpointError(f"{name} is {arrays[name].shape} in the checkpoint, {tuple(tensor.shape)} here")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(np.array(arrays[name])))

    def units_problem(self, meta: Mapping[str, Any]) -> str:
        """Return that a checkpoint's values are in other units, by its `meta`, and what to set; or nothing."""
        ours = self.algorithm.value_units
        theirs = meta.get(VALUE_UNITS, ours)  # earlier versions did not say
        if theirs == ours:
            return ""
        return (
            f"the checkpoint's values are {theirs}, and this run's are {ours}: set algorithm.value_normalisation and "
            "algorithm.value_rescaling as in its run"
        )

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


def merge_metrics(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over those of a batch's optimiser steps that reported it."""
    merged = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        found = [report[name] for report in reports if name in report]
        merged[name] = sum(found) / len(found)
    return merged


def _describe(
    metrics: dict[str, float], counted: CountedBatch, counts: Counts, priorities_B: Array | None
) -> UpdateResult:
    """Return the result, with everything that is counted on the host."""
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
        dropped_steps_B=counted.dropped_steps_B,
        priorities_B=priorities_B,
        lag_histogram=counts.lag_histogram,
        lag_sum=counts.lag_sum,
        task_counts=counts.tasks,
    )
