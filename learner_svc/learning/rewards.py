"""The rewards that are trained on: scaled, clipped and transformed. Metrics and evaluations report raw rewards.

Shape suffixes: K tasks, T transitions, B lane-unrolls.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seedbed.learner_svc.algorithms.config import AlgorithmSettings
from seedbed.shared.runtime.tasks import TaskConfig


class TrainingRewards:
    """Applies the reward settings of [algorithm], and of the tasks where they differ. Memory: three numbers a task."""

    def __init__(
        self, config: AlgorithmSettings, tasks: Sequence[TaskConfig] = (), device: torch.device | str = "cpu"
    ) -> None:
        """Resolve the settings of each task, in the order of the file; without tasks those of `config` hold."""
        clips = [config.reward_clip if task.reward_clip is None else task.reward_clip for task in tasks]
        kinds = [task.reward_transform or config.reward_transform for task in tasks]
        clips, kinds = clips or [config.reward_clip], kinds or [config.reward_transform]
        clip_K = torch.tensor([clip or math.inf for clip in clips], device=device)
        asymmetric_K = torch.tensor([kind == "asymmetric" for kind in kinds], device=device)
        task_scale_K = torch.tensor([task.reward_scale for task in tasks], device=device)
        self._scale = config.reward_scale
        self._task_scale_K = task_scale_K if any(task.reward_scale != 1.0 for task in tasks) else None
        self._clip_K = clip_K if any(clips) else None
        self._asymmetric_K = asymmetric_K if "asymmetric" in kinds else None

    def of(self, reward_TB: Tensor, task_B: Tensor | None = None) -> Tensor:
        """Return the rewards to train on, f32 [T, B]: scaled by task and by algorithm, then clipped, then transformed.

        Args:
          reward_TB: as the environments gave them, f32 [T, B].
          task_B: number of each lane's task, i64 [B]; None in a run without tasks.
        """
        if self._task_scale_K is not None:
            reward_TB = reward_TB * _by_lane(self._task_scale_K, task_B)
        if self._scale != 1.0:
            reward_TB = reward_TB * self._scale
        if self._clip_K is not None:
            clip = _by_lane(self._clip_K, task_B)
            reward_TB = reward_TB.clamp(-clip, clip)
        if self._asymmetric_K is not None:
            reward_TB = torch.where(_by_lane(self._asymmetric_K, task_B), asymmetric(reward_TB), reward_TB)
        return reward_TB


def asymmetric(reward: Tensor) -> Tensor:
    """Return 0.3·min(tanh r, 0) + 5·max(tanh r, 0): bounded, and gains count more than losses.

    Source: Espeholt et al. 2018, arXiv 1802.01561, for DMLab-30.
    """
    squashed = reward.tanh()
    return 0.3 * squashed.clamp(max=0.0) + 5.0 * squashed.clamp(min=0.0)


def _by_lane(setting_K: Tensor, task_B: Tensor | None) -> Tensor:
    """Return each lane's setting [B], or the only one [1] in a run without tasks."""
    return setting_K if task_B is None else setting_K[task_B]
