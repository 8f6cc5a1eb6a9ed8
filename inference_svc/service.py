"""The inference process: two sockets, the compute thread and timers around `Server` and `LearnerSessions`.

Environments dial this service (ROUTER); it dials the learner (DEALER). The loop decides and copies; `Compute` runs the
policy.
"""

import asyncio
import copy
import math
import socket
from collections.abc import Sequence
from functools import partial

import torch

from seedbed.inference_svc import metrics
from seedbed.inference_svc.actions import ForgetState, FreezeWeights, LaunchAt, RunBatches, SendToEnvironment
from seedbed.inference_svc.compute import Compute
from seedbed.inference_svc.config import InferenceConfig, InferenceSettings
from seedbed.inference_svc.counters import InferenceCounters
from seedbed.inference_svc.drain_check import DrainCheck
from seedbed.inference_svc.group import Group
from seedbed.inference_svc.learner_events import (
    CreditReceived,
    FormerWeightsReceived,
    Refused,
    RunFinished,
    RunReplaced,
    SpecificationRefused,
    WeightsReceived,
    Welcomed,
)
from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.rank_connections import RankConnections, send_unrolls
from seedbed.inference_svc.segment_offer import no_segment
from seedbed.inference_svc.server import Server
from seedbed.inference_svc.serving import ServedPolicy, ServedStatistics
from seedbed.shared import __version__
from seedbed.shared.errors import RejectedError, RemoteWireError, SeedbedError
from seedbed.shared.net.addresses import look_up
from seedbed.shared.net.dialler import Dialler
from seedbed.shared.net.file_reserve import MANY_CONNECTIONS, most_connected
from seedbed.shared.net.keys import bind_keys, dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.reports import Reports, ShownPicture
from seedbed.shared.net.resolver import Lookup
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router
from seedbed.shared.policy.determinism import use_deterministic_algorithms
from seedbed.shared.policy.weights import Manifest
from seedbed.shared.protocol.codec import decode
from seedbed.shared.protocol.messages import ProducerWelcome
from seedbed.shared.protocol.segment import Segment, remove_orphans
from seedbed.shared.runtime.allocator import keep_freed_memory
from seedbed.shared.runtime.linger import LingerTimer
from seedbed.shared.runtime.metrics import Answer, describe_picture
from seedbed.shared.runtime.open_files import file_limit, how_to_raise
from seedbed.shared.runtime.refusal_log import RefusalLog
from seedbed.shared.runtime.service import Service

BEAT_S = 0.5
PROBE_EVERY_BEATS = 2
PASS_OVER_S = 5.0  # if an address does not answer HELLO for this long, the next address of the learner is tried
FIRST_COMPLAINT_S, COMPLAIN_S = 3.0, 10.0
LOG_EVERY_S = 10.0
MAX_LOGGED_GROUPS = 10
VERSION = __version__


