"""Checkpoints that survive a kill at any moment: a safetensors file and a JSON manifest that is written last.

A checkpoint exists if its manifest does. Both files are written by `write_durably`; the manifest holds the size and
SHA-256 of the tensor file, and begins with its own SHA-256. Serial numbers only rise, so the order of checkpoints
needs no clock, and still holds if the step goes back. Only the learner that holds the run folder's lock may save or
clean; anyone may read. Blocking: call from a thread.
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
NO_DIGEST = b"0" * 64  # stands in place of the manifest's own digest while it is computed
_DIGEST_AT = len(b'{\n "sha256": "')
_MANIFEST = re.compile(r"(?P<serial>\d{8})-(?P<kind>latest|best|milestone)-step(?P<step>\d+)\.json")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A copy of weights, optimiser and statistics between two updates."""

    version: int  # packed
    step: int
    trained_steps: int
    arrays: dict[str, Array]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path  # of its manifest
    kind: Kind
    serial: int  # rises with every save
    step: int  # learner updates
    meta: dict[str, Any]  # JSON values that the learner stored
    arrays: dict[str, Array] = field(repr=False)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointFile:
    """A checkpoint known by the name of its manifest, which is not read. Sorts by age."""

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
    """Write one checkpoint durably, remove those that are no longer needed, and return the manifest's path.

    The newest `keep` of kind "latest", the newest "best" and every "milestone" are kept.
    Raises: StorageError; this checkpoint does not exist then, and earlier ones are untouched.
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
            tensors.unlink()  # useless without its manifest, and it occupies space that the next attempt needs
        raise
    with writing(folder):
        _prune(folder, keep)
    return path


def list_checkpoints(folder: Path) -> list[CheckpointFile]:
    """Return the checkpoints of a folder by their file names, oldest first; empty if there is no folder."""
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
    """Return the JSON values that the learner stored in a checkpoint, without reading its tensors.

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
    """Return the newest valid checkpoint; None if there are no checkpoints. Each one that is skipped is logged.

    A "best" checkpoint is tried after all others: it is written when its evaluation ends, but its weights are older.

    Args:
      check: raises CheckpointError for a valid checkpoint that cannot be used, which is then skipped too.
    Raises: CheckpointError if there are checkpoints but none can be read; starting anew is for the user to decide.
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
        raise CheckpointError("no checkpoint can be read; to start anew, move them away: " + "; ".join(rejected))
    return None


def clean(folder: Path) -> int:
    """Remove the remains of an interrupted save, temporary files and tensors without a manifest; return how many."""
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
    """Return a manifest as JSON bytes that contain their own digest."""
    text = json.dumps({"sha256": NO_DIGEST.decode(), **manifest}, indent=1, allow_nan=False).encode()
    return text.replace(NO_DIGEST, hashlib.sha256(text).hexdigest().encode(), 1)


def _unsealed(path: Path) -> dict[str, Any]:
    """Read a manifest and verify its digest. Raises: CheckpointError, or an error of reading JSON."""
    text = path.read_bytes()
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] not in (1, FORMAT):
        raise CheckpointError(f"{path}: format {manifest['format']}, this version of seedbed reads {FORMAT}")
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
