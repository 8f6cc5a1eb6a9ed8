"""Torsos, which turn prepared observations into features. Time is folded into the batch axis.

A torso is a module with `output_size` and `forward(images, vector)`: images are floats [N, C, H, W] in 0…1, one for
each image leaf, vector is f32 [N, V] of everything else, or None. One with a `patch` of P gets images cut in patches
of P×P pixels, [N, C, H/P, W/P, P²]. Your own torso is named `module:Class` and is built as
`Class(image_shapes, vector_size, **network_kwargs)`, with (C, H, W) of each image.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.batch_invariance import check_batch_invariance
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.runtime.modules import describe_failure, load_class, place_of

ImageShape = tuple[int, int, int]  # channels, height, width
RELU_GAIN = math.sqrt(2)


def tanh_(x: Tensor) -> Tensor:
    """Replace x by tanh x, by the fastest method on its device; without a gradient."""
    if not x.is_cpu or x.dtype != torch.float32:
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)  # 2σ(2x) - 1, three times as fast as torch's tanh; absolute error 1e-7


class _TanhLayer(torch.autograd.Function):
    """tanh(x Wᵀ + b) for a CPU, in memory of its output alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output, and keep it for the derivative."""
        y = tanh_(F.linear(x, weight, bias))
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of x, weight and bias."""
        x, weight, y = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        slope = torch.ops.aten.tanh_backward(gradients[0], y)
        # With few inputs xᵀ·slope takes a fraction of the time of slopeᵀ·x, a seventh with four of them.
        return (
            slope @ weight if needs_x else None,
            (x.t() @ slope).t() if needs_weight else None,
            slope.sum(0) if needs_bias else None,
        )


