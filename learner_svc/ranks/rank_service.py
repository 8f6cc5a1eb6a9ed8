"""A learner rank other than the chief: it takes unrolls from inference, and trains on them together with the others.

What it trains, when and for how long is the chief's decision, told in every round. It publishes nothing and writes no
run folder; its ledger is in the chief's checkpoints.
"""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from seedbed.learner_svc.algorithms.registry import make_source, recording_of
from seedbed.learner_svc.config import LearnerSettings, check_update_time
from seedbed.learner_svc.learning.trainer import ChiefPolicy, Trained, Trainer
from seedbed.learner_svc.link.admission import Identity
from seedbed.learner_svc.link.producer_sessions import ProducerSessions, UnrollKey, UnrollReceived
from seedbed.learner_svc.link.producer_socket import ProducerSocket, Received
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.link.sizes import check_size
from seedbed.learner_svc.metrics import register_rank
from seedbed.learner_svc.ranks.ranks import Ranks
from seedbed.learner_svc.ranks.rounds import Meeting, Offer, Order, Rounds
from seedbed.learner_svc.ranks.start import Told, advertised, check_addresses, join, settings_of_rank
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.tasks import TaskBook, lane_tasks, task_environments
from seedbed.learner_svc.run.writer import of_rank
from seedbed.learner_svc.sources.batch_buffer import BatchBuffer, batch_buffers
from seedbed.learner_svc.sources.source import FilledBatch, Origin, Source
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import RANKS_PROTOCOL, RunState
from seedbed.shared.runtime.memory import available_bytes
from seedbed.shared.runtime.service import Service, wait_unless_failed
from seedbed.shared.runtime.tasks import normalised_weights
from seedbed.shared.runtime.worker import Worker

BEAT_S = 0.1
CRASH = "crash"