class InferenceService:
    """The asyncio shell: feeds events to the server and performs its actions. Owned by the loop.

    Large because all side effects are here: two sockets, the compute thread, timers, logs and the shutdown.
    """

    def __init__(
        self,
        config: InferenceConfig,
        service: Service,
        reactor: Reactor,
        *,
        served: ServedPolicy | None = None,
        lookup: Lookup = look_up,
    ) -> None:
        self.config, self.service, self.reactor = config, service, reactor
        self.loop = asyncio.get_running_loop()
        self.counters = InferenceCounters()
        self._counters_at_ping = InferenceCounters()
        self.learner_sessions = LearnerSessions(
            name=config.name or f"inference-{socket.gethostname()}",
            incarnation=service.incarnation,
            library_version=VERSION,
            load=self._load,
            make_segment=partial(Segment, config.shared_memory_bytes) if config.shared_memory_bytes else no_segment,
            is_lockstep=config.lockstep_groups > 0,
        )
        remove_orphans()
        self.compute = compute = Compute(config, report=self._report_stuck, report_uncaptured=self._report_uncaptured)
        self.server = Server(
            config, service.incarnation, self.learner_sessions, self.counters,
            owner=lambda route: self.router.user_id(route), work_age_s=compute.busy_s,
        )  # fmt: skip
        self.forward_seconds = metrics.register(
            service.metrics, self.counters, self.server, self.learner_sessions, reactor
        )
        service.metrics.page("/picture", self._picture)
        self.is_finished = False
        self.fatal: SeedbedError | None = None
        self._welcome: ProducerWelcome | None = None
        self._ended = asyncio.Event()
        self._farewell: LingerTimer | None = None  # set once the run is over
        self._alarm: asyncio.TimerHandle | None = None  # at most one is set
        self._pass_over_at = self._complain_at = math.inf  # finite while there is no session with the learner
        self._awaits_groups = False  # whether that was logged
        self._miss_at = math.inf  # when to log that an evaluation has no groups
        self._logged_episodes, self._log_at = 0, 0.0  # when the episodes of a served policy are logged again
        self.router = Router(
            reactor,
            config.bind,
            on_message=self._from_environment,
            on_drained=self._launch,
            max_frame_bytes=config.max_frame_bytes,
            keys=bind_keys(service.runtime.keys, Role.INFERENCE),
            on_refused=RefusalLog(service.metrics, service.log),
            on_revoked=self._revoked,
        )
        self.reports = Reports(service, self.router.send, self.router.user_id, picture=self._shown)
        self.learner = Dialler(
            reactor,
            () if served else config.upstream,
            on_message=self._from_learner,
            on_event=self._learner_event,
            keys=None if served else dial_keys(service.runtime.keys, Role.INFERENCE, Role.LEARNER),
            lookup=lookup,
        )
        self.ranks = RankConnections(
            self.learner_sessions,
            self.learner,
            dial=lambda address, on_message, on_event: Dialler(
                reactor, [address], on_message=on_message, on_event=on_event,
                keys=dial_keys(service.runtime.keys, Role.INFERENCE, Role.LEARNER), lookup=lookup,
            ),
            on_credit=self._rank_credited,
            on_refused_message=self._count_refused_message,
            log=service.log,
            now=self.loop.time,
        )  # fmt: skip
        self.served = served
        if served is not None:
            self._serve_alone(served)

    # Environments

    def _from_environment(self, route: bytes, frames: list[bytes]) -> bool:
        """Handle a message from an environment; return whether it was useful."""
        try:
            if self.reports.take(route, frames):
                return False
        except RemoteWireError:
            self.counters.refused_messages += 1
            return False
        is_useful = self.server.receive(route, frames, self.loop.time())
        self._perform()
        if self._farewell is not None:
            self._farewell.heard(self.loop.time())
        return is_useful

    def _perform(self) -> None:
        """Perform the actions that the server has decided on."""
        for action in self.server.take_actions():
            if isinstance(action, SendToEnvironment):
                if not self.router.send(action.route, action.frames):
                    self.server.unroutable(action.route, self.loop.time())
            elif isinstance(action, RunBatches):
                self.compute.act(action.batches, partial(self._acted, action.groups))
            elif isinstance(action, LaunchAt):
                if self._alarm is None:
                    self._alarm = self.loop.call_at(action.at, self._alarmed)
            elif isinstance(action, ForgetState):
                self.compute.forget(action.lanes)
            elif isinstance(action, FreezeWeights):
                self.compute.freeze(self._weights_frozen)

    def _revoked(self, routes: list[bytes]) -> None:
        ended = self.server.revoke(routes)
        self._perform()
        self.service.log.warning("keys_revoked", connections=len(routes), sessions=ended)

    def _launch(self) -> None:
        self.server.launch(self.loop.time())
        self._perform()
        self._send_unrolls()

    def _alarmed(self) -> None:
        self._alarm = None
        self._launch()

    # The policy

    def _acted(self, groups: Sequence[Group], payloads: list[list[bytes]], versions: list[int], seconds: float) -> None:
        self.counters.compute_s += seconds
        self.forward_seconds.observe(seconds)
        self.server.acted(groups, payloads, versions, self.loop.time())
        self._perform()
        self._send_unrolls()

    def _picture(self) -> Answer | None:
        """Return the newest picture for the page /picture. Runs in the page's thread."""
        now = self.loop.time()
        shown = self._shown(now)
        if shown is None:
            return None
        return describe_picture(self.service.incarnation, shown.number, shown.version, now - shown.at), shown.frame

    def _shown(self, now: float) -> ShownPicture | None:
        """Return the newest picture, and note that someone is watching."""
        self.server.pictures.looked(now)
        return self.server.pictures.newest

    def _weights_frozen(self, version: int) -> None:
        self.server.weights_frozen(version, self.loop.time())
        self._perform()

    # The learner

    def _learner_event(self, event: str) -> None:
        now = self.loop.time()
        if event == "connected":
            self.learner_sessions.connected(now)
        elif event == "disconnected":
            self.learner_sessions.disconnected(now)
            self.service.log.warning("learner_lost", upstream=self.config.upstream)
        else:
            self.service.log.warning("handshake_failed", upstream=self.config.upstream, cause=self.learner.refusal)
        self.ranks.chief_event(event)
        self._poll_learner()

    def _from_learner(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[0])
        except RemoteWireError as error:
            self.counters.refused_messages += 1
            self.service.log.warning("learner_message_refused", error=str(error))
            return
        now = self.loop.time()
        for task, event in self.learner_sessions.receive(message, frames[1:], now):
            if isinstance(event, Welcomed):
                self._welcomed(event.welcome, task)
            elif isinstance(event, RunReplaced):
                self.server.leave_run(event.run_id)
            elif isinstance(event, WeightsReceived):
                self._load_weights(event)
            elif isinstance(event, FormerWeightsReceived):
                self.server.evaluations.freezing()
                self.compute.freeze_former(event.version, event.manifest_digest, event.buffer, self._weights_frozen)
            elif isinstance(event, CreditReceived):
                self.server.credited(event.credit, now, task=task)
                self.server.launch(now)
            elif isinstance(event, RunFinished):
                self.is_finished = True
                self._ended.set()
            elif isinstance(event, SpecificationRefused):
                self._environment_refused(event, task)
            elif isinstance(event, Refused):
                self._refused(event, task)
        self.ranks.receive_over_chief(message, frames[1:])
        self._perform()
        self._poll_learner()

    def _count_refused_message(self) -> None:
        self.counters.refused_messages += 1

    def _rank_credited(self, task: str) -> None:
        """Release groups that wait for credit, of which a further rank has granted some."""
        now = self.loop.time()
        self.server.release_held(now)
        self.server.launch(now)
        self._perform()

    def _welcomed(self, welcome: ProducerWelcome, task: str) -> None:
        if not task:
            self._welcome, self.service.run_id = welcome, welcome.run_id
            self.compute.set_replica(self._replica(welcome))
            self.ranks.follow(welcome.ranks, self.learner.address)
        self.service.log.info(
            "learner_found", epoch=welcome.epoch, run_id=welcome.run_id, task=task,
            **self.learner_sessions.of(task).link.describe_way(),
        )  # fmt: skip

    def _replica(self, welcome: ProducerWelcome) -> int:
        """Return a number that no other inference of the run has; 0 in deterministic mode, where there is no other."""
        return 0 if self.config.lockstep_groups else welcome.session

    def _environment_refused(self, refusal: SpecificationRefused, task: str) -> None:
        self.service.log.warning("environment_refused", env_id=refusal.spec.env_id, message=refusal.message, task=task)
        if task:  # some of its groups may have a session already
            self.server.end_task(task)

    def _refused(self, refusal: Refused, task: str) -> None:
        if refusal.retryable or task:
            self.service.log.warning(
                "learner_refused", code=refusal.code, message=refusal.message, hint=refusal.hint, task=task
            )
            if not refusal.retryable:
                self.server.end_task(task)
            return
        self.fatal = RejectedError(f"the learner refuses this inference service: {refusal.message}. {refusal.hint}")
        self._ended.set()

    def _load_weights(self, event: WeightsReceived) -> None:
        manifest = Manifest.from_json(event.manifest) if event.manifest else None  # empty: not changed
        if manifest is not None:
            self.server.num_loading += 1
        loaded = partial(self._loaded, event, manifest, self._welcome)
        self.compute.load(event.version, manifest, event.buffer, loaded)

    def _loaded(self, event: WeightsReceived, manifest: Manifest | None, welcome: ProducerWelcome | None) -> None:
        if manifest is not None:
            self.server.num_loading -= 1
        is_of_run = welcome is not None and welcome.run_id == self.learner_sessions.main.run_id
        if manifest is not None and welcome is not None and is_of_run:  # not of a run that was replaced meanwhile
            record = self.compute.record
            self.server.serve(
                record, welcome.run_id, welcome.run_seed, replica=self._replica(welcome), tasks=self.compute.tasks
            )
            self.service.log.info("policy_loaded", env_id=record.spec.env_id, digest=manifest.digest)
        self.server.weights_changed(event.version, self.loop.time())
        self._launch()  # the groups that waited for the policy

    def _serve_alone(self, served: ServedPolicy) -> None:
        """Serve one policy without a learner."""
        manifest = Manifest.from_json(served.manifest)
        self.server.served_statistics = served_statistics = ServedStatistics(greedy=served.greedy)
        metrics.register_served(self.service.metrics, served_statistics)

        def loaded() -> None:
            record = self.compute.record
            self.server.serve(record, served.run_id, served.run_seed, tasks=self.compute.tasks)
            self.server.weights_changed(served.version, self.loop.time())
            self._perform()
            self.service.log.info(
                "policy_served", env_id=record.spec.env_id, checkpoint=served.source, greedy=served.greedy
            )

        self.compute.load(served.version, manifest, served.buffer, loaded)

    def _log_served_episodes(self, now: float) -> None:
        """Log the number and mean return of a served policy's episodes, at most every LOG_EVERY_S."""
        statistics = self.server.served_statistics
        if statistics is not None and statistics.num_episodes > self._logged_episodes and now >= self._log_at:
            self._logged_episodes, self._log_at = statistics.num_episodes, now + LOG_EVERY_S
            self.service.log.info(
                "episodes_played", episodes=statistics.num_episodes, newest_return_mean=round(statistics.return_mean, 3)
            )

    def _poll_learner(self) -> None:
        """Send the messages to the learner that are due."""
        now = self.loop.time()
        for frames in self.learner_sessions.poll(now):
            self.learner.send(frames)
        self.ranks.poll(now)
        self._send_unrolls()

    def _send_unrolls(self) -> None:
        send_unrolls(self.learner_sessions, self.learner)
        self.ranks.send_unrolls()

    def _load(self) -> tuple[tuple[str, float], ...]:
        load = self.counters.load(
            self._counters_at_ping,
            sessions=self.server.num_sessions,
            lanes=self.server.training_lanes,
            awaited_groups=len(self.server.awaited_groups),
            actor_restarts=self.server.actors.num_restarts,
            loop_lag_ms=1e3 * self.reactor.statistics().worst_loop_lag_s,
        )
        self._counters_at_ping = copy.copy(self.counters)
        return load

    # Time

    async def beat(self) -> None:
        """Every BEAT_S: end leases, send episodes, poll the learner and feed the watchdog; for ever."""
        number = 0
        while True:
            self.compute.pet()  # before the first wait: a forward pass may hang at once
            await asyncio.sleep(BEAT_S)
            number += 1
            now = self.loop.time()
            stalled_until = self.reactor.last_stall_end(now) + self.config.beat_s
            self.server.beat(now, drained=self.router.is_drained(), stalled_until=stalled_until)
            if number % PROBE_EVERY_BEATS == 0:
                self.server.probe(now)
            self.server.release_held(now)
            self._launch()  # also performs the actions of the calls above
            self._poll_learner()
            self._await_learner(now)
            self.ranks.complain(now)
            self._await_evaluators(now)
            self._await_groups()
            self._log_served_episodes(now)

    def _await_learner(self, now: float) -> None:
        """Without a session: try the next address after PASS_OVER_S, and log what this service waits for."""
        if self.learner_sessions.main.welcome is not None or self.served is not None or self.is_finished:
            self._pass_over_at = self._complain_at = math.inf
            return
        self._pass_over_at = min(self._pass_over_at, now + PASS_OVER_S)
        self._complain_at = min(self._complain_at, now + FIRST_COMPLAINT_S)
        if now >= self._pass_over_at:
            self._pass_over_at = now + PASS_OVER_S
            self.learner.pass_over()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            for cause in self.learner.complaints(now) or [
                f"{self.learner.address}: {self.learner_sessions.main.state}"
            ]:
                self.service.log.warning("learner_awaited", cause=cause)

    def _await_evaluators(self, now: float) -> None:
        """Log that an evaluation is requested and no group here plays it; groups of another replica may."""
        unplayed = self.server.unplayed_evaluations()
        if not unplayed:
            self._miss_at = now + COMPLAIN_S
        elif now >= self._miss_at:
            self._miss_at = now + COMPLAIN_S
            for task, episodes in unplayed.items():
                self.service.log.warning(
                    "evaluation_awaited", episodes=episodes, **({"task": task} if task else {}),
                    hint="no evaluation group is connected here: start an actor with actor.mode=eval",
                )  # fmt: skip

    def _await_groups(self) -> None:
        """Log once for each wait which groups keep all others of a deterministic run waiting."""
        awaited = self.server.awaited_groups
        if awaited and not self._awaits_groups:
            self.service.log.warning(
                "groups_awaited", number=len(awaited), groups=awaited[:MAX_LOGGED_GROUPS],
                hint="the run goes on when they do; where one is gone, start the run anew",
            )  # fmt: skip
        self._awaits_groups = bool(awaited)

    def _report_stuck(self, seconds: float) -> None:
        self.service.log.error(
            "compute_stuck", seconds=round(seconds, 1), hint="raise inference.max_compute_s if a batch takes so long"
        )

    def _report_uncaptured(self, reason: str) -> None:
        self.service.log.warning(
            "policy_not_captured", cause=reason,
            hint="batches run without CUDA graphs, which is slower: something in the network waits for the device",
        )  # fmt: skip

    async def watch_compute(self) -> None:
        """Raise the exception of a job of the compute thread, which ends the service."""
        await self.compute.failed

    async def wait_ended(self) -> None:
        """Wait until the run is finished, a signal comes, or the learner refuses this service for good.

        Raises: RejectedError in the last case.
        """
        stopping = asyncio.ensure_future(self.service.stopping.wait())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            ended.cancel()
        if self.fatal is not None:
            raise self.fatal

    async def leave(self) -> None:
        """Shut down in phases: dismiss the groups, flush unrolls, say BYE to the learner."""
        self._dismiss("run_finished" if self.is_finished else "draining")
        flush, link = (
            DrainCheck(self.learner_sessions, self.config.drain_s, self.loop.time()),
            self.learner_sessions.main,
        )
        while not (self.is_finished or flush.is_over(self.loop.time())):
            self._poll_learner()
            await asyncio.sleep(0.02)
        if self.is_finished:
            await self._see_off()
        if link.welcome is not None:
            reason = "run_finished" if self.is_finished else "draining"
            self.learner.send(link.bye(reason))
            self.ranks.bye(reason)
        self.ranks.close(linger_ms=500)
        self.learner.close(linger_ms=500)
        if self.is_finished:
            await self._tell_the_late()
        self.service.log.info(
            "inference_left", lost_lanes=int(self.learner_sessions.total(lambda item: item.outbox.unreceived_lanes)),
            unacked_lanes=int(self.learner_sessions.total(lambda item: item.outbox.unacked_lanes)),
            acked=int(self.learner_sessions.total(lambda item: item.outbox.acked_unrolls)),
            dropped_steps=self.counters.dropped_steps,
        )  # fmt: skip

    def _dismiss(self, reason: str) -> None:
        self.server.dismiss(reason)
        self._perform()

    async def _see_off(self) -> None:
        """Stay after the run until the environments have left, at most `farewell_s`. The learner waits meanwhile."""
        if self.server.goodbyes is None:  # the run ended during the drain
            self._dismiss("run_finished")
        deadline = self.loop.time() + self.config.farewell_s
        await self.service.linger(lambda now: now >= deadline or not self.server.still_here(now))
        if left_behind := len(self.server.still_here(self.loop.time())):
            self.service.log.warning("environments_stay", connections=left_behind, hint="stop them: the run is over")

    async def _tell_the_late(self) -> None:
        """Stay for `finished_s`, so that environments that connect late are answered with BYE(run_finished)."""
        self._farewell = LingerTimer(self.config.finished_s, self.loop.time())
        if self.server.recorded is not None:  # it had groups, which were sent BYE
            self._farewell.heard(self.loop.time())
        await self.service.linger(self._farewell.is_over)


