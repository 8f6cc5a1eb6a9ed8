"""The work of the record thread: rows, checkpoints and the summary, so that the loop never waits for a disk.

If the disk is full or away for a while, the failure is logged and counted, the run continues, and the next row or
checkpoint tries again. The last checkpoint and summary must be written, else the learner fails.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog

from seedbed.learner_svc.algorithms.lag import name_buckets
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.ranks.ranks import CHIEF
from seedbed.learner_svc.run import checkpoint
from seedbed.learner_svc.run.checkpoint import Snapshot
from seedbed.learner_svc.run.folder import RunFolder
from seedbed.learner_svc.run.history import History, draw_curves
from seedbed.learner_svc.run.measure import evaluation_figures, own_columns
from seedbed.learner_svc.run.run import Counters, Run, is_used_up
from seedbed.shared.errors import StorageError
from seedbed.shared.protocol.ledger import Ledger, ProducerRecord
from seedbed.shared.protocol.messages import RunState, unpack_version
from seedbed.shared.protocol.statistics import evaluation_column, training_column
from seedbed.shared.runtime.config import RunConfig

LOG_EVERY_S = 60.0  # least time between two log entries about the same failure
log = structlog.get_logger(__name__)


class RunWriter:
    """Writes the run folder. Its methods run in the record thread, one after the other."""

    def __init__(self, folder: RunFolder, history: History, *, keep: int) -> None:
        self._folder, self._history, self._keep = folder, history, keep
        self._log_at: dict[str, float] = {}  # what cannot be written at present → when to log it again
        self.num_failures = 0  # number of rows and checkpoints that could not be written
        self._unwritten: dict[checkpoint.Kind, Callable[[], object]] = {}  # the best and the newest milestone, if so

    def row(self, row: Mapping[str, float | int | None]) -> None:
        """Write a row of metrics. Raises: StorageError if the run folder itself is gone."""
        self._folder.check_held()
        self._attempt("row", lambda: self._history.append(row))

    def save(self, snapshot: Snapshot, kind: checkpoint.Kind, **meta: float) -> None:
        """Write a checkpoint during training; `meta` is added to the snapshot's own.

        If the best one cannot be written, or a milestone, it is tried again with the next: no later one replaces it.
        """
        self._folder.check_held()
        due: dict[checkpoint.Kind, Callable[[], object]] = dict(self._unwritten)
        due[kind] = partial(self.save_last, snapshot, kind, **meta)
        self._unwritten = {}
        for each, write in due.items():
            if not self._attempt("checkpoint", write) and each != "latest":
                self._unwritten[each] = write

    def save_last(self, snapshot: Snapshot, kind: checkpoint.Kind = "latest", **meta: float) -> None:
        """Write a checkpoint that must not fail. Raises: StorageError."""
        checkpoint.save(
            self._folder.checkpoints, step=snapshot.step, arrays=snapshot.arrays, meta={**snapshot.meta, **meta},
            kind=kind, keep=self._keep,
        )  # fmt: skip

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which replaces the one before as a whole. Raises: StorageError."""
        self._folder.write_summary(summary)

    def draw(self) -> None:
        """Draw the curves of all rows so far."""
        self._attempt("curves", lambda: draw_curves(self._folder.path))

    def close(self) -> None:
        """Write the events that are still buffered; a failure loses only these."""
        self._attempt("events", self._history.close)

    def _attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Write, and return whether that worked; a failure is logged."""
        try:
            write()
        except StorageError as error:
            self.num_failures += 1
            now = time.monotonic()
            if now >= self._log_at.get(what, now):
                self._log_at[what] = now + LOG_EVERY_S
                log.error("write_failed", what=what, error=str(error))  # the log file is on the same disk
            return False
        if self._log_at.pop(what, None) is not None:
            log.warning("writes_work_again", what=what, failures=self.num_failures)
        return True


class RestartCounter:
    """How often services were restarted, counted from their incarnations, over all restarts of the learner.

    Owned by the learner's loop. Memory: a number for each incarnation of an inference service.
    """

    def __init__(self, incarnations: dict[str, set[int]]) -> None:
        """`incarnations`: those of inference services by name, a mapping that its owner keeps adding to."""
        self._incarnations = incarnations
        self._actor_restarts: dict[int, int] = {}  # incarnation of inference → restarts that it has seen

    def heard(self, loads: Mapping[int, Mapping[str, float]]) -> None:
        """Take the present loads of inference services by incarnation."""
        for incarnation, figures in loads.items():
            self._actor_restarts[incarnation] = int(figures.get("actor_restarts", 0.0))

    def inference(self) -> dict[str, int]:
        """Return the number of restarts of each inference service by name."""
        return {name: len(lives) - 1 for name, lives in self._incarnations.items()}

    def actors(self) -> int:
        """Return the number of restarts of actors, summed over inference services."""
        return sum(self._actor_restarts.values())

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        inference = {name: sorted(lives) for name, lives in self._incarnations.items()}
        return {"inference": inference, "actors": {str(key): value for key, value in self._actor_restarts.items()}}

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Restore what `to_json` returned; a checkpoint without it changes nothing."""
        for name, lives in meta.get("inference", {}).items():
            self._incarnations.setdefault(name, set()).update(lives)
        self._actor_restarts |= {int(key): value for key, value in meta.get("actors", {}).items()}