class RankService:
    """The asyncio shell of a rank. Owned by the loop.

    Large because all its side effects are here: socket, update thread, timers and the shutdown.
    """

    def __init__(self, settings: LearnerSettings, service: Service, reactor: Reactor, ranks: Ranks, told: Told) -> None:
        self.settings, self.service, self.reactor, self.ranks, self.told = settings, service, reactor, ranks, told
        self.config = config = settings.learner
        self.loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self.folder = Path(told.folder) / f"rank-{ranks.rank}"  # for replay files and crashes
        self.ledger = Ledger(
            epoch=told.epoch, window_lanes=settings.window_lanes, lease_s=config.lease_s,
            weights=normalised_weights(settings.tasks),
        )  # fmt: skip
        self.ledger.restore(of_rank(told.producers, ranks.rank, ranks.size))
        self.run = Run(
            settings.run, settings.eval, epoch=told.epoch, patience_s=config.evaluation_patience_s,
            tasks=TaskBook(settings.tasks, settings.eval),
        )  # fmt: skip
        recording = recording_of(settings.algorithm, config.unroll_length)
        identity = Identity(
            told.epoch, told.run_id, settings.run.seed, config.unroll_length, config.beat_s, config.lease_s,
            tasks=task_environments(settings.tasks), protocol_min=RANKS_PROTOCOL, rank=ranks.rank,
            num_ranks=ranks.size,
        )  # fmt: skip
        self.worker = Worker("update")
        self.producers = ProducerSessions(
            identity, settings.env, self.ledger, Publisher(), self.run, self.worker.busy_s,
            check_size=lambda spec: check_size(
                spec, config, available_bytes(), minibatches=settings.passes[1], overlap=recording.overlap
            ),
        )  # fmt: skip
        self.update_seconds = register_rank(service.metrics, self.producers, reactor)
        self.trainer: Trainer | None = None  # set in the update thread, in the round in which the chief has built it
        self._made_source: Source[UnrollKey] | None = None  # likewise
        self._source: Source[UnrollKey] | None = None  # from when on unrolls are taken
        self._batches: list[BatchBuffer] = []
        self._is_pumping_soon = False
        self.rounds: Rounds[FilledBatch[UnrollKey]] = Rounds(
            ranks, self.worker, offer=self._offer, order=Order, ledger=self._ledger_bytes, met=self._met,
            build=self._build,
        )  # fmt: skip
        self.socket = ProducerSocket(
            reactor, service, config, self.producers, on_received=self._received, on_drained=self._pump,
            now=self.loop.time,
        )  # fmt: skip

    def _received(self, action: Received) -> None:
        """Take a new unroll. The policy is built for the chief's specification; episodes come to the chief alone."""
        if isinstance(action, UnrollReceived) and self._source is not None:
            producer = action.key.producer
            self._source.offer(
                action.key, action.lanes, action.frame, skip=action.skip, task=producer.task,
                origin=Origin(producer.incarnation, action.key.seq),
            )  # fmt: skip

    # Training

    def _build(self) -> None:
        """Build what the chief has built; in the update thread, at the same time as all ranks."""
        origin = ChiefPolicy.decode(self.ranks.tell(b""))
        crash_folder = self.folder / CRASH if self.folder.parent.is_dir() else None
        self.trainer = Trainer(
            self.settings, self.folder, crash_folder, epoch=self.told.epoch, origin=origin, ranks=self.ranks
        )
        self._made_source = make_source(
            self.settings, self.trainer.record, self.folder, rank=self.ranks.rank, device=self.trainer.updater.device
        )

    def _serve(self, trainer: Trainer, source: Source[UnrollKey]) -> None:
        """Take unrolls from now on."""
        rank = self.ranks.rank
        self._batches = batch_buffers(trainer.record, source.buffers, trainer.updater.device)
        self.producers.adopt(trainer.policy.spec, source.check)
        self.run.counters.trained_steps = trainer.trained_steps
        self._source = source
        self.service.log.info("policy_ready", env_id=trainer.policy.spec.env_id, step=trainer.step, rank=rank)

    def _pump(self) -> None:
        """Fill batches, go into the next round with a full one, and return credit."""
        self.rounds.poll()  # first: the other ranks wait for this one
        if self._source is not None:
            for key in self._source.fill():
                self.ledger.copied(key.producer, key.seq)
            self._acknowledge(self._source)
            if self._source.has_more and not self._is_pumping_soon:
                self._is_pumping_soon = True
                self.loop.call_soon(self._pump_on)
        self.rounds.poll()
        self.socket.perform(self.producers.credits())

    def _pump_on(self) -> None:
        self._is_pumping_soon = False
        self._pump()

    def _acknowledge(self, source: Source[UnrollKey]) -> None:
        for key, lanes in source.used():
            self.ledger.applied(key.producer, key.seq, lanes)

    def _offer(self) -> Offer[FilledBatch[UnrollKey]] | None:
        trainer, source = self.trainer, self._source
        batch = source.take() if source is not None else None
        if batch is None or trainer is None or source is None:
            return None
        self._batches[batch.index].send()
        task_B = lane_tasks(self.settings.tasks, batch.tasks)

        def done(trained: Trained) -> None:
            source.release(batch, trained.result.priorities_B)
            self._acknowledge(source)
            self.update_seconds.observe(trained.seconds)
            self.run.counters.updates += int(trained.result.applied)
            self.run.counters.trained_steps = trainer.trained_steps
            self._pump()

        return Offer(
            batch=batch,
            count=lambda: trainer.count(self._batches[batch.index], task_B=task_B, fresh_B=batch.fresh_B),
            agree=trainer.agree,
            train=lambda counted, counts: trainer.train(
                counted,
                counts,
                wants_weights=False,
                wants_snapshot=False,
                weight_B=batch.weight_B,
                begun=self.worker.hand_back,
            ),
            done=done,
        )

    def _ledger_bytes(self) -> bytes:
        return json.dumps([asdict(record) for record in self.ledger.records()]).encode()

    def _met(self, meeting: Meeting) -> None:
        """Follow what the chief has decided in a round."""
        if meeting.order.builds and self.trainer is not None and self._made_source is not None:
            self._serve(self.trainer, self._made_source)
        if self._source is not None and self.run.state != meeting.order.state:
            self.run.state = meeting.order.state
            self.socket.perform(self.producers.credits(everyone=True))
        if self.rounds.is_over:
            self.over.set()

    # Time

    async def beat(self) -> None:
        """Every BEAT_S: end leases, return credit, and watch the update thread."""
        while True:
            await asyncio.sleep(BEAT_S)
            now = self.loop.time()
            calm = now >= self.reactor.last_stall_end(now) + self.config.beat_s
            self.socket.perform(self.producers.beat(now, may_expire=calm and self.socket.is_drained()))
            if self.run.counters.updates > 0:
                check_update_time(self.config, self.worker.busy_s(), waits_for_ranks=True)
            if self.service.stopping.is_set():
                self.rounds.wants_end = True
            self._pump()

    async def work(self) -> None:
        """Train until the chief ends it. Raises: RankLostError if another rank is lost."""
        self.rounds.begin()
        await wait_unless_failed(self.over, self.worker)

    async def leave(self) -> None:
        """Say BYE to the producers; of a finished run, wait until they have left."""
        is_finished = self.run.state == RunState.FINISHED
        if not is_finished:
            self.service.stop("the chief was asked to stop")
        self.socket.perform(self.producers.credits(everyone=True))
        self.socket.perform(self.producers.farewell("run_finished" if is_finished else "draining"))
        deadline = self.loop.time() + (self.config.farewell_s if is_finished else 0.0)
        while self.loop.time() < deadline and not self.producers.has_left:
            self.socket.perform(self.producers.beat(self.loop.time(), may_expire=True))
            await asyncio.sleep(BEAT_S)
        self.service.log.info("learner_rank_left", rank=self.ranks.rank, state=self.run.state.name.lower())

    def close(self) -> None:
        """Close the threads and the socket."""
        self.socket.close(linger_ms=500)
        self.producers.close()
        self.rounds.close()
        self.worker.close()


async def serve_rank(settings: LearnerSettings, service: Service) -> int:
    """Run a rank until the chief ends it, and return the exit code. Raises: RankLostError if another rank is lost.

    It is ready before it has met the chief: a StatefulSet replaces rank 0 last, and only when the others are ready.
    """
    service.ready()
    ranks = await service.unless_stopped(lambda: join(settings.learner))
    news = None if ranks is None else await service.unless_stopped(lambda: ranks.tell(b""))
    if ranks is None or news is None or (told := Told.decode(news)).is_finished:
        return 0
    with Reactor() as reactor:
        rank = RankService(settings_of_rank(settings, told.settings), service, reactor, ranks, told)
        try:
            address = advertised(rank.settings, rank.socket.endpoint, told.host)
            addresses = await service.unless_stopped(lambda: ranks.gather_bytes(address.encode()))
            if addresses is None:
                return 0
            check_addresses([item.decode() for item in addresses])
            service.ready(endpoint=rank.socket.endpoint, run_id=told.run_id)
            beat = service.start(rank.beat(), "beat")
            await rank.work()
            beat.cancel()
            await rank.leave()
        finally:
            rank.close()
    ranks.close()
    return 0
