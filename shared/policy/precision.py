"""Chooses the fastest dtype and memory format of a torso on this machine, by a measurement that is cached.

bf16 with channels_last is several times faster than plain fp32 on some processors and slower on others, so forward and
backward passes are measured with the actual network and batch size. On a GPU, TF32 is a choice too: products of float32
numbers whose factors are rounded to 10 bits. PyTorch would use it for convolutions and not for other products; here it
is used for both or for none. The learner chooses, and the manifest carries the choice, so that behaviour and target
policy agree. A restart finds it in the cache in the run folder.
"""

import contextlib
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import DTYPES, Precision
from seedbed.shared.policy.cores import FrameStacks
from seedbed.shared.policy.policy import Policy

REQUESTS = {
    "auto": None, "fp32": "float32", "float32": "float32", "tf32": "float32", "bf16": "bfloat16",
    "bfloat16": "bfloat16",
}  # fmt: skip
TF32 = "tf32"  # the request for float32 with TF32 products, which only a GPU computes faster
TF32_CAPABILITY = (8, 0)  # of the first GPUs that have it
NUM_MEASURED = 3  # number of passes after a warm-up; the fastest counts
MAX_MEASURE_S = 1.5  # per candidate
HOPELESS = 4.0  # a candidate is dropped if its first pass takes this many times the best, as bf16 does in emulation
MIN_GAIN = 1.1  # bf16 and TF32 are less accurate, so they must be this much faster
SMALL_PARAMETERS = 200_000  # a torso without images and with fewer parameters is not measured


def processor_name() -> str:
    """Return the name of this machine's GPU, or of its processor if there is none; part of the cache's key."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def choose_precision(
    policy: Policy,
    *,
    rows: int,
    requested: str = "auto",
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    measures: bool = True,
) -> Precision:
    """Return the fastest precision to train this policy's torso on batches of `rows` rows, measured or cached.

    Args:
      policy: the policy to measure; it is left unchanged.
      requested: "auto", or "fp32", "tf32" or "bf16" to fix the dtype (the memory format is measured nevertheless).
      cache: JSON file to read the choice from, or to add it to; None: always measure.
      measures: False: measure nothing and take the most accurate that is requested, which is the same every time.
    Raises: ConfigError for an unknown request.
    """
    if requested not in REQUESTS:
        raise ConfigError(f"[learner] precision = {requested!r}: set it to {', '.join(REQUESTS)}")
    fixed = REQUESTS[requested]
    has_images = bool(policy.encoder.image_shapes)
    candidates = _candidates(policy, fixed, has_images)
    if requested == TF32:
        candidates = [replace(item, tf32=True) for item in candidates]
    elif requested == "auto" and has_tf32(torch.device(device)):
        candidates += [replace(item, tf32=True) for item in candidates if item.dtype == "float32"]
    if len(candidates) == 1 or not measures:
        return candidates[0]
    key = _cache_key(policy, rows, requested, str(device))
    known = _read_cache(cache).get(key)
    if known is not None:
        return known
    seconds = _measure_all(policy, candidates, rows, torch.device(device))
    choice = min(candidates, key=lambda item: seconds[item] * (1.0 if _is_exact(item) else MIN_GAIN))
    if cache is not None:
        _write_cache(cache, key, choice)
    return choice


def allow_tf32(is_allowed: bool) -> None:
    """Let products of float32 numbers on a GPU, convolutions included, be computed in TF32, or forbid it.

    It holds for the process, until the next call. On a CPU it changes nothing.
    """
    # The newer names of these switches do not set the older ones, and PyTorch's exporter raises where the two disagree.
    with warnings.catch_warnings(action="ignore"):  # some versions warn that these are the older ones
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_allowed


def has_tf32(device: torch.device) -> bool:
    """Return whether products of float32 numbers on a device can be computed in TF32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= TF32_CAPABILITY


def _is_exact(precision: Precision) -> bool:
    return precision.dtype == "float32" and not precision.tf32


