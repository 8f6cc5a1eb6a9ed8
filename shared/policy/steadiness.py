"""Whether a torso gives a row the same features whenever, and beside whichever rows, it is computed.

Inference computes a row once, in one batch, and the learner again, in another. Where the two differ, log π - log μ is
not 0 at equal weights, and every importance weight is wrong: so randomness and statistics of a batch are refused.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.modules import describe_failure

NUM_ROWS = 4
TOLERANCE = 1e-3  # of the greatest feature; batches of other sizes differ by rounding, 1e-6 or so
RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
WITH_RATE = (nn.RNNBase, nn.MultiheadAttention)  # random unless their `dropout` is 0


def check_steady(torso: nn.Module, image_shapes: Sequence[tuple[int, int, int]], vector_size: int, name: str) -> None:
    """Look at a torso's modules, then compute a few rows with it, as inference and the learner will.

    Args:
      name: what `policy.network` says, for the message.
    Raises: ConfigError that names the module, or what its rows have shown, and the remedy.
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
        raise ConfigError(f"{where} the same rows gave other features the second time: take out what is random in it")
    if _differ(whole[:1], alone):
        raise ConfigError(
            f"{where} a row's features depend on the other rows of its batch: compute each row on its own "
            "(nn.LayerNorm in place of statistics over a batch)"
        )


def _problem_of(module: nn.Module) -> str:
    """Why a module has no place in a policy; empty if it may have."""
    if isinstance(module, _NormBase) and (module.track_running_stats or "Batch" in type(module).__name__):
        return "has statistics of whole batches, and inference sees other batches than the learner: use nn.LayerNorm"
    if isinstance(module, RANDOM) and getattr(module, "p", 1.0) > 0:
        return "is random, so learner and inference would disagree on every row: take it out"
    if isinstance(module, WITH_RATE) and module.dropout > 0:
        return f"is random (dropout = {module.dropout:g}), so learner and inference would disagree: set dropout to 0"
    return ""


def _random_rows(
    image_shapes: Sequence[tuple[int, int, int]], vector_size: int, *, patch: int
) -> tuple[list[Tensor], Tensor | None]:
    """Inputs as a torso gets them, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    images = []
    for channels, height, width in image_shapes:
        sides = (height // patch, width // patch, patch**2) if patch else (height, width)
        images.append(torch.rand((NUM_ROWS, channels, *sides), generator=generator))
    return images, torch.randn((NUM_ROWS, vector_size), generator=generator) if vector_size else None


def _features(torso: nn.Module, images: list[Tensor], vector: Tensor | None, *, where: str) -> Tensor:
    """What the torso computes. Raises: ConfigError with the place in its code that raised, or for another shape."""
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
    """Beyond rounding. What is not finite differs from nothing: training tells of that."""
    apart = (features - others).abs().nan_to_num()
    return bool(apart.max() > TOLERANCE * max(1.0, float(features.nan_to_num().abs().max())))