async def serve(
    settings: InferenceSettings, service: Service, *, served: ServedPolicy | None = None, lookup: Lookup = look_up
) -> int:
    """Run an inference service until the run ends or a signal comes, and return the exit code.

    Args:
      served: a policy to serve without a learner.
      lookup: resolves the names in `inference.upstream` to numeric hosts.
    """
    if settings.runtime.threads:
        torch.set_num_threads(settings.runtime.threads)
    torch.set_flush_denormal(True)
    if settings.inference.lockstep_groups:
        use_deterministic_algorithms()
    keep_freed_memory()
    with Reactor() as reactor:
        inference = InferenceService(settings.inference, service, reactor, served=served, lookup=lookup)
        _check_file_limit(settings.inference, service)
        service.ready(endpoint=inference.router.endpoint, run_id=served.run_id if served else "")
        service.start(inference.beat(), "beat")
        service.start(inference.watch_compute(), "compute")
        try:
            await inference.wait_ended()
            await inference.leave()
        finally:
            inference.router.close(linger_ms=500)
            inference.ranks.close(linger_ms=500)
            inference.learner.close(linger_ms=500)
            inference.learner_sessions.close()
            inference.compute.close()
    return 0


def _check_file_limit(config: InferenceConfig, service: Service) -> None:
    """Warn if this process may have fewer connections than a large run needs."""
    limit = file_limit()
    connections = most_connected(limit)
    if connections < min(MANY_CONNECTIONS, config.max_lanes):
        service.log.warning("few_open_files", limit=limit, connections=connections, hint=how_to_raise(limit))
