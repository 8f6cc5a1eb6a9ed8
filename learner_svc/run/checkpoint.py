"""Checkpoints that survive kill -9 at any moment: safetensors beside a JSON manifest that is written last.

A checkpoint exists when its manifest does. Both files are written to a temporary name, fsynced, renamed, and the
folder fsynced; the manifest names the tensor file's size and SHA-256, and begins with its own. Serial numbers only
rise, so "newest" needs no clock and survives a step that went back. Only the learner, who holds the run folder's lock,
may save or clean; anyone may read. Blocking: call from a thread.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import safetensors
import safetensors.numpy
import structlog

from seedbed.learner_svc.run.atomic_write import TEMPORARY_PREFIX, write_durably
from seedbed.shared.errors import CheckpointError, StorageError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.files import writing

Kind = Literal["latest", "best", "milestone"]
FORMAT = 2  # 1 had no digest of the manifest; it is still read
KEEP = 3
NO_DIGEST = b"0" * 64  # what stands where the manifest's digest goes while it is taken
_DIGEST_AT = len(b'{\n "sha256": "')
_MANIFEST = re.compile(r"(?P<serial>\d{8})-(?P<kind>latest|best|milestone)-step(?P<step>\d+)\.json")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights, optimiser and statistics between two updates, copied."""

    version: int  # packed
    step: int
    arrays: dict[str, Array]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint whose digests were checked: what it is of, what else it keeps, its arrays."""

    path: Path  # of its manifest
    kind: Kind
    serial: int  # rises with every save
    step: int  # learner updates
    meta: dict[str, Any]  # whatever JSON the learner stored
    arrays: dict[str, Array] = field(repr=False)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointFile:
    """A checkpoint's manifest by name alone, unread. Orders by age."""

    serial: int
    step: int
    kind: Kind
    path: Path


