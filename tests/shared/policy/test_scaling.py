"""How declared bounds scale integers and images, what is taken as it is, and what policies of before keep."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.observations import ObservationEncoder, to_patches
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import Manifest, make_manifest, policy_from_manifest
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.experience import RECORDING
from tests.support.specs import make_spec

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def encode(space: gymnasium.Space[Any], value: np.ndarray, *, by_bounds: bool = True) -> list[list[float]]:
    """The vector of one leaf's values."""
    encoder = ObservationEncoder(space_from_gymnasium(space), stack=1, normalise=False, scale_by_bounds=by_bounds)
    _, vector = encoder([torch.from_numpy(value)], torch.float32, torch.contiguous_format)
    assert vector is not None
    assert vector.dtype == torch.float32
    found: list[list[float]] = vector.tolist()
    return found


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_come_to_zero_to_one(dtype: type) -> None:
    """From zero, and exactly from bounds that no float32 can tell apart."""
    assert encode(spaces.Box(0, 8, (2,), dtype), np.array([[2, 8]], dtype)) == [[0.25, 1]]
    far = np.iinfo(dtype).max - 5
    low, high = np.array([far, 1], dtype), np.array([far + 4, 1], dtype)
    assert encode(spaces.Box(low, high, (2,), dtype), np.array([[far + 1, 1]], dtype)) == [[0.25, 0]]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_bounds_around_zero_leave_zero_where_it_is(dtype: type) -> None:
    """The farther bound becomes one."""
    assert encode(spaces.Box(-4, 2, (3,), dtype), np.array([[-4, 0, 2]], dtype)) == [[-1, 0, 0.5]]


def test_bytes_are_divided_by_255_and_flags_are_flags() -> None:
    """A uint8 box of 0…255 is what it always was, to the bit; one of 0…1 holds zeros and ones."""
    value = np.array([[0, 1, 77, 255]], np.uint8)
    assert encode(spaces.Box(0, 255, (4,), np.uint8), value) == (torch.from_numpy(value).float() / 255).tolist()
    assert encode(spaces.Box(0, 1, (2,), np.uint8), value[:, :2]) == [[0, 1]]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_bounds_that_are_a_dtypes_range_scale_nothing(dtype: type) -> None:
    """They say nothing about the values."""
    limits = np.iinfo(dtype)
    assert encode(spaces.Box(limits.min, limits.max, (2,), dtype), np.array([[1, 2]], dtype)) == [[1, 2]]
    assert encode(spaces.Box(0, 65536, (2,), dtype), np.array([[1, 2]], dtype)) == [[1, 2]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_taken_as_they_are(dtype: type) -> None:
    """Whatever their bounds."""
    assert encode(spaces.Box(0, 9, (2,), dtype), np.array([[1, 2]], dtype)) == [[1, 2]]


@pytest.mark.parametrize("patch", [0, 4])
def test_images_are_scaled_by_their_bounds(patch: int) -> None:
    """By one bound for all pixels, or one for each channel; one of 0…255 is its bytes times 1/255, to the bit."""
    pixels = torch.randint(0, 5, (2, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))

    def image(low: object, high: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        bounds = [np.broadcast_to(np.asarray(bound, np.uint8), (8, 8, 3)) for bound in (low, high)]
        space = space_from_gymnasium(spaces.Box(*bounds, dtype=np.uint8), image="HWC")
        encoder = ObservationEncoder(space, stack=1, normalise=False)
        encoder.patch = patch
        (found,), _ = encoder([pixels], dtype, torch.contiguous_format)
        return found

    plain = pixels.permute(0, 3, 1, 2)
    plain = to_patches(plain, 4) if patch else plain
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(image(0, 255, dtype), plain.to(dtype).mul_(1 / 255))
    torch.testing.assert_close(image(0, 4), plain / 4)
    torch.testing.assert_close(image(2, 4), (plain.float() - 2) / 2)
    each = image(0, [1, 2, 4])
    torch.testing.assert_close(each[:, 1], plain[:, 1] / 2)
    torch.testing.assert_close(each[:, 2], plain[:, 2] / 4)


def test_an_image_of_flags_keeps_its_contrast_under_statistics() -> None:
    """The floor of an image's variance is a grey level of its own span."""

    def statistics(high: int) -> tuple[float, float]:
        spec = make_spec(spaces.Box(0, high, (8, 8), np.uint8), spaces.Discrete(2))
        (found,) = Policy(spec, PolicyConfig(normalise_observation=True)).normalisers()
        return found.rstd.item(), found.variance_floor

    assert statistics(255) == (pytest.approx(1 / 255), 1)
    assert statistics(1) == (1, pytest.approx(1 / 255**2))


def test_without_bounds_only_bytes_are_scaled() -> None:
    """What policies of earlier versions saw."""
    for high in (1, 255):
        box = spaces.Box(0, high, (2,), np.uint8)
        assert encode(box, np.array([[0, 1]], np.uint8), by_bounds=False) == [[0, pytest.approx(1 / 255)]]
    assert encode(spaces.Box(0, 8, (1,), np.int32), np.array([[4]], np.int32), by_bounds=False) == [[4]]


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (spaces.Box(0, 255, (8, 8), np.uint8), True),
        (spaces.Box(-5, 5, (3,), np.float32), True),
        (spaces.Discrete(7), True),
        (spaces.Box(0, 1, (3,), np.uint8), False),
        (spaces.Box(0, 9, (3,), np.int32), False),
    ],
    ids=["bytes", "floats", "categories", "flags", "integers"],
)
def test_a_manifest_of_before_means_what_it_meant(observation: gymnasium.Space[Any], expected: bool) -> None:
    """One that does not know the setting gets it where nothing changes, and is kept without it where something does."""
    manifest = make_manifest(Policy(make_spec(observation, spaces.Discrete(2)), PolicyConfig()), RECORDING)
    older = {name: value for name, value in manifest.body["policy"].items() if name != "scale_observation"}
    policy = policy_from_manifest(Manifest(manifest.places, manifest.num_elements, manifest.body | {"policy": older}))
    assert policy.config.scale_observation is expected
    assert policy_from_manifest(manifest).config.scale_observation
