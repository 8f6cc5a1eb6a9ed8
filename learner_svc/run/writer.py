"""What the record thread does: rows, checkpoints and the summary, so that the loop never waits for a disk.

A disk that is full or gone for a while costs what could not be written, not the run: it is said and counted, and the
next row or checkpoint tries again. What a run leaves behind at its end must be written, else the learner fails.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import structlog

from seedbed.learner_svc.algorithms.lag import name_buckets
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.run import checkpoint
from seedbed.learner_svc.run.checkpoint import Snapshot
from seedbed.learner_svc.run.folder import RunFolder
from seedbed.learner_svc.run.history import History, draw_curves
from seedbed.learner_svc.run.measure import evaluation_figures, own_columns
from seedbed.learner_svc.run.run import Counters, Run, is_used_up
from seedbed.shared.errors import StorageError
from seedbed.shared.protocol.ledger import Ledger, ProducerRecord
from seedbed.shared.protocol.messages import RunState, unpack_version
from seedbed.shared.protocol.statistics import training_column
from seedbed.shared.runtime.config import RunConfig

TELL_EVERY_S = 60.0  # of a disk that goes on refusing
log = structlog.get_logger(__name__)


class RunWriter:
    """Writes the run folder. Its methods run in the record thread, one after the other."""

    def __init__(self, folder: RunFolder, history: History, *, keep: int) -> None:
        self._folder, self._history, self._keep = folder, history, keep
        self._tell_at: dict[str, float] = {}  # by what cannot be written at present
        self.num_failures = 0  # rows and checkpoints that could not be written

    def row(self, row: Mapping[str, float | int | None]) -> None:
        """One more row of metrics. Raises: StorageError if the run folder itself is no longer there."""
        self._folder.check_held()
        self._attempt("row", lambda: self._history.append(row))

    def save(self, snapshot: Snapshot, kind: checkpoint.Kind, **meta: float) -> None:
        """A checkpoint on the way; `meta` goes beside the snapshot's own."""
        self._folder.check_held()
        self._attempt("checkpoint", lambda: self.save_last(snapshot, kind, **meta))

    def save_last(self, snapshot: Snapshot, kind: checkpoint.Kind = "latest", **meta: float) -> None:
        """A checkpoint that no other will replace. Raises: StorageError."""
        checkpoint.save(
            self._folder.checkpoints, step=snapshot.step, arrays=snapshot.arrays, meta={**snapshot.meta, **meta},
            kind=kind, keep=self._keep,
        )  # fmt: skip

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """The summary as far as it came. Raises: StorageError."""
        self._folder.write_summary(summary)

    def draw(self) -> None:
        """The curves as far as they came."""
        self._attempt("curves", lambda: draw_curves(self._folder.path))

    def close(self) -> None:
        """Write events that are still buffered; a disk that refuses costs these alone."""
        self._attempt("events", self._history.close)

    def _attempt(self, what: str, write: Callable[[], object]) -> None:
        try:
            write()
        except StorageError as error:
            self.num_failures += 1
            now = time.monotonic()
            if now >= self._tell_at.get(what, now):
                self._tell_at[what] = now + TELL_EVERY_S
                log.error("write_failed", what=what, error=str(error))  # on the same disk nobody will read it
        else:
            if self._tell_at.pop(what, None) is not None:
                log.warning("writes_work_again", what=what, failures=self.num_failures)