def checkpoint_meta(run: Run, ledger: Ledger, restarts: RestartCounter, *, run_id: str) -> dict[str, Any]:
    """Return the JSON part of a checkpoint. Call it in the loop, right after the update that the checkpoint follows."""
    return {
        "run_id": run_id,
        "run": run.to_json(),
        "producers": [asdict(record) for record in ledger.records()],
        "lost_unrolls": ledger.lost_unrolls,
        "duplicate_unrolls": ledger.duplicate_unrolls,
        "lives": restarts.to_json(),
        "eval_return_mean": run.last_result.return_mean if run.last_result else None,
    }


def restore(meta: Mapping[str, Any], run: Run, ledger: Ledger, restarts: RestartCounter, *, num_ranks: int = 1) -> None:
    """Restore what `checkpoint_meta` returned, and of the producers those of the chief of so many ranks.

    Raises: KeyError, TypeError, ValueError or AttributeError if it is not that.
    """
    run.restore(meta["run"])
    ledger.restore(of_rank(producer_records(meta["producers"]), CHIEF, num_ranks))
    ledger.lost_unrolls = int(meta.get("lost_unrolls", 0))
    ledger.duplicate_unrolls = int(meta.get("duplicate_unrolls", 0))
    restarts.restore(meta.get("lives", {}))


def of_rank(records: Iterable[ProducerRecord], rank: int, num_ranks: int) -> list[ProducerRecord]:
    """Return the records whose streams go to a rank."""
    return [record for record in records if record.stream % num_ranks == rank]


def producer_records(items: Iterable[Mapping[str, Any]]) -> list[ProducerRecord]:
    """Return the ledger's part of a checkpoint."""
    return [
        ProducerRecord(
            incarnation=item["incarnation"],
            task=item.get("task", ""),
            stream=item.get("stream", 0),
            next_seq=item["next_seq"],
            next_episodes_seq=item["next_episodes_seq"],
            applied=tuple((seq, lanes) for seq, lanes in item["applied"]),
            partial=tuple((seq, lanes) for seq, lanes in item["partial"]),
        )
        for item in items
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
    """Return the content of summary.json. `eval_…` are of the last evaluation; rates are over the whole run."""
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
    summary |= run.normalised_figures
    if run.scale is not None:
        summary["score_scale"] = asdict(run.scale)
    if run.tasks.is_multi_task:
        summary["tasks"] = run.tasks.summary()
    return summary


def finished_before(run: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Return the summary of a run that is finished and that this configuration does not extend; else empty."""
    summary = folder.summary()
    known = {name: value for name, value in summary.items() if name in Counters.__dataclass_fields__}
    reason = str(summary.get("reason") or "")
    names = {goal.statistic: evaluation_column(goal.statistic) for goal in run.goals.values()}
    means = {statistic: summary.get(name) for statistic, name in names.items()}
    if not summary.get("finished") or not is_used_up(run, Counters(**known), reason=reason, means=means):
        return {}
    return {"trained_steps": summary.get("trained_steps"), "reason": reason}
