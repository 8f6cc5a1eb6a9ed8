"""What the record thread does: rows, checkpoints and the summary, so that the loop never waits for a disk."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from learner_svc import checkpoint
from learner_svc.figures import evaluation_figures
from learner_svc.history import History, draw_curves
from learner_svc.record import RunFolder
from learner_svc.run import Counters, Run, is_used_up
from learner_svc.trainer import Snapshot
from shared.protocol.ledger import Ledger, ProducerRecord
from shared.protocol.messages import RunState, unpack_version
from shared.runtime.config import RunConfig


class Keeper:
    """Writes the run folder. Its methods run in the record thread, one after the other."""

    def __init__(self, folder: RunFolder, history: History, *, keep: int) -> None:
        self._folder, self._history, self._keep = folder, history, keep

    def row(self, row: Mapping[str, float | int | None]) -> None:
        """One more row of metrics."""
        self._history.append(row)

    def save(self, snapshot: Snapshot, meta: Mapping[str, Any], kind: checkpoint.Kind) -> None:
        """A checkpoint."""
        checkpoint.save(
            self._folder.checkpoints, step=snapshot.step, arrays=snapshot.arrays, meta={**snapshot.meta, **meta},
            kind=kind, keep=self._keep,
        )  # fmt: skip

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """The summary and the curves as far as they came."""
        self._folder.write_summary(summary)
        draw_curves(self._folder.path)

    def close(self) -> None:
        """Write the rest."""
        self._history.close()


def checkpoint_meta(run: Run, ledger: Ledger, *, run_id: str) -> dict[str, Any]:
    """What a checkpoint says beside its tensors: taken in the loop, right after the update that it follows."""
    return {
        "run_id": run_id,
        "run": run.to_json(),
        "producers": [asdict(record) for record in ledger.records()],
        "eval_return_mean": run.last_result.return_mean if run.last_result else None,
    }


def producer_records(meta: Mapping[str, Any]) -> list[ProducerRecord]:
    """The ledger's part of a checkpoint."""
    return [
        ProducerRecord(
            incarnation=item["incarnation"],
            next_seq=item["next_seq"],
            next_episodes_seq=item["next_episodes_seq"],
            applied=tuple((seq, lanes) for seq, lanes in item["applied"]),
            partial=tuple((seq, lanes) for seq, lanes in item["partial"]),
        )
        for item in meta["producers"]
    ]


def summarise(
    run: Run, *, name: str, env_id: str, seed: int, run_id: str, epoch: int, restarts: Mapping[str, int]
) -> dict[str, Any]:
    """The content of summary.json. `eval_…` are those of one evaluation, the last."""
    counters = run.counters
    summary: dict[str, Any] = {
        "finished": run.state == RunState.FINISHED,
        "reason": run.end_reason,
        "name": name,
        "env_id": env_id,
        "seed": seed,
        "run_id": run_id,
        **counters.to_json(),
        "trained_steps_per_s": round(counters.trained_steps / counters.seconds, 1) if counters.seconds else None,
        "return_mean": run.training.mean,
        "best_eval_return_mean": run.best_return,
        "learner_restarts": epoch - 1,
        "inference_restarts": dict(restarts),
    }
    if run.last_result is not None:
        figures: dict[str, Any] = dict(evaluation_figures(run.last_result))
        figures["eval_version"] = "{}:{}".format(*unpack_version(run.last_result.version))
        summary |= figures
    return summary


def finished_before(run: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """What a finished run says of itself, if this configuration adds nothing to it; else empty."""
    summary = folder.summary()
    known = {name: value for name, value in summary.items() if name in Counters.__dataclass_fields__}
    reason = summary.get("reason")
    if not summary.get("finished") or not is_used_up(run, Counters(**known), reason=str(reason)):
        return {}
    return {"trained_steps": summary.get("trained_steps"), "reason": reason}