def tanh_layer(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return tanh of a linear layer of x [N, inputs], by the fastest method on the device of x."""
    if not x.is_cpu or x.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type):
        return torch.tanh(F.linear(x, layer.weight, layer.bias))
    if torch.is_grad_enabled():
        y: Tensor = _TanhLayer.apply(x, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
        return y
    return tanh_(F.linear(x, layer.weight, layer.bias))


def relu_layer(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return max(0, a linear layer of x)."""
    return torch.relu(F.linear(x, layer.weight, layer.bias))


def elu_layer(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return ELU of a linear layer of x."""
    return F.elu(F.linear(x, layer.weight, layer.bias))


_LAYERS = {"tanh": tanh_layer, "relu": relu_layer, "elu": elu_layer}


class Torso(nn.Module):
    """The base class of torsos, which turn prepared observations into features."""

    output_size: int
    patch = 0  # 0: whole images

    def forward(self, images: Sequence[Tensor], vector: Tensor | None) -> Tensor:
        """Return features [N, output_size] of images, each [N, …] whole or in patches, and of a vector [N, size]."""
        raise NotImplementedError


def make_torso(config: PolicyConfig, image_shapes: Sequence[ImageShape], vector_size: int) -> Torso:
    """Make the torso that the configuration names. Raises: ConfigError naming what to change."""
    kwargs: dict[str, Any] = dict(config.network_kwargs)
    if config.network == "mlp":
        kwargs = {"hidden": tuple(config.hidden), "activation": config.activation} | kwargs
    builder = TORSOS.get(config.network) or _custom(config.network)
    try:
        torso = builder(tuple(image_shapes), vector_size, **kwargs)
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        said = describe_failure(error) if place_of(error) else error
        raise ConfigError(f"[policy] network = {config.network!r}: {said}") from error
    if not isinstance(torso, nn.Module) or not isinstance(getattr(torso, "output_size", None), int):
        raise ConfigError(f"[policy] network = {config.network!r}: must be a torch Module with an integer output_size")
    if config.network not in TORSOS:
        check_batch_invariance(torso, image_shapes, vector_size, config.network)
    return torso


def _custom(name: str) -> type[Torso]:
    found: Any = load_class(name, f"[policy] network = {name!r}", known=TORSOS, base=nn.Module, shown=Torso)
    return found  # type: ignore[no-any-return]


def initialise(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Set orthogonal weights times `gain`, and a bias of 0."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def dense(inputs: int, outputs: int, gain: float = RELU_GAIN) -> nn.Linear:
    """Return a linear layer with orthogonal weights times `gain` and biases 0."""
    layer = nn.Linear(inputs, outputs)
    initialise(layer, gain)
    return layer


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Return a convolution with orthogonal weights and biases 0."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    initialise(layer, RELU_GAIN)
    return layer


class PatchConvolution(nn.Module):
    """A convolution of kernel 2P and stride P over images that come in patches of P×P pixels.

    Over patches it is a convolution of kernel 2 and stride 1, with P² pixels as channels and channels as a third axis.
    On a CPU its weight gradient is faster, and stacks of frames need no reordering of channels.
    """

    def __init__(self, channels: int, outputs: int, patch: int) -> None:
        super().__init__()
        self._kernel = (outputs, channels, 2, 2, patch**2)
        self.layer = dense(math.prod(self._kernel[1:]), outputs)

    def forward(self, patches: Tensor) -> Tensor:
        """[N, C, h, w, P²] → [N, outputs, h-1, w-1]."""
        kernel = self.layer.weight.view(self._kernel).movedim(-1, 1)
        return F.conv3d(patches.movedim(-1, 1), kernel, self.layer.bias).squeeze(2)


class Mlp(Torso):
    """Fully connected layers, tanh by default; images are flattened."""

    def __init__(
        self,
        image_shapes: Sequence[ImageShape],
        vector_size: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        sizes = [vector_size + sum(math.prod(shape) for shape in image_shapes), *hidden]
        self.layers = nn.ModuleList(dense(a, b) for a, b in itertools.pairwise(sizes))
        self.output_size = sizes[-1]
        self._run = _LAYERS[activation]

    def forward(self, images: Sequence[Tensor], vector: Tensor | None) -> Tensor:
        """Return features [N, hidden[-1]] of the flattened images and the vector, side by side."""
        x = _join([image.flatten(1) for image in images], vector)
        for layer in self.layers:
            x = self._run(x, layer)  # type: ignore[arg-type]
        return x


class _ImageTorso(Torso):
    """Convolutions for each image, then one fully connected layer over them and the vector."""

    def __init__(self, encoders: Sequence[nn.Module], image_shapes: Sequence[ImageShape], vector_size: int, size: int):
        super().__init__()
        if not image_shapes:
            raise ValueError("the observation has no image (uint8 of rank 2 or 3); use network = 'mlp'")
        self.encoders = nn.ModuleList(encoders)
        with torch.no_grad():
            flat = [
                encoder(torch.zeros(1, *self._arranged(shape))).numel()
                for encoder, shape in zip(encoders, image_shapes, strict=True)
            ]
        self.dense = dense(sum(flat) + vector_size, size)
        self.output_size = size

    def _arranged(self, shape: ImageShape) -> tuple[int, ...]:
        """Return the shape in which one image arrives, without the batch axis: whole, or cut into patches."""
        channels, height, width = shape
        patch = self.patch
        return (channels, height // patch, width // patch, patch**2) if patch else shape

    def forward(self, images: Sequence[Tensor], vector: Tensor | None) -> Tensor:
        """Return features [N, output_size] of all images' maps, flattened, and of the vector."""
        maps = [encoder(image) for encoder, image in zip(self.encoders, images, strict=True)]
        # Channels last, as after a convolution in that memory format; another order would need a copy.
        return torch.relu(self.dense(_join([each.movedim(1, -1).flatten(1) for each in maps], vector)))


class ImpalaShallow(_ImageTorso):
    """conv 16@8×8/4, 32@4×4/2, fully connected 256."""

    patch = 4

    def __init__(
        self,
        image_shapes: Sequence[ImageShape],
        vector_size: int,
        *,
        channels: Sequence[int] = (16, 32),
        features: int = 256,
    ) -> None:
        encoders = [
            nn.Sequential(
                PatchConvolution(shape[0], channels[0], self.patch),
                nn.ReLU(),
                convolution(channels[0], channels[1], 4, 2),
                nn.ReLU(),
            )
            for shape in _at_least(image_shapes, 20)
        ]
        super().__init__(encoders, image_shapes, vector_size, features)


class ImpalaDeep(_ImageTorso):
    """Stacks (16, 32, 32) of conv 3×3, max-pool 3×3/2 and two residual blocks; fully connected 256."""

    def __init__(
        self,
        image_shapes: Sequence[ImageShape],
        vector_size: int,
        *,
        channels: Sequence[int] = (16, 32, 32),
        features: int = 256,
    ) -> None:
        encoders = []
        for shape in image_shapes:
            sizes = [shape[0], *channels]
            stacks = [_Stack(a, b) for a, b in itertools.pairwise(sizes)]
            encoders.append(nn.Sequential(*stacks, nn.ReLU()))
        super().__init__(encoders, image_shapes, vector_size, features)


class FootballDeep(ImpalaDeep):
    """Stacks (16, 32, 32, 32) as of ImpalaDeep, fully connected 256: SEED RL's network for 72×96 planes of football."""

    def __init__(
        self,
        image_shapes: Sequence[ImageShape],
        vector_size: int,
        *,
        channels: Sequence[int] = (16, 32, 32, 32),
        features: int = 256,
    ) -> None:
        super().__init__(image_shapes, vector_size, channels=channels, features=features)


class _Stack(nn.Module):
    """conv 3×3, max-pool 3×3/2, two residual blocks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.entry = convolution(inputs, outputs, 3, padding=1)
        self.blocks = nn.ModuleList(_Residual(outputs) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, outputs, ⌈H/2⌉, ⌈W/2⌉]."""
        x = F.max_pool2d(self.entry(x), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return x


class _Residual(nn.Module):
    """A residual block: x + conv(relu(conv(relu(x)))), of the input's shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, padding=1)
        self.second = convolution(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → the same shape."""
        branch: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + branch


def _at_least(shapes: Sequence[ImageShape], size: int) -> Sequence[ImageShape]:
    for shape in shapes:
        if min(shape[1:]) < size:
            raise ValueError(f"an image of {shape[1]}×{shape[2]} is too small, at least {size}×{size} is needed")
    return shapes


def _join(parts: list[Tensor], vector: Tensor | None) -> Tensor:
    """Concatenate the features of several sources, and the vector if there is one, on the last axis."""
    if vector is not None:
        if not parts:
            return vector
        parts = [*parts, vector.to(parts[0].dtype)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


TORSOS: dict[str, type[Torso]] = {
    "mlp": Mlp,
    "impala_shallow": ImpalaShallow,
    "impala_deep": ImpalaDeep,
    "football": FootballDeep,
}
