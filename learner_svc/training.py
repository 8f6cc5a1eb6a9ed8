"""Training, once there is a policy: from unrolls to batches, updates, published weights and checkpoints.

With two buffers the update thread trains on one batch while the loop fills the other.

| waits | for | else |
|---|---|---|
| unrolls | a free batch | they stay in the source, bounded by credit |
| update thread | a full batch | it is idle, counted as batch_wait_ms |
| held groups at inference | credit: an unroll was copied | credit is repeated with every PONG |

With several learner ranks a batch is an offer: the ranks train on theirs in a round in which all have one.

In deterministic mode there is one buffer, and credit for one unroll at a time: it is held until every update that the
unrolls so far allow is done, and inference has the weights.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from prometheus_client import Histogram

from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.trainer import Trained, Trainer
from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.link.producer_sessions import (
    Action,
    EpisodesReceived,
    ProducerSessions,
    UnrollKey,
    UnrollReceived,
)
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.ranks.ranks import ALONE
from seedbed.learner_svc.ranks.rounds import Meeting, Offer, Rounds
from seedbed.learner_svc.reporting import Reporter
from seedbed.learner_svc.run import checkpoint as checkpoints
from seedbed.learner_svc.run.checkpoint import Snapshot
from seedbed.learner_svc.run.checkpoint_schedule import CheckpointSchedule
from seedbed.learner_svc.run.measure import EvaluationResult, measure
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.tasks import lane_tasks
from seedbed.learner_svc.run.writer import RestartCounter, RunWriter, checkpoint_meta
from seedbed.learner_svc.sources.batch_buffer import batch_buffers
from seedbed.learner_svc.sources.source import FilledBatch, Origin, Source
from seedbed.shared.figures import columns
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import Evaluation, RunState
from seedbed.shared.runtime.service import Service
from seedbed.shared.runtime.worker import Worker

LOG_EVERY_S = 10.0
MAX_SAVE_S = 60.0
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a learner that exist before there is a policy."""

    settings: LearnerSettings
    service: Service
    run_id: str
    run: Run
    ledger: Ledger
    publisher: Publisher
    producers: ProducerSessions
    restarts: RestartCounter
    writer: RunWriter
    figures: UpdateMetrics
    reporter: Reporter
    update_seconds: Histogram
    worker: Worker  # the update thread
    record: Worker  # the thread that writes the run folder
    rounds: Rounds[FilledBatch[UnrollKey]] | None = None  # with several learner ranks


