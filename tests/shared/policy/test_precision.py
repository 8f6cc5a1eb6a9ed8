"""The choice of dtype and memory format: what is tried, what is cached, what is left alone."""

import json
from pathlib import Path

import pytest
import torch

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import Precision
from seedbed.shared.policy.precision import choose_precision, processor_name
from tests.support.policy_cases import make_policy


def test_a_small_mlp_needs_no_measuring(tmp_path: Path) -> None:
    """One candidate: plain float32, nothing cached."""
    cache = tmp_path / "precision.json"
    assert choose_precision(make_policy("mlp"), rows=64, cache=cache) == Precision()
    assert not cache.exists()


def test_a_choice_is_cached_and_the_policy_left_as_it_was(tmp_path: Path) -> None:
    """A restart reads the choice; weights, gradients and present precision are untouched."""
    cache = tmp_path / "deep" / "precision.json"
    policy = make_policy("atari")
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    choice = choose_precision(policy, rows=4, cache=cache)
    assert choice.dtype in ("float32", "bfloat16")
    assert policy.precision == Precision()
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())
    stored = json.loads(cache.read_text())
    (key,) = stored
    assert processor_name() in key
    stored[key] = {"dtype": "bfloat16", "channels_last": True}
    cache.write_text(json.dumps(stored))
    found = choose_precision(policy, rows=4, cache=cache)
    assert found == Precision(dtype="bfloat16", channels_last=True)


def test_another_batch_is_measured_anew_and_both_are_kept(tmp_path: Path) -> None:
    """The number of rows is part of the key."""
    cache = tmp_path / "precision.json"
    policy = make_policy("atari")
    choose_precision(policy, rows=2, cache=cache)
    choose_precision(policy, rows=3, cache=cache)
    assert len(json.loads(cache.read_text())) == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": {"dtype": "int4"}}', '{"a": 1}'])
def test_an_unreadable_cache_is_measured_again(tmp_path: Path, content: str) -> None:
    """And replaced."""
    cache = tmp_path / "precision.json"
    cache.write_text(content)
    choice = choose_precision(make_policy("atari"), rows=2, cache=cache)
    assert json.loads(cache.read_text()).popitem()[1]["dtype"] == choice.dtype


def test_a_fixed_dtype_is_kept() -> None:
    """ "bf16" and "fp32" are not overruled by speed; a vector policy then has nothing to measure."""
    assert choose_precision(make_policy("atari"), rows=2, requested="fp32").dtype == "float32"
    chosen = choose_precision(make_policy("atari"), rows=2, requested="bf16")
    assert chosen == Precision(dtype="bfloat16", channels_last=True)
    assert choose_precision(make_policy("mlp"), rows=2, requested="bf16") == Precision(dtype="bfloat16")


def test_an_unknown_request_names_the_known_ones() -> None:
    """A ConfigError."""
    with pytest.raises(ConfigError, match="bf16"):
        choose_precision(make_policy("mlp"), rows=2, requested="fp8")


def test_without_measuring_the_choice_is_the_most_accurate(tmp_path: Path) -> None:
    """Of what is requested, and nothing is cached."""
    cache = tmp_path / "precision.json"
    policy = make_policy("atari")
    assert choose_precision(policy, rows=4, cache=cache, measures=False) == Precision()
    assert choose_precision(policy, rows=4, requested="bf16", cache=cache, measures=False).dtype == "bfloat16"
    assert not cache.exists()


@pytest.mark.parametrize("case", ["mlp", "atari"])
def test_tf32_is_used_where_it_is_asked_for(case: str) -> None:
    """In float32, and nowhere by itself on a CPU."""
    chosen = choose_precision(make_policy(case), rows=2, requested="tf32")
    assert (chosen.dtype, chosen.tf32) == ("float32", True)
    assert not choose_precision(make_policy(case), rows=2).tf32
