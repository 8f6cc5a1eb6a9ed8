"""The learner process: one socket, the threads of updates, record and rounds, and timers around pure parts.

Inference services dial in (ROUTER), and `ProducerSessions` answers them. The policy and `Training` are built for the
specification of the first environments or of a checkpoint.
"""

import asyncio
import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seedbed.learner_svc.algorithms.registry import make_source, recording_of
from seedbed.learner_svc.config import LearnerSettings, check_deterministic, check_update_time
from seedbed.learner_svc.finished import tell_finished
from seedbed.learner_svc.learning.trainer import Trainer
from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.link.admission import Identity
from seedbed.learner_svc.link.producer_sessions import (
    ProducerSessions,
    SpecificationReceived,
    UnrollKey,
    UnrollReceived,
)
from seedbed.learner_svc.link.producer_socket import ProducerSocket, Received
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.link.sizes import check_size
from seedbed.learner_svc.metrics import register, register_ranks
from seedbed.learner_svc.ranks.rank_service import serve_rank
from seedbed.learner_svc.ranks.ranks import ALONE, CHIEF, Ranks, place_of
from seedbed.learner_svc.ranks.rounds import Meeting, Order, Rounds
from seedbed.learner_svc.ranks.start import Told, advertised, check_addresses, join
from seedbed.learner_svc.reporting import Reporter
from seedbed.learner_svc.run import checkpoint as checkpoints
from seedbed.learner_svc.run.folder import RunFolder
from seedbed.learner_svc.run.history import History
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.standstill import CrashCounter
from seedbed.learner_svc.run.tasks import TaskBook, task_environments
from seedbed.learner_svc.run.writer import RestartCounter, RunWriter, finished_before, producer_records, restore
from seedbed.learner_svc.sources.source import FilledBatch, Source
from seedbed.learner_svc.training import Parts, Training
from seedbed.shared.errors import CheckpointError, ConfigError
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.policy.acting import Recording
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import PROTOCOL_MIN, RANKS_PROTOCOL, RECORDING_PROTOCOL, RunState
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.statistics import GIVEN
from seedbed.shared.runtime.linger import LingerTimer
from seedbed.shared.runtime.memory import available_bytes
from seedbed.shared.runtime.processors import MachineLoad
from seedbed.shared.runtime.service import Service, wait_unless_failed
from seedbed.shared.runtime.tasks import normalised_weights
from seedbed.shared.runtime.worker import Worker
from seedbed.shared.scores.published import published_scale

BEAT_S = 0.1
Construction = tuple[Trainer, Source[UnrollKey], bytes]  # and the first weights to publish
HOW_TO_GO_ON = (
    "to continue it, raise what ended it (run.steps, run.seconds, run.until_return or run.until); for a new run, set "
    "run.dir"
)


