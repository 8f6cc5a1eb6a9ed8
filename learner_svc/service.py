"""The learner as a process: one socket, the update thread, the record thread and the clock, around pure parts.

Inference dials in (ROUTER). `Desk` answers it, `QueueSource` cuts batches, `Run` decides when to evaluate and to stop;
here is only what moves between them. With two buffers the update thread trains on one while the loop fills the other.

| waits | for | else |
|---|---|---|
| unrolls | a free batch | stay in the source, bounded by credit |
| update thread | a full batch | idle, counted as batch_wait_ms |
| held groups at inference | credit: an unroll was copied | repeated with every PONG |
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from seedbed.learner_svc import checkpoint as checkpoints
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.figures import Figures
from seedbed.learner_svc.finished import tell_finished
from seedbed.learner_svc.history import History
from seedbed.learner_svc.keeper import Keeper, Lives, checkpoint_meta, finished_before, restore
from seedbed.learner_svc.measure import measure
from seedbed.learner_svc.metrics import register
from seedbed.learner_svc.producers import (
    Action,
    Desk,
    EpisodesCame,
    Identity,
    Send,
    SpecificationCame,
    UnrollCame,
    UnrollKey,
)
from seedbed.learner_svc.publish import Publisher
from seedbed.learner_svc.record import RunFolder
from seedbed.learner_svc.reporting import Reporter
from seedbed.learner_svc.run import Run
from seedbed.learner_svc.saving import Saving
from seedbed.learner_svc.sizes import judge_size
from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.learner_svc.sources.source import FilledBatch, Source
from seedbed.learner_svc.standstill import Deaths
from seedbed.learner_svc.tasks import TaskBook, count_parts, reward_scales, task_environments
from seedbed.learner_svc.trainer import Snapshot, Trained, Trainer
from seedbed.shared.errors import CheckpointError, ConfigError, RemoteWireError, SeedbedError
from seedbed.shared.net.endpoints import Router
from seedbed.shared.net.keys import bind_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.reports import Reports
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import Evaluation, RunState
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.statistics import GIVEN
from seedbed.shared.runtime.farewell import Farewell
from seedbed.shared.runtime.memory import available_bytes
from seedbed.shared.runtime.refusals import Refusals
from seedbed.shared.runtime.service import Service
from seedbed.shared.runtime.tasks import normalised_weights
from seedbed.shared.runtime.worker import Worker

BEAT_S = 0.1
TELL_S = 10.0
MAX_SAVE_S = 60.0
R = TypeVar("R")
HOW_TO_GO_ON = "to train on, raise what ended it (run.steps, run.seconds); for a new run, give another folder"


class LearnerService:
    """The shell: feeds events to the parts and performs what they decide. Owned by the loop."""

    def __init__(self, settings: LearnerSettings, service: Service, reactor: Reactor, folder: RunFolder) -> None:
        self.settings, self.service, self.reactor, self.folder = settings, service, reactor, folder
        self.config = config = settings.learner
        self.loop = asyncio.get_running_loop()
        self.weights = normalised_weights(settings.tasks)
        self.epoch, self.run_id = folder.next_epoch(), folder.run_id()
        checkpoints.clean(folder.checkpoints)
        self.checkpoint = checkpoints.load_latest(folder.checkpoints, check=self._check_restorable)
        if self.checkpoint is None:  # else once they are known to go together: a refused resume changes nothing
            folder.write_config(settings)
        folder.write_versions(self.epoch)
        self.run, self.ledger = self._new_run(), self._new_ledger()
        self.publisher = Publisher()
        identity = Identity(
            self.epoch, self.run_id, settings.run.seed, config.unroll_length, config.beat_s, config.lease_s,
            tasks=task_environments(settings.tasks),
        )  # fmt: skip
        self.worker, self.record = Worker("update"), Worker("record")
        self.desk = Desk(
            identity, settings.env, self.ledger, self.publisher, self.run, self.worker.busy_s,
            judge_size=lambda spec: judge_size(spec, config, available_bytes()),
        )  # fmt: skip
        self.lives = Lives(self.desk.incarnations)
        if self.checkpoint is not None:
            self._restore(self.checkpoint)
        counters = self.run.counters
        history = History(
            folder.path, updates=counters.updates, trained_steps=counters.trained_steps, tensorboard=config.tensorboard
        )
        self.keeper = Keeper(folder, history, keep=config.keep_checkpoints)
        self.saving = Saving(self.run, every_s=config.checkpoint_every_s, milestone_steps=config.milestone_steps)
        self.figures = Figures()
        self.update_seconds = register(service.metrics, self.run, self.desk, self.figures, self.keeper, reactor)
        self.reporter = Reporter(
            settings, self.run, self.desk, self.lives, self.figures, loop_lag_s=lambda: reactor.statistics().loop_lag_s,
            warn=service.log.warning,
        )  # fmt: skip
        self.trainer: Trainer | None = None
        self.source: Source[UnrollKey] | None = None
        self.finished = asyncio.Event()
        self._is_building = False
        self._submitted = self._in_flight = 0  # batches given to the update thread in all, and now
        self._is_exporting = self._is_preparing_evaluation = False
        self._newest_version = 0  # of the update thread's weights
        self._told: tuple[RunState, Evaluation | None] = (self.run.state, None)  # what everyone knows
        self._row_at = self._tell_at = 0.0
        self.router = Router(
            reactor,
            config.bind,
            on_message=self._receive,
            on_drained=self._pump,
            max_frame_bytes=config.max_frame_bytes,
            keys=bind_keys(service.runtime.keys, Role.LEARNER),
            on_refused=Refusals(service.metrics, service.log),
            on_revoked=self._revoked,
        )
        self.reports = Reports(service, self.router.send, self.router.user_id)

    def _new_run(self) -> Run:
        patience_s = self.config.evaluation_patience_s
        tasks = TaskBook(self.settings.tasks)
        return Run(self.settings.run, self.settings.eval, epoch=self.epoch, patience_s=patience_s, tasks=tasks)

    def _new_ledger(self) -> Ledger:
        window = max(1, round(self.config.queue_batches * self.config.batch))
        return Ledger(epoch=self.epoch, window_lanes=window, lease_s=self.config.lease_s, weights=self.weights)

    def _check_restorable(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Try on copies that nobody uses, what resuming from this one will do. Raises: CheckpointError."""
        run, lives = self._new_run(), Lives({})
        try:
            restore(checkpoint.meta, run, self._new_ledger(), lives)
            json.dumps([run.to_json(), lives.to_json()], allow_nan=False)  # as the next checkpoint will
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise CheckpointError(
                f"{checkpoint.path} does not tell a run that this version can go on with ({problem})"
            ) from error

    def _restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        restore(checkpoint.meta, self.run, self.ledger, self.lives)
        for file in checkpoints.list_checkpoints(self.folder.checkpoints):
            if file.kind == "best":  # which may be younger than what is gone on from
                with suppress(CheckpointError):
                    self.run.beat(checkpoints.read_meta(file.path).get("eval_return_mean"))

    # Messages

    def _receive(self, route: bytes, frames: list[bytes]) -> bool:
        """Whether it moved something on: an unroll or episodes that had not come yet, or weights that are new there."""
        try:
            if self.reports.take(route, frames):
                return False
        except RemoteWireError:
            self.desk.refused_messages += 1
            return False
        actions = self.desk.receive(route, frames, self.loop.time())
        self._perform(actions)
        return any(not isinstance(action, Send) or action.is_useful for action in actions)

    def _revoked(self, routes: list[bytes]) -> None:
        sends = self.desk.revoke(routes)
        self.service.log.warning("keys_revoked", connections=len(routes), sessions=len(sends))
        self._perform(sends)

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                if not self.router.send(action.route, action.frames):
                    self.desk.unroutable(action.route)
            elif isinstance(action, UnrollCame):
                assert self.source is not None, "the desk takes unrolls only once there is a policy"
                task = action.key.producer.task
                self.source.offer(action.key, action.lanes, action.frame, skip=action.skip, task=task)
            elif isinstance(action, EpisodesCame):
                self._count_episodes(action)
            elif isinstance(action, SpecificationCame):
                self.build(action.spec)

    def _count_episodes(self, episodes: EpisodesCame) -> None:
        header, statistics, task = episodes.header, episodes.statistics, episodes.task
        if header.mode == "train":
            self.run.acted(statistics, steps=header.acted_steps, aborted=header.aborted, task=task)
        elif header.mode == "eval" and header.count:
            assert self.desk.spec is not None, "the desk takes episodes only once there is a policy"
            result = measure(episodes.versions, statistics, self.desk.spec.statistics)
            if self.run.evaluated(header.evaluation, result, self.loop.time(), task=task):
                self._evaluated(header.evaluation)

    def _evaluated(self, evaluation_id: int) -> None:
        """An evaluation is complete: log it, and keep its weights if none were better."""
        result = self.figures.evaluation = self.run.last_result
        assert result is not None
        self.service.log.info(
            "evaluation_finished", return_mean=result.return_mean, episodes=result.episodes, version=result.version
        )
        if (best := self.saving.best(evaluation_id)) is not None:
            self._save(best, ["best"], eval_return_mean=result.return_mean, eval_version=result.version)
        self._poll_run()

    # The update thread

    def build(self, spec: EnvSpec | None) -> None:
        """Have the policy built, once: from the checkpoint, or for the first environments' specification."""
        if self._is_building or self.trainer is not None:
            return
        self._is_building = True
        settings, folder, epoch, checkpoint = self.settings, self.folder, self.epoch, self.checkpoint

        def construct() -> tuple[Trainer, Source[UnrollKey], bytes]:
            trainer = Trainer(settings, folder.path, folder.crash, epoch=epoch, spec=spec, checkpoint=checkpoint)
            config = settings.learner
            source: Source[UnrollKey] = QueueSource(
                trainer.record, batch=config.batch, num_buffers=config.buffers, weights=self.weights
            )
            trainer.use(source.buffers)
            return trainer, source, trainer.weights()[1]

        self.worker.submit(construct, lambda built: self._built(*built))

    def _built(self, trainer: Trainer, source: Source[UnrollKey], weights: bytes) -> None:
        now = self.loop.time()
        limit = self.config.max_frame_bytes
        if len(weights) > limit:
            raise ConfigError(f"weights of {len(weights)} bytes do not fit learner.max_frame_bytes = {limit}")
        self.run.adopt(trainer.policy.spec.statistics[len(GIVEN) :])
        if self.checkpoint is not None:
            self.record.submit(partial(self.folder.write_config, self.settings))
        self.trainer, self.source = trainer, source
        self.desk.adopt(trainer.policy.spec, source.check)
        self.publisher.describe(trainer.manifest.digest, trainer.manifest.to_json())
        self.run.start(now)
        self.figures.start(self.run.counters, now)
        self.saving.start(now)
        self._row_at = now + self.config.metrics_every_s
        self._newest_version = trainer.version
        self.service.log.info(
            "policy_ready", env_id=trainer.policy.spec.env_id, step=trainer.step, epoch=self.epoch,
            parameters=trainer.parameters.plan.num_trained, dtype=trainer.policy.precision.dtype,
        )  # fmt: skip
        self._publish(trainer.version, weights)
        self._perform(self.desk.credits(everyone=True))

    def _pump(self) -> None:
        """Copy what waits, hand full batches to the update thread, return credit."""
        if self.source is not None:
            for key in self.source.fill():
                self.ledger.copied(key.producer, key.seq)
            while self.run.may_train and not self.service.stopping.is_set():
                batch = self.source.take()
                if batch is None:
                    break
                self._submit(batch)
        self._perform(self.desk.credits())

    def _submit(self, batch: FilledBatch[UnrollKey]) -> None:
        trainer = self.trainer
        assert trainer is not None
        self._submitted += 1
        publishes = self._submitted % self.config.publish_every == 0
        wants_snapshot = self.saving.is_due(self.loop.time())
        if is_for_evaluation := not self._is_preparing_evaluation and self.run.wants_evaluation():
            self._is_preparing_evaluation = publishes = wants_snapshot = True
        self._in_flight += 1
        scale_B = reward_scales(self.settings.tasks, [(key.producer.task, lanes) for key, lanes in batch.parts])
        self.worker.submit(
            lambda: trainer.train(
                batch.index, wants_weights=publishes, wants_snapshot=wants_snapshot, reward_scale_B=scale_B
            ),
            lambda trained: self._trained(batch, trained, is_for_evaluation=is_for_evaluation),
        )

    def _trained(self, batch: FilledBatch[UnrollKey], trained: Trained, *, is_for_evaluation: bool) -> None:
        self._in_flight -= 1
        result = trained.result
        assert self.source is not None
        self.source.release(batch)
        for key, lanes in self.source.used():
            self.ledger.applied(key.producer, key.seq, lanes)
        if result.dropped_steps:
            self.reporter.count_drops(batch, result.dropped_steps_B.tolist())
        self.run.trained(
            result.valid_steps, updates=int(result.applied), dropped_steps=result.stale_steps,
            lost_epoch_steps=result.lost_epoch_steps, expired_unrolls=result.dropped_unrolls,
            lag_mean=result.metrics.get("lag_mean", 0.0), lag_max=result.metrics.get("lag_max", 0.0),
            lag_histogram=result.lag_histogram, lag_sum=result.lag_sum,
        )  # fmt: skip
        if self.run.tasks.are_several:
            parts = [(key.producer.task, lanes) for key, lanes in batch.parts]
            count_parts(self.run.tasks, parts, result.trained_steps_B.tolist())
        self.figures.trained(trained)
        self.update_seconds.observe(trained.seconds)
        self._newest_version = trained.version
        snapshot = self._stamped(trained.snapshot) if trained.snapshot is not None else None
        if is_for_evaluation:
            self._is_preparing_evaluation = False
        if is_for_evaluation and snapshot is not None and trained.weights is not None and self.run.may_train:
            self._ask_evaluation(snapshot, trained.weights)
        elif trained.weights is not None:
            self._publish(trained.version, trained.weights)
        if snapshot is not None:
            self._save(snapshot, self.saving.kinds(snapshot))
        self._poll_run()
        self._pump()

    def _ask_evaluation(self, snapshot: Snapshot, weights: bytes) -> None:
        """Have these weights evaluated: they are kept, published and saved as one.

        The evaluation is told of before the weights, so that inference can freeze them as they come.
        """
        self.run.ask(snapshot.version, self.loop.time())
        assert self.run.evaluation is not None
        self.saving.measured(self.run.evaluation.id, snapshot)
        self._poll_run()
        self._publish(snapshot.version, weights)
        self.publisher.keep()

    def _publish(self, version: int, weights: bytes) -> None:
        self._perform(self.desk.answers(self.publisher.publish(version, weights)))

    # The run

    def _poll_run(self) -> None:
        """Let the run move on; tell everyone when its state or its evaluation changed."""
        if self.trainer is None:
            return
        run = self.run
        is_published = self.publisher.version == self._newest_version
        run.poll(self.publisher.version, self.loop.time(), is_idle=self._in_flight == 0 and is_published)
        if not run.may_train and self._in_flight == 0 and not is_published and not self._is_exporting:
            self._is_exporting = True
            self.worker.submit(self.trainer.weights, lambda newest: self._exported(*newest))
        if not run.may_train and self.saving.is_due(self.loop.time()):
            self.worker.submit(self.trainer.snapshot, self._snapshot_came)
        if (run.state, run.evaluation) == self._told:
            return
        self._told = (run.state, run.evaluation)
        missing = run.tasks.missing() if run.end_reason == "no_evaluation" else []
        self.service.log.info("run_moved", state=run.state.name.lower(), reason=run.end_reason, not_evaluated=missing)
        self._perform(self.desk.credits(everyone=True))
        if run.state == RunState.FINISHED:
            self.finished.set()

    def _exported(self, version: int, weights: bytes) -> None:
        self._is_exporting = False
        self._publish(version, weights)
        self._poll_run()

    def _snapshot_came(self, snapshot: Snapshot) -> None:
        snapshot = self._stamped(snapshot)
        self._save(snapshot, self.saving.kinds(snapshot))

    def _stamped(self, snapshot: Snapshot) -> Snapshot:
        """With what the run counts now, which belongs to these weights whenever they are written."""
        meta = checkpoint_meta(self.run, self.ledger, self.lives, run_id=self.run_id)
        return replace(snapshot, meta={**snapshot.meta, **meta})

    def _save(self, snapshot: Snapshot, kinds: Sequence[checkpoints.Kind], **meta: float) -> None:
        for kind in kinds:
            self.record.submit(partial(self.keeper.save, snapshot, kind, **meta))

    # Time

    async def beat(self) -> None:
        """Long-polls, leases, rows, checkpoints, and the watch over the update thread; for ever."""
        while True:
            await asyncio.sleep(BEAT_S)
            now = self.loop.time()
            calm = now >= self.reactor.last_stall_end(now) + self.config.beat_s
            self._perform(self.desk.beat(now, may_judge=calm and self.router.is_drained()))
            if self.worker.busy_s() > self.config.max_compute_s and self.run.counters.updates > 0:
                raise SeedbedError(
                    f"an update has been running for {self.worker.busy_s():.0f} s (learner.max_compute_s is "
                    f"{self.config.max_compute_s:g}): the update thread is stuck"
                )
            if self.trainer is None:
                continue
            self._poll_run()
            self._pump()
            self._tell_wait(now)
            if now >= self._row_at:
                self._row_at = now + self.config.metrics_every_s
                self.write_row(now)

    def _tell_wait(self, now: float) -> None:
        """Say every ten seconds that all is trained and that the final evaluation is waited for."""
        wait, evaluation = self.run.final_evaluation_wait(now), self.run.evaluation
        if wait is None or evaluation is None or now < self._tell_at:
            return
        self._tell_at = now + TELL_S
        waited_s, at_most_s = wait
        self.service.log.info(
            "final_evaluation_awaited", episodes=evaluation.episodes, waited_s=round(waited_s),
            at_most_s=round(at_most_s), hint="groups of mode eval play it; inference says if none is connected",
        )  # fmt: skip

    def write_row(self, now: float) -> None:
        """Have the record thread append a row of now to metrics.csv."""
        row = self.reporter.row(now)
        self.record.submit(lambda: self.keeper.row(row))

    async def leave(self) -> None:
        """Named phases: save, summarise, say goodbye, wait until a finished run's producers have left."""
        is_finished = self.run.state == RunState.FINISHED
        self._perform(self.desk.credits(everyone=True))
        self._perform(self.desk.farewell("run_finished" if is_finished else "draining"))
        if self.trainer is not None:
            # All of one moment, without an await: steps that are still told of later count in none of them.
            snapshot = self._stamped(await self._finish_job(self.worker, self.trainer.snapshot))
            row = self.reporter.row(self.loop.time())
            summary = self.reporter.summary(device=str(self.trainer.parameters.flat.device))
            summary |= {"precision": asdict(self.trainer.policy.precision), "epoch": self.epoch}
            await self._finish_job(self.record, lambda: self.keeper.save_last(snapshot))
            await self._finish_job(self.record, lambda: self.keeper.row(row))
            await self._finish_job(self.record, lambda: self.keeper.summarise(summary))
            try:
                await self._finish_job(self.record, self.keeper.draw)
            except TimeoutError:  # many tasks, a busy machine: a picture is no reason to fail a run
                self.service.log.warning("curves_late", after_s=MAX_SAVE_S)
        if is_finished:
            deadline = self.loop.time() + self.config.farewell_s
            farewell = Farewell(self.config.finished_s, self.loop.time())
            farewell.heard(self.loop.time())
            while ((now := self.loop.time()) < deadline and not self.desk.has_left) or self._goes_on(farewell, now):
                self._perform(self.desk.beat(now, may_judge=True))
                await asyncio.sleep(BEAT_S)
        self.service.log.info(
            "learner_left", state=self.run.state.name.lower(), reason=self.run.end_reason,
            trained_steps=self.run.counters.trained_steps, dropped_by_actor=self.reporter.dropped_by_actor,
        )  # fmt: skip

    def _goes_on(self, farewell: Farewell, now: float) -> bool:
        """Whether somebody may still come who has to be told of the run's end."""
        if not self.desk.has_left:
            farewell.heard(now)
        return not farewell.is_over(now) and not self.service.stopping.is_set()

    async def _finish_job(self, worker: Worker, job: Callable[[], R]) -> R:
        """Run a job after all that is queued; their `done` calls have been made when it returns."""
        came: asyncio.Future[R] = self.loop.create_future()
        worker.submit(job, came.set_result)
        either: list[asyncio.Future[Any]] = [came, worker.failed]
        async with asyncio.timeout(MAX_SAVE_S):
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not came.done():
            worker.failed.result()
        return came.result()

    def close(self) -> None:
        """Let go of threads, files and socket."""
        self.router.close(linger_ms=500)
        self.worker.close()
        self.record.submit(self.keeper.close)
        self.record.close()


