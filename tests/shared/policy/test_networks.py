"""Torsos: sizes, initialisation, custom classes, and errors that say what to change."""

import pytest
import torch
from torch import Tensor, nn

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.networks import RELU_GAIN, Mlp, PatchConvolution, make_torso, tanh_, tanh_layer
from seedbed.shared.policy.observations import to_patches


class Doubled(nn.Module):
    """A torso of the user's own."""

    def __init__(self, image_shapes: tuple[tuple[int, int, int], ...], vector_size: int, *, factor: float = 2) -> None:
        super().__init__()
        self.output_size = vector_size
        self.factor = factor

    def forward(self, images: list[Tensor], vector: Tensor) -> Tensor:
        """The vector, scaled."""
        return self.factor * vector


class Unsized(nn.Module):
    """A torso that forgets its output size."""

    def __init__(self, image_shapes: object, vector_size: int) -> None:
        super().__init__()


def count(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def test_tanh_is_tanh() -> None:
    """Values within 3e-7 of torch's, saturated or not."""
    x = torch.cat([torch.linspace(-12, 12, 2001), torch.tensor([-1e30, 1e30, 0.0])])
    torch.testing.assert_close(tanh_(x.clone()), torch.tanh(x), atol=3e-7, rtol=0)


@pytest.mark.parametrize("inputs", [1, 4, 70])
@pytest.mark.parametrize("bias", [True, False])
def test_a_tanh_layer_is_tanh_of_a_linear_layer(inputs: int, bias: bool) -> None:
    """Values and all gradients are torch's; without a gradient the values are the same bits."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(inputs, 5, bias=bias)
    x = torch.randn(33, inputs, requires_grad=True)
    leaves = [x, *layer.parameters()]
    weight = torch.randn(33, 5)
    y, expected = tanh_layer(x, layer), torch.tanh(layer(x))
    torch.testing.assert_close(y, expected, atol=3e-7, rtol=0)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), leaves) for out in (y, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(tanh_layer(x, layer), y)


def test_mlp_is_two_layers_of_64_initialised_orthogonally() -> None:
    """The default torso: 4·64 + 64 + 64·64 + 64 parameters, gain √2, zero bias."""
    torso = make_torso(PolicyConfig(), (), 4)
    assert isinstance(torso, Mlp)
    assert count(torso) == 4 * 64 + 64 + 64 * 64 + 64
    weight, bias = torso.layers[1].weight, torso.layers[1].bias
    torch.testing.assert_close(weight @ weight.t(), RELU_GAIN**2 * torch.eye(64), atol=1e-4, rtol=0)
    assert not bias.any()
    assert torso([], torch.zeros(3, 4)).shape == (3, 64)


def test_mlp_flattens_images_and_takes_its_activation() -> None:
    """Images beside a vector; relu on request."""
    torso = make_torso(PolicyConfig(hidden=[8], activation="relu"), ((2, 3, 3),), 5)
    out = torso([torch.rand(4, 2, 3, 3)], torch.rand(4, 5))
    assert out.shape == (4, 8)
    assert (out >= 0).all()


def test_impala_shallow_has_the_papers_layers() -> None:
    """84×84×4: conv 16@8/4, 32@4/2, fully connected 256."""
    torso = make_torso(PolicyConfig(network="impala_shallow"), ((4, 84, 84),), 0)
    expected = 4 * 64 * 16 + 16 + 16 * 16 * 32 + 32 + 32 * 81 * 256 + 256
    assert count(torso) == expected
    assert torso([to_patches(torch.rand(2, 4, 84, 84), torso.patch)], None).shape == (2, 256)


@pytest.mark.parametrize("size", [(20, 20), (23, 26)], ids=["whole patches", "rest at the edges"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_convolution_over_patches_is_the_one_over_pixels(size: tuple[int, int], dtype: torch.dtype) -> None:
    """Kernel 8, stride 4: the same weights, put where the pixels went, give the same maps."""
    torch.manual_seed(0)
    layer = PatchConvolution(3, 5, 4)
    image = torch.randint(0, 256, (2, 3, *size)).to(dtype)
    weight = layer.layer.weight.view(5, 3, 2, 2, 4, 4).permute(0, 1, 2, 4, 3, 5).reshape(5, 3, 8, 8)
    wanted = torch.conv2d(image.float(), weight, layer.layer.bias, 4)
    torch.testing.assert_close(layer(to_patches(image, 4).float()), wanted, rtol=1e-4, atol=1e-2)


def test_impala_deep_has_three_stacks_of_two_residual_blocks() -> None:
    """84×84×4 ends in 32×11×11; about 1.1 M parameters before the LSTM."""
    torso = make_torso(PolicyConfig(network="impala_deep"), ((4, 84, 84),), 0)
    convolutions = [module for module in torso.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 15
    assert count(torso) == sum(count(module) for module in convolutions) + 32 * 11 * 11 * 256 + 256
    assert torso([torch.rand(2, 4, 84, 84)], None).shape == (2, 256)


def test_football_is_impala_deep_with_four_stacks() -> None:
    """Four times two residual blocks and an entry; 72×96 ends in 32×5×6; channels are a keyword."""
    torso = make_torso(PolicyConfig(network="football"), ((16, 72, 96),), 0)
    convolutions = [module for module in torso.modules() if isinstance(module, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions[::5]] == [16, 32, 32, 32]
    assert len(convolutions) == 20
    assert count(torso) == sum(count(module) for module in convolutions) + 32 * 5 * 6 * 256 + 256
    assert torso([torch.rand(1, 16, 72, 96)], None).shape == (1, 256)
    small = PolicyConfig(network="football", network_kwargs={"channels": [4, 4], "features": 8})
    assert make_torso(small, ((4, 72, 96),), 0)([torch.rand(1, 4, 72, 96)], None).shape == (1, 8)


def test_a_class_of_your_own_is_used_with_its_keywords() -> None:
    """`module:Class` gets image shapes, vector size and network_kwargs."""
    config = PolicyConfig(network=f"{__name__}:Doubled", network_kwargs={"factor": 3.0})
    assert make_torso(config, (), 2)([], torch.ones(1, 2)).tolist() == [[3, 3]]


@pytest.mark.parametrize(
    ("network", "kwargs", "images", "expected"),
    [
        ("resnet", {}, (), "impala_deep"),
        ("no.such.module:Net", {}, (), "no.such"),
        (f"{__name__}:Missing", {}, (), "Missing"),
        (f"{__name__}:count", {}, (), "Torso"),
        (f"{__name__}:Unsized", {}, (), "output_size"),
        ("mlp", {"width": 3}, (), "width"),
        ("impala_shallow", {}, (), "network = 'mlp'"),
        ("impala_shallow", {}, ((1, 12, 12),), "12×12"),
    ],
)
def test_what_cannot_be_built_says_what_to_change(
    network: str, kwargs: dict[str, object], images: tuple[tuple[int, int, int], ...], expected: str
) -> None:
    """A ConfigError that names the key and the remedy."""
    with pytest.raises(ConfigError, match=r"\[policy\] network") as caught:
        make_torso(PolicyConfig(network=network, network_kwargs=kwargs), images, 4)
    assert expected in str(caught.value)