class LearnerService:
    """The asyncio shell: feeds events to the parts and performs their actions. Owned by the loop.

    Large because all side effects are here: socket, threads, run folder, timers and the shutdown.
    """

    def __init__(
        self, settings: LearnerSettings, service: Service, reactor: Reactor, folder: RunFolder, ranks: Ranks = ALONE
    ) -> None:
        self.settings, self.service, self.reactor, self.folder = settings, service, reactor, folder
        self.config = config = settings.learner
        self.loop = asyncio.get_running_loop()
        self.ranks = ranks
        check_deterministic(settings.run, settings.learner, settings.tasks, num_ranks=ranks.size)
        self.epoch, self.run_id = folder.next_epoch(), folder.run_id()
        if settings.run.deterministic and self.epoch > 1:
            raise ConfigError(
                f"run.deterministic: {folder.path} has had a learner before, and a run that goes on is not the same as "
                "one that never stopped: start a new run, or set run.deterministic = false"
            )
        checkpoints.clean(folder.checkpoints)
        self.checkpoint = checkpoints.load_latest(folder.checkpoints, check=self._check_restorable)
        if self.checkpoint is None:  # a resume writes it once it is accepted, so that a refused one changes nothing
            folder.write_config(settings)
        folder.write_versions(self.epoch)
        self.run, self.ledger = self._new_run(), self._new_ledger()
        publisher = Publisher()
        recording = recording_of(settings.algorithm, config.unroll_length)
        is_plain = recording == Recording(unroll_length=config.unroll_length)  # whether protocol 1 can record it
        identity = Identity(
            self.epoch, self.run_id, settings.run.seed, config.unroll_length, config.beat_s, config.lease_s,
            tasks=task_environments(settings.tasks),
            protocol_min=RANKS_PROTOCOL if not ranks.is_alone else PROTOCOL_MIN if is_plain else RECORDING_PROTOCOL,
            is_deterministic=settings.run.deterministic, num_ranks=ranks.size,
        )  # fmt: skip
        self.worker, self.record = Worker("update"), Worker("record")
        self.producers = ProducerSessions(
            identity, settings.env, self.ledger, publisher, self.run, self.worker.busy_s,
            check_size=lambda spec: check_size(
                spec, config, available_bytes(), minibatches=settings.passes[1], overlap=recording.overlap
            ),
        )  # fmt: skip
        self.restarts = RestartCounter(self.producers.incarnations)
        if self.checkpoint is not None:
            self._restore(self.checkpoint)
        counters = self.run.counters
        history = History(
            folder.path, updates=counters.updates, trained_steps=counters.trained_steps, tensorboard=config.tensorboard
        )
        writer = RunWriter(folder, history, keep=config.keep_checkpoints)
        figures = UpdateMetrics()
        reporter = Reporter(
            settings, self.run, self.producers, self.restarts, figures,
            loop_lag_s=lambda: reactor.statistics().loop_lag_s, busy_s=self.worker.busy_s,
            machine_share=MachineLoad().busy_share, warn=service.log.warning,
        )  # fmt: skip
        self.parts = Parts(
            settings=settings, service=service, run_id=self.run_id, run=self.run, ledger=self.ledger,
            publisher=publisher, producers=self.producers, restarts=self.restarts, writer=writer, figures=figures,
            reporter=reporter,
            update_seconds=register(service.metrics, self.run, self.producers, figures, writer, reactor),
            worker=self.worker, record=self.record, rounds=None if ranks.is_alone else self._make_rounds(),
        )  # fmt: skip
        if not ranks.is_alone:
            register_ranks(service.metrics, lambda: reporter.ranks)
        self.training: Training | None = None  # set once there is a policy
        self.finished, self.ranks_left = asyncio.Event(), asyncio.Event()
        self._is_building = self._ends = False
        self._origin: EnvSpec | checkpoints.Checkpoint | None = None  # of the policy that the next round builds
        self._construction: Construction | None = None
        self.socket = ProducerSocket(
            reactor, service, config, self.producers, on_received=self._received, on_drained=self._drained,
            now=self.loop.time,
        )  # fmt: skip
        self.socket.is_listening = ranks.is_alone  # else once the addresses of the others are known

    def _new_run(self) -> Run:
        settings = self.settings
        return Run(
            settings.run, settings.eval, epoch=self.epoch, patience_s=self.config.evaluation_patience_s,
            tasks=TaskBook(settings.tasks, settings.eval), scale=published_scale(settings.eval.own_env(settings.env)),
        )  # fmt: skip

    def _new_ledger(self) -> Ledger:
        return Ledger(
            epoch=self.epoch, window_lanes=self.settings.window_lanes, lease_s=self.config.lease_s,
            weights=normalised_weights(self.settings.tasks),
        )  # fmt: skip

    def _check_restorable(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Try to restore a checkpoint into copies that are not used. Raises: CheckpointError."""
        run, restarts = self._new_run(), RestartCounter({})
        try:
            restore(checkpoint.meta, run, self._new_ledger(), restarts)
            json.dumps([run.to_json(), restarts.to_json()], allow_nan=False)  # as the next checkpoint does
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise CheckpointError(
                f"{checkpoint.path} holds no run that this version of seedbed can resume ({problem})"
            ) from error

    def _restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        restore(checkpoint.meta, self.run, self.ledger, self.restarts, num_ranks=self.ranks.size)
        for file in checkpoints.list_checkpoints(self.folder.checkpoints):
            if file.kind == "best":  # it may be newer than the checkpoint that is resumed
                with suppress(CheckpointError):
                    self.run.beat(checkpoints.read_meta(file.path).get("eval_return_mean"))

    # Messages

    def _received(self, action: Received) -> None:
        if isinstance(action, SpecificationReceived):
            self.build(self.checkpoint or action.spec)
        elif self.training is None:  # no producer sends experience before there is a policy
            return
        elif isinstance(action, UnrollReceived):
            self.training.take_unroll(action)
        else:
            self.training.take_episodes(action)

    def _drained(self) -> None:
        """Called when all messages that have arrived were handled."""
        if self.training is not None:
            self.training.pump()
        else:
            self.socket.perform(self.producers.credits())

    # The policy

    def build(self, origin: EnvSpec | checkpoints.Checkpoint) -> None:
        """Build the policy in the update thread, once: for a specification, or from a checkpoint."""
        if self._is_building:
            return
        self._is_building, self._origin = True, origin
        if self.parts.rounds is not None:
            self.parts.rounds.poll()
        else:
            self.worker.submit(self._construct, lambda _: self._constructed())

    def _construct(self) -> None:
        """Make what `_constructed` takes over; in the update thread, with several ranks at the same time as all."""
        settings, folder, origin = self.settings, self.folder, self._origin
        assert origin is not None
        trainer = Trainer(settings, folder.path, folder.crash, epoch=self.epoch, origin=origin, ranks=self.ranks)
        source: Source[UnrollKey] = make_source(settings, trainer.record, folder.path, device=trainer.updater.device)
        self._construction = trainer, source, trainer.weights()[1]

    def _constructed(self) -> None:
        if self._construction is not None:
            construction, self._construction, self._origin = self._construction, None, None
            self._built(*construction)

    # Several ranks

    def _make_rounds(self) -> Rounds[FilledBatch[UnrollKey]]:
        return Rounds(
            self.ranks,
            self.worker,
            offer=lambda: self.training.offer() if self.training is not None else None,
            order=self._order,
            ledger=lambda: b"",  # the chief's own is in its checkpoint already
            met=self._met,
            build=self._construct,
        )

    def _order(self) -> Order:
        training = self.training
        return Order(
            trains=training is not None and training.may_take,
            wants_ledgers=training is not None and training.take_ledger_request(),
            builds=self._origin is not None,
            ends=self._ends,
            state=self.run.state,
        )

    def _met(self, meeting: Meeting) -> None:
        self._constructed()
        self.parts.reporter.ranks = meeting.figures
        if self.training is not None:
            self.training.met(meeting)
        if meeting.wants_end:
            self.service.stop("another learner rank was asked to stop")
        if self.parts.rounds is not None and self.parts.rounds.is_over:
            self.ranks_left.set()

    async def meet_ranks(self) -> None:
        """Tell the other ranks what they train, learn their addresses, and begin the rounds."""
        rounds = self.parts.rounds
        if rounds is None:
            return
        producers = self.checkpoint.meta["producers"] if self.checkpoint is not None else ()
        news = told(self.settings, self.folder.path, producers, epoch=self.epoch, run_id=self.run_id)
        own = advertised(self.settings, self.socket.endpoint, news.host, news.host)

        def meet() -> list[bytes]:
            self.ranks.tell(news.encode())
            return self.ranks.gather_bytes(own.encode())

        answers = await self.service.unless_stopped(meet)
        if answers is None:
            return
        addresses = [address.decode() for address in answers]
        check_addresses(addresses)
        ranks = tuple(addresses[1:])
        self.producers.identity = replace(self.producers.identity, ranks=ranks)
        self.service.log.info("ranks_met", number=self.ranks.size, addresses=list(ranks))
        self.socket.is_listening = True
        rounds.begin()

    async def _dismiss_ranks(self) -> None:
        """End the rounds; the other ranks leave, and their ledgers are here."""
        rounds = self.parts.rounds
        if rounds is None or not rounds.has_begun:
            return
        self._ends = True
        rounds.poll()
        await wait_unless_failed(self.ranks_left, self.worker)

    def _built(self, trainer: Trainer, source: Source[UnrollKey], weights: bytes) -> None:
        limit = self.config.max_frame_bytes
        if len(weights) > limit:
            raise ConfigError(
                f"learner.max_frame_bytes = {limit}: set it to at least {len(weights)}, the size of the weights"
            )
        self.run.adopt(trainer.policy.spec.statistics[len(GIVEN) :])
        if self.checkpoint is not None:
            self.record.submit(partial(self.folder.write_config, self.settings))
        self.producers.adopt(trainer.policy.spec, source.check)
        self.parts.publisher.describe(trainer.manifest.digest, trainer.manifest.to_json())
        self.training = Training(
            self.parts,
            trainer,
            source,
            perform=self.socket.perform,
            on_finished=self.finished.set,
            now=self.loop.time(),
        )
        self.service.log.info(
            "policy_ready", env_id=trainer.policy.spec.env_id, step=trainer.step, epoch=self.epoch,
            parameters=trainer.parameters.plan.num_trained, dtype=trainer.policy.precision.dtype,
            allow_tf32=trainer.policy.precision.tf32, device=str(trainer.updater.device),
        )  # fmt: skip
        if self.settings.run.deterministic:
            self.service.log.info(
                "deterministic",
                hint="acting and training take turns, so that the same seed gives the same weights; slower",
            )
        if found := source.describe():
            self.service.log.info("source_ready", **found)
        self.training.publish(trainer.version, weights)
        self.socket.perform(self.producers.credits(everyone=True))

    # Time

    async def beat(self) -> None:
        """Every BEAT_S: answer long-polls, end leases, write rows, save checkpoints, watch the update thread."""
        while True:
            await asyncio.sleep(BEAT_S)
            now = self.loop.time()
            calm = now >= self.reactor.last_stall_end(now) + self.config.beat_s
            self.socket.perform(self.producers.beat(now, may_expire=calm and self.socket.is_drained()))
            if self.run.counters.updates > 0:
                check_update_time(self.config, self.worker.busy_s(), waits_for_ranks=not self.ranks.is_alone)
            if self.training is not None:
                self.training.beat(now)

    async def leave(self) -> None:
        """Shut down in phases: save, summarise, send BYE, and wait until the producers of a finished run have left."""
        is_finished = self.run.state == RunState.FINISHED
        self.socket.perform(self.producers.credits(everyone=True))
        self.socket.perform(self.producers.farewell("run_finished" if is_finished else "draining"))
        await self._dismiss_ranks()
        if self.training is not None:
            await self.training.save_last()
        if is_finished:
            deadline = self.loop.time() + self.config.farewell_s
            farewell = LingerTimer(self.config.finished_s, self.loop.time())
            farewell.heard(self.loop.time())
            while ((now := self.loop.time()) < deadline and not self.producers.has_left) or self._goes_on(
                farewell, now
            ):
                self.socket.perform(self.producers.beat(now, may_expire=True))
                await asyncio.sleep(BEAT_S)
        self.service.log.info(
            "learner_left", state=self.run.state.name.lower(), reason=self.run.end_reason,
            trained_steps=self.run.counters.trained_steps, dropped_by_actor=self.parts.reporter.dropped_by_actor,
        )  # fmt: skip

    def _goes_on(self, farewell: LingerTimer, now: float) -> bool:
        """Whether a producer may still connect that has to be told of the end of the run."""
        if not self.producers.has_left:
            farewell.heard(now)
        return not farewell.is_over(now) and not self.service.stopping.is_set()

    def close(self) -> None:
        """Close threads, files and the socket."""
        self.socket.close(linger_ms=500)
        self.producers.close()
        if self.parts.rounds is not None:
            self.parts.rounds.close()
        self.worker.close()
        self.record.submit(self.parts.writer.close)
        self.record.close()


async def serve(settings: LearnerSettings, service: Service) -> int:
    """Run a learner until the run ends or a signal comes, and return the exit code.

    Of several learner ranks, rank 0 is the one that is served here.
    """
    if place_of()[0] != CHIEF:
        return await serve_rank(settings, service)
    path = settings.run.dir or Path("runs") / f"{settings.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with RunFolder(path) as folder:
        finished = finished_before(settings.run, folder)
        ranks = await service.unless_stopped(lambda: join(settings.learner))
        if ranks is None:
            return 0
        if finished:
            news = told(settings, folder.path, (), is_finished=True).encode()
            await service.unless_stopped(lambda: ranks.tell(news))
            service.log.warning("run_already_finished", folder=str(path), **finished, hint=HOW_TO_GO_ON)
            await tell_finished(settings.learner, service)
            return 0
        with Reactor() as reactor:
            learner = LearnerService(settings, service, reactor, folder, ranks)
            try:
                with CrashCounter(folder.path, lambda: _saved_update(folder)):
                    await _work(learner, service)
            finally:
                learner.close()
        ranks.close()
    return 0


def told(
    settings: LearnerSettings, folder: Path, producers: Sequence[Mapping[str, Any]], *, epoch: int = 0,
    run_id: str = "", is_finished: bool = False,
) -> Told:  # fmt: skip
    """Return what this chief tells the other ranks."""
    return Told(
        epoch=epoch, run_id=run_id, host=socket.gethostname(), is_finished=is_finished, folder=str(folder.resolve()),
        settings=settings.model_dump(mode="json"), producers=tuple(producer_records(producers)),
    )  # fmt: skip


def _saved_update(folder: RunFolder) -> int:
    """Return the update that a restarted learner resumes from; 0 if nothing is saved."""
    files = checkpoints.list_checkpoints(folder.checkpoints)
    return max((file.step for file in files if file.kind != "best"), default=0)


async def _work(learner: LearnerService, service: Service) -> None:
    await learner.meet_ranks()
    if learner.checkpoint is not None:
        learner.build(learner.checkpoint)
    service.ready(endpoint=learner.socket.endpoint, run_id=learner.run_id)
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