def save(
    folder: Path,
    *,
    step: int,
    arrays: Mapping[str, Array],
    meta: Mapping[str, Any],
    kind: Kind = "latest",
    keep: int = KEEP,
) -> Path:
    """Write one checkpoint durably, then remove what it makes superfluous; returns the manifest's path.

    The newest `keep` of kind "latest" and one "best" are kept, and every "milestone".
    Raises: StorageError; then this checkpoint is not there, and those before it are.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)
    existing = list_checkpoints(folder)
    serial = existing[-1].serial + 1 if existing else 1
    stem = f"{serial:08d}-{kind}-step{step}"
    data = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "serial": serial,
        "step": step,
        "tensors": {"file": f"{stem}.safetensors", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "meta": dict(meta),
    }
    tensors, path = folder / f"{stem}.safetensors", folder / f"{stem}.json"
    write_durably(tensors, data)
    try:
        write_durably(path, _sealed(manifest))
    except StorageError:
        with contextlib.suppress(OSError):
            tensors.unlink()  # worth nothing without its manifest, and in the way of the next attempt
        raise
    with writing(folder):
        _prune(folder, keep)
    return path


def list_checkpoints(folder: Path) -> list[CheckpointFile]:
    """Every checkpoint of a folder by file name, oldest first; empty if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(_scan(folder))


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint by its manifest.

    Raises: CheckpointError naming the file and what is wrong with it.
    """
    try:
        manifest = _unsealed(path)
        described = manifest["tensors"]
        data = (path.parent / Path(described["file"]).name).read_bytes()
        if len(data) != described["bytes"]:
            raise CheckpointError(f"{path}: tensors of {len(data)} bytes, expected {described['bytes']}")
        if hashlib.sha256(data).hexdigest() != described["sha256"]:
            raise CheckpointError(f"{path}: tensors do not match their SHA-256")
        return Checkpoint(
            path=path,
            kind=manifest["kind"],
            serial=manifest["serial"],
            step=manifest["step"],
            meta=manifest["meta"],
            arrays={name: array.copy() for name, array in safetensors.numpy.load(data).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error


def read_meta(path: Path) -> dict[str, Any]:
    """What the learner stored in a checkpoint beside its tensors, which stay unread.

    Raises: CheckpointError naming the file and what is wrong with it.
    """
    try:
        return dict(_unsealed(path)["meta"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error


def load_latest(
    folder: Path,
    *,
    kinds: tuple[Kind, ...] = get_args(Kind),
    check: Callable[[Checkpoint], None] = lambda _: None,
) -> Checkpoint | None:
    """The newest valid checkpoint; None if there has never been one. Every one that is passed over is logged.

    "Newest" goes by weights: a "best" one is written when its evaluation ends, holds what the evaluation began with,
    and so comes after all others.

    Args:
      check: raises CheckpointError for one that is whole and of no use all the same; it is passed over, too.
    Raises: CheckpointError if there are checkpoints but none can be read: starting from scratch is not ours to decide.
    """
    rejected: list[str] = []
    for candidate in sorted(list_checkpoints(folder), key=lambda file: (file.kind == "best", -file.serial)):
        if candidate.kind not in kinds:
            continue
        try:
            checkpoint = load(candidate.path)
            check(checkpoint)
        except CheckpointError as error:
            log.error("checkpoint_rejected", path=str(candidate.path), reason=str(error))
            rejected.append(str(error))
            continue
        log.info("checkpoint_loaded", path=str(checkpoint.path), step=checkpoint.step, kind=checkpoint.kind)
        return checkpoint
    if rejected:
        raise CheckpointError("no checkpoint can be read; move them away to start anew: " + "; ".join(rejected))
    return None


def clean(folder: Path) -> int:
    """Remove what an interrupted save left: temporary files and tensors without a manifest; returns how many."""
    if not folder.is_dir():
        return 0
    manifests = {path.stem for path in folder.glob("*.json")}
    stray = [
        path
        for path in folder.iterdir()
        if path.name.startswith(TEMPORARY_PREFIX) or (path.suffix == ".safetensors" and path.stem not in manifests)
    ]
    for path in stray:
        with writing(path):
            path.unlink(missing_ok=True)
    return len(stray)


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as bytes, with the digest of all of them."""
    text = json.dumps({"sha256": NO_DIGEST.decode(), **manifest}, indent=1, allow_nan=False).encode()
    return text.replace(NO_DIGEST, hashlib.sha256(text).hexdigest().encode(), 1)


def _unsealed(path: Path) -> dict[str, Any]:
    """A manifest that is as it was written. Raises: CheckpointError, or what its parts raise."""
    text = path.read_bytes()
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] not in (1, FORMAT):
        raise CheckpointError(f"{path}: format {manifest['format']}, this version reads {FORMAT}")
    if manifest["format"] != 1:
        end = _DIGEST_AT + len(NO_DIGEST)
        plain = text[:_DIGEST_AT] + NO_DIGEST + text[end:]
        if hashlib.sha256(plain).hexdigest().encode() != text[_DIGEST_AT:end]:
            raise CheckpointError(f"{path}: does not match its SHA-256")
    return manifest


def _scan(folder: Path) -> Iterator[CheckpointFile]:
    for path in folder.iterdir():
        if match := _MANIFEST.fullmatch(path.name):
            kind: Kind = match["kind"]  # type: ignore[assignment]
            yield CheckpointFile(int(match["serial"]), int(match["step"]), kind, path)


def _prune(folder: Path, keep: int) -> None:
    """Remove old checkpoints, manifest first, so that no reader ever sees one without its tensors for long."""
    existing = list_checkpoints(folder)
    limits: dict[Kind, int] = {"latest": max(1, keep), "best": 1}
    for kind, limit in limits.items():
        for old in [item for item in existing if item.kind == kind][:-limit]:
            old.path.unlink(missing_ok=True)
            old.path.with_suffix(".safetensors").unlink(missing_ok=True)
