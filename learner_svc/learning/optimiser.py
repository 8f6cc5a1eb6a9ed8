"""One optimiser step over one flat tensor: Adam or RMSProp, a clip on the global norm, a linear learning-rate decay.

`torch.optim` is not used: its constructor imports the compiler (1.8 s and 60 MB at start), and its step takes nine
times as long as the kernel that it calls.
"""

import torch
from torch import Tensor

from seedbed.learner_svc.algorithms.config import AlgorithmSettings


class FlatOptimiser:
    """Steps one flat parameter in place. Owned by the update thread; memory: one to two copies of the parameter."""

    def __init__(self, config: AlgorithmSettings, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.shape != gradient.shape or parameter.ndim != 1:
            raise ValueError(f"parameter {tuple(parameter.shape)} and gradient {tuple(gradient.shape)} are not flat")
        self.config = config
        self._parameter = parameter.detach()
        self._gradient = gradient.detach()
        self._count = torch.zeros((), dtype=torch.float32, device=parameter.device)
        self._mean = torch.zeros_like(self._parameter)
        self._mean_square = torch.zeros_like(self._parameter)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Apply the gradient in the flat gradient tensor."""
        self._count.add_(1.0)
        if self.config.optimizer == "adam":
            self._step_adam(learning_rate)
        else:
            self._step_rmsprop(learning_rate)

    def _step_adam(self, learning_rate: float) -> None:
        """Adam. Source: Kingma & Ba 2015, arXiv 1412.6980, algorithm 1."""
        torch._fused_adam_(
            [self._parameter],
            [self._gradient],
            [self._mean],
            [self._mean_square],
            [],
            [self._count],
            lr=learning_rate,
            beta1=self.config.adam_beta1,
            beta2=self.config.adam_beta2,
            weight_decay=0.0,
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
        )

    def _step_rmsprop(self, learning_rate: float) -> None:
        """TensorFlow's RMSProp: m ← d·m + (1-d)·g²; b ← momentum·b + lr·g/√(m + eps); p ← p - b."""
        decay = self.config.rmsprop_decay
        self._mean_square.mul_(decay).addcmul_(self._gradient, self._gradient, value=1.0 - decay)
        root = (self._mean_square + self.config.eps).sqrt_()
        self._mean.mul_(self.config.rmsprop_momentum).addcdiv_(self._gradient, root, value=learning_rate)
        self._parameter.sub_(self._mean)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        return {"count": self._count, "mean": self._mean, "mean_square": self._mean_square}


def learning_rate_at(config: AlgorithmSettings, trained_steps: int, run_steps: int) -> float:
    """Return the learning rate after this many trained agent steps: linear warm-up from zero, linear decay to zero.

    Args:
      run_steps: `run.steps`, which the decay "run" means; 0: no limit, and so no decay.
    """
    rate = config.learning_rate
    if config.learning_rate_warmup_steps:
        rate *= min(1.0, trained_steps / config.learning_rate_warmup_steps)
    length = run_steps if config.learning_rate_decay_steps == "run" else config.learning_rate_decay_steps
    return rate * max(0.0, 1.0 - trained_steps / length) if length else rate