class Training:
    """Gives batches to the update thread and acts on its results. Owned by the loop.

    Large because it connects all parts of a learner.

    Memory: the trainer's, the source's, and snapshots on their way to the disk; with several ranks these wait for their
    ledgers first.

    Args:
      perform: sends messages to producers.
      on_finished: called once, when the run is over.
    """

    def __init__(
        self, parts: Parts, trainer: Trainer, source: Source[UnrollKey], *,
        perform: Callable[[Iterable[Action]], None], on_finished: Callable[[], None], now: float,
    ) -> None:  # fmt: skip
        config = parts.settings.learner
        self.trainer = trainer
        self._parts, self._source, self._perform, self._on_finished = parts, source, perform, on_finished
        self._loop = asyncio.get_running_loop()
        self._config, self._run = config, parts.run
        self._is_deterministic = parts.settings.run.deterministic
        self._batches = batch_buffers(trainer.record, source.buffers, trainer.updater.device)
        self._schedule = CheckpointSchedule(
            parts.run, every_s=config.checkpoint_every_s, milestone_steps=config.milestone_steps
        )
        self._submitted = self._in_flight = 0  # batches given to the update thread: in total, and at present
        self._is_exporting = self._is_preparing_evaluation = self._is_pumping_soon = False
        self._newest_version = trainer.version  # version of the weights in the update thread
        self._told: tuple[RunState, Evaluation | None] = (parts.run.state, None)  # as producers were told
        self._row_at, self._log_at = now + config.metrics_every_s, 0.0
        self._await_ledgers: deque[Callable[[Sequence[bytes]], None]] = deque()  # called with those of all ranks
        self._last_ledgers: Sequence[bytes] = ()
        self._waits_for_ledgers = False  # for a snapshot that is taken without an update: training stands still
        self._wants_ledgers = False  # the next round asks for them
        parts.run.start(now)
        parts.figures.start(parts.run.counters, now)
        self._schedule.start(now)

    # Experience

    def take_unroll(self, unroll: UnrollReceived) -> None:
        """Hand a new unroll to the source, which batches are made of."""
        producer = unroll.key.producer
        self._source.offer(
            unroll.key, unroll.lanes, unroll.frame, skip=unroll.skip, task=producer.task,
            origin=Origin(producer.incarnation, unroll.key.seq),
        )  # fmt: skip

    def take_episodes(self, episodes: EpisodesReceived) -> None:
        """Take new episodes: count them, or use them as a result of the present evaluation."""
        header, statistics, task = episodes.header, episodes.statistics, episodes.task
        if header.mode == "train":
            self._run.acted(statistics, steps=header.acted_steps, aborted=header.aborted, task=task)
        elif header.mode == "eval" and header.count:
            part = measure(episodes.versions, statistics, self.trainer.policy.spec.statistics)
            result = self._run.evaluated(header.evaluation, part, self._loop.time(), task=task)
            if result is not None:
                self._evaluated(header.evaluation, result)

    def _evaluated(self, evaluation_id: int, result: EvaluationResult) -> None:
        """Log a complete evaluation, and save its weights if they are the best so far."""
        self._parts.figures.evaluation = result
        self._parts.service.log.info(
            "evaluation_finished", return_mean=result.return_mean, episodes=result.episodes, version=result.version
        )
        if (best := self._schedule.best(evaluation_id)) is not None:
            self._save(best, ["best"])
        self._poll_run()

    # The update thread

    def pump(self) -> None:
        """Fill batches, give full ones to the update thread, and return credit."""
        parts = self._parts
        if parts.rounds is not None:
            parts.rounds.poll()  # first: the other ranks wait for this one
        for key in self._source.fill():
            parts.ledger.copied(key.producer, key.seq)
        self._acknowledge()
        if parts.rounds is not None:
            parts.rounds.poll()
        else:
            while (offer := self.offer()) is not None:
                self._submit(offer)
        if self._source.has_more and not self._is_pumping_soon:
            self._is_pumping_soon = True
            self._loop.call_soon(self._pump_on)
        if self._is_deterministic:
            parts.ledger.hold(not self._is_settled())
        self._perform(parts.producers.credits())

    def _is_settled(self) -> bool:
        """Whether the unrolls so far allow no more updates, and every producer has the weights that came of them."""
        if self._in_flight or self._source.has_more or self._run.waits_for_evaluation:
            return False
        return all(self._parts.publisher.has_newest(session) for session in self._parts.ledger.sessions)

    def _pump_on(self) -> None:
        self._is_pumping_soon = False
        self.pump()

    def _acknowledge(self) -> None:
        """Acknowledge the unrolls that the source has finished with."""
        for key, lanes in self._source.used():
            self._parts.ledger.applied(key.producer, key.seq, lanes)

    @property
    def may_take(self) -> bool:
        """Whether batches are given to the update thread now."""
        stops = self._parts.service.stopping.is_set() or self._run.waits_for_evaluation
        return self._run.may_train and not stops and not self._waits_for_ledgers

    def offer(self) -> Offer[FilledBatch[UnrollKey]] | None:
        """Return the next full batch with what is to be done with it; None if there is none, or none is to be used."""
        batch = self._source.take() if self.may_take else None
        if batch is None:
            return None
        self._batches[batch.index].send()
        self._submitted += 1
        publishes = self._submitted % self._config.publish_every == 0
        wants_snapshot = self._schedule.is_due(self._loop.time())
        if is_for_evaluation := not self._is_preparing_evaluation and self._run.wants_evaluation():
            self._is_preparing_evaluation = publishes = wants_snapshot = True
        task_B = lane_tasks(self._parts.settings.tasks, batch.tasks)
        return Offer(
            batch=batch,
            count=lambda: self.trainer.count(self._batches[batch.index], task_B=task_B, fresh_B=batch.fresh_B),
            agree=self.trainer.agree,
            train=lambda counted, counts: self.trainer.train(
                counted, counts, wants_weights=publishes, wants_snapshot=wants_snapshot, weight_B=batch.weight_B,
                begun=self._parts.worker.hand_back,
            ),
            done=lambda trained: self._trained(batch, trained, is_for_evaluation=is_for_evaluation),
            saves=wants_snapshot,
        )  # fmt: skip

    def _submit(self, offer: Offer[FilledBatch[UnrollKey]]) -> None:
        self._in_flight += 1

        def train() -> Trained:
            counted = offer.count()
            return offer.train(counted, offer.agree(counted, ALONE.gather(counted.numbers)))

        def done(trained: Trained) -> None:
            self._in_flight -= 1
            offer.done(trained)

        self._parts.worker.submit(train, done, hands_back=True)

    def _trained(self, batch: FilledBatch[UnrollKey], trained: Trained, *, is_for_evaluation: bool) -> None:
        result, parts, run = trained.result, self._parts, self._run
        self._source.release(batch, result.priorities_B)
        self._acknowledge()
        if result.dropped_steps:
            parts.reporter.count_drops(batch, result.dropped_steps_B.tolist())
        run.trained(
            result.valid_steps, updates=int(result.applied), dropped_steps=result.stale_steps,
            lost_epoch_steps=result.lost_epoch_steps, expired_unrolls=result.dropped_unrolls,
            lag_mean=result.metrics.get(columns.LAG_MEAN.name, 0.0),
            lag_max=result.metrics.get(columns.LAG_MAX.name, 0.0),
            lag_histogram=result.lag_histogram, lag_sum=result.lag_sum,
        )  # fmt: skip
        for task, (lanes, steps) in zip(run.tasks.records, result.task_counts, strict=True):
            run.tasks.trained(task, lanes=lanes, steps=steps)
        parts.figures.trained(trained)
        parts.update_seconds.observe(trained.seconds)
        self._newest_version = trained.version
        if is_for_evaluation:
            self._is_preparing_evaluation = False
        stamped = None if trained.snapshot is None else self._stamped(trained.snapshot)
        if is_for_evaluation and trained.weights is not None and run.may_train:
            self._ask_evaluation(trained.version, trained.weights)
        elif trained.weights is not None:
            self.publish(trained.version, trained.weights)
        if stamped is not None:
            self._complete(stamped, self._save_new)
        self._poll_run()
        self.pump()

    def met(self, meeting: Meeting) -> None:
        """Take the news of a round with the other ranks."""
        if meeting.ledgers:
            self._last_ledgers = meeting.ledgers
            if self._await_ledgers:
                self._await_ledgers.popleft()(meeting.ledgers)

    def take_ledger_request(self) -> bool:
        """Return whether the next round asks all ranks for their ledgers; only once for each time."""
        wanted, self._wants_ledgers = self._wants_ledgers, False
        return wanted

    def _ask_evaluation(self, version: int, weights: bytes) -> None:
        """Request an evaluation of these weights, and publish them.

        Producers are told of the evaluation before they get the weights, so that inference can freeze them on arrival.
        """
        self._schedule.measured(self._run.ask(version, self._loop.time()))
        self._poll_run()
        self.publish(version, weights)
        self._parts.publisher.keep()

    def publish(self, version: int, weights: bytes) -> None:
        """Publish weights to all readers that wait for newer ones."""
        self._perform(self._parts.producers.answers(self._parts.publisher.publish(version, weights)))

    # The run

    def _poll_run(self) -> None:
        """Advance the run, and send CREDIT to all producers if its state or evaluation has changed."""
        run, parts = self._run, self._parts
        is_published = parts.publisher.version == self._newest_version
        is_training = self._in_flight > 0 or (parts.rounds is not None and parts.rounds.may_be_training)
        run.poll(parts.publisher.version, self._loop.time(), is_idle=not is_training and is_published)
        if not run.may_train and not is_training and not is_published and not self._is_exporting:
            self._is_exporting = True
            parts.worker.submit(self.trainer.weights, lambda newest: self._exported(*newest))
        stands_still = not run.may_train and not is_training and not self._waits_for_ledgers
        if stands_still and self._schedule.is_due(self._loop.time()):
            self._waits_for_ledgers = self._wants_ledgers = parts.rounds is not None
            parts.worker.submit(self.trainer.snapshot, self._take_snapshot)
        if (run.state, run.evaluation) == self._told:
            return
        self._told = (run.state, run.evaluation)
        missing = run.tasks.missing() if run.end_reason == "no_evaluation" else []
        parts.service.log.info("run_moved", state=run.state.name.lower(), reason=run.end_reason, not_evaluated=missing)
        self._perform(parts.producers.credits(everyone=True))
        if run.state == RunState.FINISHED:
            self._on_finished()

    def _exported(self, version: int, weights: bytes) -> None:
        self._is_exporting = False
        self.publish(version, weights)
        self._poll_run()

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        self._complete(self._stamped(snapshot), self._save_and_go_on)

    def _complete(self, stamped: Snapshot, save: Callable[[Snapshot], None]) -> None:
        """Save a snapshot once it has the ledgers of all ranks; those of the others come with a later round."""
        if self._parts.rounds is None:
            save(stamped)
        else:
            self._await_ledgers.append(lambda ledgers: save(_with_ledgers(stamped, ledgers)))

    def _stamped(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the present counters of the run, which belong to its weights."""
        parts = self._parts
        meta = checkpoint_meta(self._run, parts.ledger, parts.restarts, run_id=parts.run_id)
        return replace(snapshot, meta={**snapshot.meta, **meta})

    def _save_new(self, snapshot: Snapshot) -> None:
        self._save(snapshot, self._schedule.kinds(snapshot))

    def _save_and_go_on(self, snapshot: Snapshot) -> None:
        self._waits_for_ledgers = False
        self._save_new(snapshot)

    def _save(self, snapshot: Snapshot, kinds: Sequence[checkpoints.Kind]) -> None:
        for kind in kinds:
            result = self._run.last_result if kind == "best" else None  # the one that measured it
            meta = {} if result is None else {"eval_return_mean": result.return_mean, "eval_version": result.version}
            self._parts.record.submit(partial(self._parts.writer.save, snapshot, kind, **meta))

    # Time

    def beat(self, now: float) -> None:
        """Do what is due: rows, checkpoints, changes of state. Call it ten times a second."""
        self._poll_run()
        self.pump()
        self._log_wait(now)
        if now >= self._row_at:
            self._row_at = now + self._config.metrics_every_s
            row = self._parts.reporter.row(now, self._source.metrics())
            self._parts.record.submit(lambda: self._parts.writer.row(row))

    def _log_wait(self, now: float) -> None:
        """Log every LOG_EVERY_S that training is done and the final evaluation is awaited."""
        wait, evaluation = self._run.final_evaluation_wait(now), self._run.evaluation
        if wait is None or evaluation is None or now < self._log_at:
            return
        self._log_at = now + LOG_EVERY_S
        waited_s, at_most_s = wait
        self._parts.service.log.info(
            "final_evaluation_awaited", episodes=evaluation.episodes, waited_s=round(waited_s),
            at_most_s=round(at_most_s), hint="it needs an actor with actor.mode=eval; inference logs if there is none",
        )  # fmt: skip

    async def save_last(self) -> None:
        """Write the last checkpoint, row, summary and curves, when training is over."""
        parts = self._parts
        # All are taken without an await between them, so that they agree: later steps count in none of them.
        snapshot = self._stamped(await self._finish_job(parts.worker, self.trainer.snapshot))
        snapshot = _with_ledgers(snapshot, self._last_ledgers)
        row = parts.reporter.row(self._loop.time(), self._source.metrics())
        summary = parts.reporter.summary(device=str(self.trainer.parameters.flat.device))
        summary |= {"precision": asdict(self.trainer.policy.precision), "epoch": self.trainer.epoch}
        await self._finish_job(parts.record, lambda: parts.writer.save_last(snapshot))
        await self._finish_job(parts.record, lambda: parts.writer.row(row))
        await self._finish_job(parts.record, lambda: parts.writer.summarise(summary))
        try:
            await self._finish_job(parts.record, parts.writer.draw)
        except TimeoutError:  # with many tasks on a busy machine; a missing picture must not fail the run
            parts.service.log.warning("curves_late", after_s=MAX_SAVE_S)

    async def _finish_job(self, worker: Worker, job: Callable[[], R]) -> R:
        """Run a job after all queued ones and return its result; all their `done` callbacks have run by then."""
        came: asyncio.Future[R] = self._loop.create_future()
        worker.submit(job, came.set_result)
        either: list[asyncio.Future[Any]] = [came, worker.failed]
        async with asyncio.timeout(MAX_SAVE_S):
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not came.done():
            worker.failed.result()
        return came.result()


def _with_ledgers(snapshot: Snapshot, ledgers: Sequence[bytes]) -> Snapshot:
    """Return the snapshot with the producers of the other ranks; the chief's, which come first, it has already."""
    others = [record for ledger in ledgers[1:] for record in json.loads(ledger)]
    return replace(snapshot, meta={**snapshot.meta, "producers": [*snapshot.meta["producers"], *others]})