def _candidates(policy: Policy, fixed: str | None, has_images: bool) -> list[Precision]:
    num_parameters = sum(parameter.numel() for parameter in policy.torso.parameters())
    if fixed is not None:
        dtypes: Sequence[str] = (fixed,)
    else:
        dtypes = DTYPES if has_images or num_parameters > SMALL_PARAMETERS else ("float32",)
    formats = ((False, "float32"), (True, "float32"), (True, "bfloat16")) if has_images else ((False, ""),)
    return [
        Precision(dtype=dtype, channels_last=channels_last)
        for dtype in dtypes
        for channels_last, only in formats
        if only in ("", dtype)
    ]  # fmt: skip


def _measure_all(
    policy: Policy, candidates: Sequence[Precision], rows: int, device: torch.device
) -> dict[Precision, float]:
    """Return the seconds of one forward and backward pass with each candidate."""
    before = policy.precision
    where = next(policy.parameters()).device
    gradients = [parameter.grad for parameter in policy.parameters()]
    policy.to(device)
    seconds: dict[Precision, float] = {}
    try:
        leaves = _random_leaves(policy, rows, device)
        for candidate in candidates:
            policy.use(candidate)
            allow_tf32(candidate.tf32)
            best = min(seconds.values(), default=float("inf"))
            seconds[candidate] = _fastest(lambda: _train_once(policy, leaves), device, enough_s=HOPELESS * best)
    finally:
        policy.use(before)
        allow_tf32(before.tf32)
        policy.to(where)
        for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
            parameter.grad = gradient
    return seconds


def _random_leaves(policy: Policy, rows: int, device: torch.device) -> list[Tensor | FrameStacks]:
    """Return observations of `rows` rows: random pixels for images, zeros for all other leaves."""
    leaves: list[Tensor | FrameStacks] = []
    for leaf, is_stacked in zip(policy.encoder.leaves, policy.encoder.stacked, strict=True):
        shape, dtype = (rows, *leaf.wire_shape), getattr(torch, leaf.wire_dtype)
        if leaf.image:
            frames = torch.randint(0, 255, shape, dtype=dtype, device=device)
        else:
            frames = torch.zeros(shape, dtype=dtype, device=device)
        depth = policy.config.stack
        index = torch.arange(rows * depth, device=device) // depth
        leaves.append(FrameStacks(frames, depth, index) if is_stacked else frames)
    return leaves


def _train_once(policy: Policy, leaves: Sequence[Tensor | FrameStacks]) -> None:
    sum(part.sum() for part in policy.torso_features(leaves) if part is not None).backward()  # type: ignore[union-attr]


def _fastest(work: Callable[[], None], device: torch.device, *, enough_s: float) -> float:
    """Return the seconds of the fastest of a few runs of `work`, without the first, which warms up.

    If the first takes longer than `enough_s`, or than all runs may, its own time is returned.
    """
    best, started = float("inf"), time.perf_counter()
    for number in range(1 + NUM_MEASURED):
        before = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        is_over = now - started > MAX_MEASURE_S or (not number and now - before > enough_s)
        if number or is_over:
            best = min(best, now - before)
        if is_over:
            break
    return best


def _cache_key(policy: Policy, rows: int, requested: str, device: str) -> str:
    network = [policy.config.model_dump(), policy.encoder.image_shapes, policy.encoder.vector_size]
    return json.dumps([processor_name(), torch.__version__, device, network, rows, requested], sort_keys=True)


def _read_cache(cache: Path | None) -> dict[str, Precision]:
    """Return the cached choices by key; empty for an unreadable or foreign file, since all can be measured again."""
    if cache is None:
        return {}
    try:
        stored = json.loads(cache.read_text())
        return {
            key: Precision(
                dtype=DTYPES[DTYPES.index(item["dtype"])],
                channels_last=bool(item["channels_last"]),
                tf32=bool(item.get("tf32", False)),
            )
            for key, item in stored.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write_cache(cache: Path, key: str, choice: Precision) -> None:
    """Add a choice to the cache. If the disk refuses, the next start measures again."""
    known = _read_cache(cache) | {key: choice}
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({name: asdict(item) for name, item in known.items()}, indent=1))
        temporary.replace(cache)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