async def serve(settings: LearnerSettings, service: Service) -> int:
    """Run until the run ends, a signal comes, or something cannot go on."""
    path = settings.run.dir or Path("runs") / f"{settings.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with RunFolder(path) as folder:
        if finished := finished_before(settings.run, folder):
            service.log.warning("run_already_finished", folder=str(path), **finished, hint=HOW_TO_GO_ON)
            await tell_finished(settings.learner, service)
            return 0
        with Reactor() as reactor:
            learner = LearnerService(settings, service, reactor, folder)
            try:
                with Deaths(folder.path, lambda: _saved_update(folder)):
                    await _work(learner, service)
            finally:
                learner.close()
    return 0


def _saved_update(folder: RunFolder) -> int:
    """Where the next life begins; 0 if nothing is saved."""
    files = checkpoints.list_checkpoints(folder.checkpoints)
    return max((file.step for file in files if file.kind != "best"), default=0)


async def _work(learner: LearnerService, service: Service) -> None:
    if learner.checkpoint is not None:
        learner.build(None)
    service.ready(endpoint=learner.router.endpoint, run_id=learner.run_id)
    beat = service.start(learner.beat(), "beat")
    waits = [
        asyncio.create_task(learner.finished.wait(), name="finished"),
        asyncio.create_task(service.stopping.wait(), name="stopping"),
    ]
    try:
        failures: list[asyncio.Future[Any]] = [learner.worker.failed, learner.record.failed]
        done, _ = await asyncio.wait([*waits, *failures], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        beat.cancel()
        await learner.leave()
    finally:
        for task in waits:
            task.cancel()
