"""Pictures shrunk by area, against sums that are made the long way."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.actor_svc.backends.area import CHUNK, AreaShrink


def sums(values, size):
    """Along the last axis; every value is repeated until each new one covers whole old ones."""
    times = size // math.gcd(values.shape[-1], size)
    return values.repeat(times, -1).reshape(*values.shape[:-1], size, -1).sum(-1)


def means(pictures, size):
    """Rows first, then columns."""
    columns_last = sums(pictures.astype(np.int64).swapaxes(1, 2), size).swapaxes(1, 2)
    _, height, width = pictures.shape
    area = height * width // math.gcd(height, size) // math.gcd(width, size)
    return np.rint(sums(columns_last, size) / area).astype(np.uint8)


def shrunk(pictures, size):
    out = np.zeros((len(pictures), size, size), np.uint8)
    AreaShrink(*pictures.shape[1:], size)(pictures, out)
    return out


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 2 * CHUNK + 1), st.integers(0, 2**32))
def test_each_pixel_is_the_mean_of_what_it_covers(height, width, size, count, seed):
    """Whatever the sizes, and however many pictures."""
    pictures = np.random.default_rng(seed).integers(0, 256, (count, height, width), dtype=np.uint8)
    np.testing.assert_array_equal(shrunk(pictures, size), means(pictures, size))


@pytest.mark.parametrize("height", [210, 250])  # of screens by the norms of America and Europe
@pytest.mark.parametrize("size", [42, 83, 84, 96, 128])
def test_the_screens_of_the_games(height, size):
    """In every usual size, and in one that shares no factor with theirs."""
    pictures = np.random.default_rng(1).integers(0, 256, (3, height, 160), dtype=np.uint8)
    np.testing.assert_array_equal(shrunk(pictures, size), means(pictures, size))


def test_white_stays_white():
    """The largest sums are counted as well."""
    assert (shrunk(np.full((1, 250, 160), 255, np.uint8), 83) == 255).all()