class RestartCounter:
    """How often services were restarted, counted from their incarnations, over all lives of the learner.

    Owned by the learner's loop. Memory: a number for each life of an inference service.
    """

    def __init__(self, incarnations: dict[str, set[int]]) -> None:
        """`incarnations`: of inference services by name; whoever owns it adds to it."""
        self._incarnations = incarnations
        self._actor_restarts: dict[int, int] = {}  # as each life of an inference service has seen them

    def heard(self, loads: Mapping[int, Mapping[str, float]]) -> None:
        """What inference services, by incarnation, say of themselves now."""
        for incarnation, figures in loads.items():
            self._actor_restarts[incarnation] = int(figures.get("actor_restarts", 0.0))

    def inference(self) -> dict[str, int]:
        """RestartCounter beyond the first, by name."""
        return {name: len(lives) - 1 for name, lives in self._incarnations.items()}

    def actors(self) -> int:
        """How often actors were restarted, as the inference services saw it, all of them together."""
        return sum(self._actor_restarts.values())

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        inference = {name: sorted(lives) for name, lives in self._incarnations.items()}
        return {"inference": inference, "actors": {str(key): value for key, value in self._actor_restarts.items()}}

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave; a checkpoint without it adds nothing."""
        for name, lives in meta.get("inference", {}).items():
            self._incarnations.setdefault(name, set()).update(lives)
        self._actor_restarts |= {int(key): value for key, value in meta.get("actors", {}).items()}


def checkpoint_meta(run: Run, ledger: Ledger, restarts: RestartCounter, *, run_id: str) -> dict[str, Any]:
    """What a checkpoint says beside its tensors: taken in the loop, right after the update that it follows."""
    return {
        "run_id": run_id,
        "run": run.to_json(),
        "producers": [asdict(record) for record in ledger.records()],
        "lives": restarts.to_json(),
        "eval_return_mean": run.last_result.return_mean if run.last_result else None,
    }


def restore(meta: Mapping[str, Any], run: Run, ledger: Ledger, restarts: RestartCounter) -> None:
    """Go on from what `checkpoint_meta` gave.

    Raises: KeyError, TypeError, ValueError or AttributeError if it is not that.
    """
    run.restore(meta["run"])
    ledger.restore(producer_records(meta))
    restarts.restore(meta.get("lives", {}))


def producer_records(meta: Mapping[str, Any]) -> list[ProducerRecord]:
    """The ledger's part of a checkpoint."""
    return [
        ProducerRecord(
            incarnation=item["incarnation"],
            task=item.get("task", ""),
            next_seq=item["next_seq"],
            next_episodes_seq=item["next_episodes_seq"],
            applied=tuple((seq, lanes) for seq, lanes in item["applied"]),
            partial=tuple((seq, lanes) for seq, lanes in item["partial"]),
        )
        for item in meta["producers"]
    ]


def summarise(
    run: Run,
    settings: LearnerSettings,
    *,
    run_id: str,
    device: str,
    restarts: Mapping[str, int],
    dropped_unrolls: Mapping[str, int],
) -> dict[str, Any]:
    """The content of summary.json. `eval_…` are those of one evaluation, the last; rates are over the whole run."""
    counters = run.counters
    seconds = counters.seconds or None
    figures = counters.to_json()
    lag_max, lag_counts = figures.pop("lag_max"), figures.pop("lag_histogram")
    del figures["lag_steps"], figures["lag_sum"]
    summary: dict[str, Any] = {
        "experiment": settings.run.name,
        "env_id": settings.policy_env_id,
        "finished": run.state == RunState.FINISHED,
        "reason": run.end_reason,
        "seed": settings.run.seed,
        "run_id": run_id,
        "device": device,
        **figures,
        "env_steps_per_s": round(counters.env_steps / seconds, 1) if seconds else None,
        "trained_steps_per_s": round(counters.trained_steps / seconds, 1) if seconds else None,
        "policy_lag_mean": counters.policy_lag_mean,
        "policy_lag_max": lag_max,
        "policy_lag_histogram": name_buckets(lag_counts),
        "episode_return_mean": run.return_mean,
        **own_columns(run.means, training_column),
        "best_eval_return_mean": run.best_return,
        "restarts": dict(restarts),
        "dropped_unrolls": dict(dropped_unrolls),
    }
    if run.last_result is None:
        summary |= {"eval_return_mean": None, "eval_episodes": 0}
    else:
        evaluated: dict[str, Any] = dict(evaluation_figures(run.last_result))
        evaluated["eval_version"] = "{}:{}".format(*unpack_version(run.last_result.version))
        summary |= evaluated
    if run.tasks.are_several:
        summary |= run.tasks.normalised_figures()
        summary["tasks"] = run.tasks.summary()
    return summary


def finished_before(run: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """What a finished run says of itself, if this configuration adds nothing to it; else empty."""
    summary = folder.summary()
    known = {name: value for name, value in summary.items() if name in Counters.__dataclass_fields__}
    reason = summary.get("reason")
    if not summary.get("finished") or not is_used_up(run, Counters(**known), reason=str(reason)):
        return {}
    return {"trained_steps": summary.get("trained_steps"), "reason": reason}
