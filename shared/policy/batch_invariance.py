"""Checks that a torso is deterministic and batch-invariant: a row's features do not depend on the rest of its batch.

Inference computes a row in one batch, and the learner in another. If the two differ, log π - log μ is not 0 at equal
weights, and every importance weight is wrong. So random modules and batch statistics are refused.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.modules import describe_failure

NUM_ROWS = 4
TOLERANCE = 1e-3  # relative to the largest feature; batches of different sizes differ by about 1e-6
RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
WITH_RATE = (nn.RNNBase, nn.MultiheadAttention)  # random unless their `dropout` is 0


def check_batch_invariance(
    torso: nn.Module, image_shapes: Sequence[tuple[int, int, int]], vector_size: int, name: str
) -> None:
    """Check a torso's modules, then compute some rows in several batches and compare.

    Args:
      name: the value of `policy.network`, for the message.
    Raises: ConfigError naming the module, or what differed between the rows, and the remedy.
    """
    where = f"[policy] network = {name!r}:"
    for path, module in torso.named_modules():
        if problem := _problem_of(module):
            raise ConfigError(f"{where} its module {path or '(itself)'} ({type(module).__name__}) {problem}")
    inputs = _random_rows(image_shapes, vector_size, patch=getattr(torso, "patch", 0))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        whole, again = _features(torso, *inputs, where=where), _features(torso, *inputs, where=where)
        images, vector = inputs
        alone = _features(torso, [image[:1] for image in images], None if vector is None else vector[:1], where=where)
    if _differ(whole, again):
        raise ConfigError(f"{where} the same rows gave other features the second time: remove its random parts")
    if _differ(whole[:1], alone):
        raise ConfigError(
            f"{where} a row's features depend on the other rows of its batch: compute each row on its own "
            "(nn.LayerNorm in place of statistics over a batch)"
        )


def _problem_of(module: nn.Module) -> str:
    """Return why a module cannot be part of a policy; empty if it can."""
    if isinstance(module, _NormBase) and (module.track_running_stats or "Batch" in type(module).__name__):
        return "has statistics of whole batches, and inference sees other batches than the learner: use nn.LayerNorm"
    if isinstance(module, RANDOM) and getattr(module, "p", 1.0) > 0:
        return "is random, so learner and inference would disagree on every row: remove it"
    if isinstance(module, WITH_RATE) and module.dropout > 0:
        return f"is random (dropout = {module.dropout:g}), so learner and inference would disagree: set dropout to 0"
    return ""


def _random_rows(
    image_shapes: Sequence[tuple[int, int, int]], vector_size: int, *, patch: int
) -> tuple[list[Tensor], Tensor | None]:
    """Return random images and a vector as a torso gets them, the same each time; the vector is None if it is empty."""
    generator = torch.Generator().manual_seed(0)
    images = []
    for channels, height, width in image_shapes:
        sides = (height // patch, width // patch, patch**2) if patch else (height, width)
        images.append(torch.rand((NUM_ROWS, channels, *sides), generator=generator))
    return images, torch.randn((NUM_ROWS, vector_size), generator=generator) if vector_size else None


def _features(torso: nn.Module, images: list[Tensor], vector: Tensor | None, *, where: str) -> Tensor:
    """Return the torso's features. Raises: ConfigError with the place in its code that raised, or for a wrong shape."""
    try:
        features = torso(list(images), vector)
    except FORWARD_ERRORS as error:
        raise ConfigError(f"{where} its forward raised {describe_failure(error)}") from error
    wanted = [len(vector) if vector is not None else len(images[0]), torso.output_size]
    if not isinstance(features, Tensor) or list(features.shape) != wanted:
        found = list(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise ConfigError(f"{where} its forward gave {found}, its output_size says {wanted}")
    return features


def _differ(features: Tensor, others: Tensor) -> bool:
    """Whether features differ by more than rounding. NaN counts as equal to anything: training reports it."""
    apart = (features - others).abs().nan_to_num()
    return bool(apart.max() > TOLERANCE * max(1.0, float(features.nan_to_num().abs().max())))
