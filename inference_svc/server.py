"""The decisions of an inference service on each event, without sockets, threads or clocks.

After each event the shell performs what `take_actions` returns.

| a group waits for | unblocked by | PONG says |
|---|---|---|
| its turn in a batch | the compute thread | queued |
| credit for its complete unroll | the learner's CREDIT | held: no credit |
| an evaluation (evaluation groups only) | CREDIT with a request, weights of that version | held: no evaluation |

Groups are held before the forward pass, so that the newest weights act when they continue.
"""

from collections.abc import Callable, Sequence

from seedbed.inference_svc.actions import (
    Action,
    ForgetState,
    FreezeWeights,
    LaunchAt,
    RunBatches,
    SendToEnvironment,
)
from seedbed.inference_svc.actor_registry import ActorRegistry
from seedbed.inference_svc.admission import check_hello
from seedbed.inference_svc.batcher import Batcher
from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.counters import InferenceCounters
from seedbed.inference_svc.episodes import aborted_episodes, valid_steps
from seedbed.inference_svc.evaluations import Evaluations
from seedbed.inference_svc.goodbyes import GoodbyeTracker
from seedbed.inference_svc.group import Group, make_group, read_step
from seedbed.inference_svc.learner_sessions import LearnerSession, LearnerSessions
from seedbed.inference_svc.lockstep import Lockstep
from seedbed.inference_svc.pictures import Pictures
from seedbed.inference_svc.refusal_replies import RefusalReplies, about_step
from seedbed.inference_svc.row_check import BOUNDS
from seedbed.inference_svc.serving import ServedStatistics
from seedbed.inference_svc.slots import SlotPool
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import decode, encode, encode_act
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import (
    ActBits,
    Bye,
    Challenge,
    Credit,
    Hello,
    Message,
    Ping,
    Pong,
    Reject,
    RequestState,
    Step,
    Welcome,
)
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.session_book import revoked
from seedbed.shared.protocol.sessions import Session, SessionLimits, SessionTable, StepVerdict

BYE_REASONS = ("moved", "stopped", "draining")  # reasons of environments that are counted by name
MAX_GREETING = 4096  # connections without a session that are remembered, so that they get BYE at the end


class Server:
    """All decisions of an inference service. One thread; bounded by `max_lanes`, credit and one unroll per group.

    Large because each message of an environment and each event of the learner has a method; the state is in other
    classes.

    Args:
      owner: returns whose key a connection has, by its route; empty without keys.
      work_age_s: returns how long the present batch has been running, seconds.
    """

    def __init__(
        self,
        config: InferenceConfig,
        incarnation: int,
        learner_sessions: LearnerSessions,
        counters: InferenceCounters,
        *,
        owner: Callable[[bytes], str] = lambda _route: "",
        work_age_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.config, self.incarnation = config, incarnation
        self.learner_sessions, self.counters = learner_sessions, counters
        self.recorded: RecordSpec | None = None  # of the policy served; without a policy no group gets a session
        limits = SessionLimits(
            beat_s=config.beat_s,
            lease_s=config.lease_s,
            max_lanes=config.max_lanes,
            max_frame_bytes=config.max_frame_bytes,
        )
        self.table = SessionTable(incarnation, 0, "", limits, owner=owner)
        self.version = 0  # packed version of the weights that act
        self.num_loading = 0  # policies being built, which may not fit the groups of now: no batch starts
        self.goodbyes: GoodbyeTracker | None = None  # set once the run is over
        self.served_statistics: ServedStatistics | None = None  # set if a policy is served without a learner
        self.evaluations = Evaluations()
        self.pictures = Pictures()
        self.actors = ActorRegistry()
        self.awaited_groups: list[str] = []  # in deterministic mode, those that keep all others waiting, in words
        self.known_tasks: tuple[str, ...] = ()  # that the policy tells apart
        self._batcher: Batcher[Group] = Batcher(config.idle_deadline_ms / 1e3)
        self._lockstep = Lockstep(config.lockstep_groups) if config.lockstep_groups else None
        self._slots = SlotPool(config.max_lanes)
        self._greeting: dict[bytes, None] = {}  # connections that said HELLO and have no session, the newest last
        self._replies = RefusalReplies()
        self._work_age_s = work_age_s
        self._evaluating: dict[int, Group] = {}  # evaluation groups by session, in the order of their admission
        self._actions: list[Action] = []  # decided since the last `take_actions`

    def take_actions(self) -> list[Action]:
        """Return the actions decided since the last call, to be performed in this order."""
        actions, self._actions = self._actions, []
        return actions

    def unroutable(self, route: bytes, now: float) -> None:
        """Note that a message could not be sent because its connection is gone; its groups may return on another."""
        if self.goodbyes is not None:
            self.goodbyes.connection_closed(route, now)
        else:
            self.table.unroutable(route, now)

    def serve(
        self, record: RecordSpec, run_id: str, run_seed: int, *, replica: int = 0, tasks: Sequence[str] = ()
    ) -> None:
        """Accept groups for a policy. If the run, the record or the tasks have changed, all sessions end.

        Args:
          tasks: those that the policy tells apart; empty if it does not.
          replica: a number that goes into the groups' seeds, different for each process of this service in a run.
        """
        self.evaluations.forget_frozen()
        for group in self._evaluation_groups():
            if group.lanes.uses_frozen_weights and self._batcher.discard(group):
                self._mark(group, RequestState.HELD_NO_EVALUATION, group.session.state_since)
        if self.recorded is None:
            self.table.run_id, self.table.run_seed, self.table.replica = run_id, run_seed, replica
        else:
            if (self.recorded, self.table.run_id, self.known_tasks) == (record, run_id, tuple(tasks)):
                return
            self._change_run(run_id, run_seed)
        self.recorded, self.known_tasks = record, tuple(tasks)

    def leave_run(self, run_id: str) -> None:
        """End all sessions if the learner is of another run than they are, for which nothing of them may be trained on.

        Groups get a session again once that run's policy is served.
        """
        if self.recorded is not None and run_id != self.table.run_id:
            self.flush_episodes()  # into the outboxes, which are then emptied
            self._change_run(run_id, self.table.run_seed)
            self.recorded = None
            self.evaluations = Evaluations()  # that run's may have the same ids

    def _change_run(self, run_id: str, run_seed: int) -> None:
        self.learner_sessions.discard_unrolls()
        for session in self.table.change_run(run_id, run_seed):
            self._send(session.route, self.table.challenge(session.id))
            self._release(session, "another_run")

    # From environments

    def receive(self, route: bytes, frames: Sequence[bytes], now: float) -> bool:
        """Handle one message from an environment. An invalid one is counted and answered, never raised.

        Returns: whether the message was useful, that is a new STEP.
        """
        try:
            message = decode(frames[0])
            if self.goodbyes is not None:
                self._see_off(message, route, self.goodbyes)
            elif isinstance(message, Step):
                return self._step(message, route, frames, now)
            elif isinstance(message, Hello):
                self._hello(message, route, now)
            elif isinstance(message, Ping):
                self._ping(message, route, now)
            elif isinstance(message, Bye):
                self._bye(message, route, now)
            else:
                raise RemoteWireError("unexpected", f"{type(message).__name__} is not a message for inference")
        except RemoteWireError as error:
            self.counters.refused_messages += 1
            complaint = self._replies.about_message(route, error)
            if complaint is not None:
                self._send(route, complaint)
        return False

    def _see_off(self, message: Message, route: bytes, goodbyes: GoodbyeTracker) -> None:
        """Answer every message with BYE(run_finished) until the connection says BYE itself."""
        if isinstance(message, Bye) and message.session == 0:
            goodbyes.bye_received(route)
        else:
            self._send(route, Bye(session=0, reason="run_finished"))
            goodbyes.bye_sent(route)

    def _hello(self, hello: Hello, route: bytes, now: float) -> None:
        self._greeting.pop(route, None)
        if len(self._greeting) == MAX_GREETING:
            del self._greeting[next(iter(self._greeting))]
        self._greeting[route] = None
        misplaced = self.served_statistics.refuse_training(hello) if self.served_statistics is not None else None
        served = self.recorded.spec if self.recorded else None
        refusal = misplaced or check_hello(
            hello, served, self.learner_sessions, self.config.max_frame_bytes, self.known_tasks
        )
        if not isinstance(refusal, Reject):
            self.learner_sessions.introduce(hello.task, hello.spec, now)
        if refusal is not None or self.recorded is None:
            if refusal is not None:
                self.counters.refused(refusal.code)
                self._send(route, refusal)
            return
        if self._lockstep is not None and not self.table.has_session(hello):
            refusal = self._lockstep.refuse(hello, now)
            if refusal is not None:
                self.counters.refused(refusal.code)
                self._send(route, refusal)
                return
        answer = self.table.hello(hello, route, now)
        if isinstance(answer, Welcome):
            session = self.table.sessions[answer.session]
            if session.attached is None and not self._admit(session, self.recorded, now):
                answer = self._refuse_scattered(hello)
        if isinstance(answer, Welcome):
            self.actors.register(hello.actor, hello.incarnation, is_start=not hello.group and not hello.run_id)
            del self._greeting[route]
        else:
            self.counters.refused(answer.code)
        self._send(route, answer)

    def _admit(self, session: Session, record: RecordSpec, now: float) -> bool:
        """Give a new session its group and slots; return whether there were enough slots in a row."""
        start = self._slots.allocate(session.lanes)
        if start is None:
            self.table.end(session)
            return False
        session.attached = group = make_group(session, record, start, self.config.out_of_bounds)
        if self._lockstep is not None:
            self._lockstep.admitted(session.hello, now)
        if self.served_statistics is not None:
            group.lanes.greedy, group.lanes.uses_frozen_weights = self.served_statistics.greedy, False
        if session.hello.mode == "eval":
            self._evaluating[session.id] = group
        self._actions.append(ForgetState(group.lanes))
        return True

    def _refuse_scattered(self, hello: Hello) -> Reject:
        """Return the REJECT of a group for which enough slots are free, but not in a row."""
        message = (
            f"{hello.lanes} lanes requested, and the {self._slots.max_slots - self._slots.used} free are not in a row"
        )
        hint = "wait until a group leaves, use fewer lanes per group, or raise inference.max_lanes"
        return Reject(nonce=hello.nonce, code="capacity", retryable=True, message=message, hint=hint)

    def _ping(self, ping: Ping, route: bytes, now: float) -> None:
        if self.recorded is None:
            self._send(route, Pong(sent_ms=ping.sent_ms, server_epoch=self.incarnation, work_age_ms=0, turns_away=True))
        else:
            if any(session.hello.mode == "train" for session in self.table.on_route(route)):
                self.counters.pinged(ping.load)
            work_age_ms = int(1e3 * self._work_age_s())
            self._send(route, self.table.ping(ping, route, now, work_age_ms=work_age_ms))

    def _bye(self, bye: Bye, route: bytes, now: float) -> None:
        for session in self.table.bye(bye, route, now):
            self._release(session, bye.reason if bye.reason in BYE_REASONS else "bye")

    def _step(self, step: Step, route: bytes, frames: Sequence[bytes], now: float) -> bool:
        """Handle a STEP; return whether it was the group's next one."""
        table = self.table
        session = table.sessions.get(step.session)
        if session is None or (session.route != route and table.is_foreign(session, route)):
            self._send(route, Challenge(session=step.session, server_epoch=self.incarnation))
            return False
        group: Group = session.attached
        try:
            inputs, outside, statistics, picture = read_step(group, step, frames[1:])
        except RemoteWireError as error:
            self._strike(session, route, error)
            return False
        verdict = table.step(step, route, now)
        if verdict is StepVerdict.ACCEPT:
            self.counters.out_of_bounds += outside
            if picture is not None:
                version = self.evaluations.version(group) if group.lanes.uses_frozen_weights else self.version
                self.pictures.take(session, version, picture, now)
            self._accept(group, inputs, statistics, now)
            return True
        if verdict is StepVerdict.CACHED and session.reply is not None:
            self._actions.append(SendToEnvironment(route, session.reply))
        elif verdict is StepVerdict.CHALLENGE:
            self._send(route, table.challenge(step.session))
        return False

    def _accept(self, group: Group, inputs: list[Array], statistics: Array | None, now: float) -> None:
        """Write a group's new rows, hand on a complete unroll, then queue or hold the group."""
        group.previous_flags, group.flags = group.flags, inputs[-1]
        group.statistics, group.version = statistics, self.version
        rows, mode = group.lanes.rows, group.session.hello.mode
        rows.write(inputs)
        group.lanes.tick += 1
        self.counters.requests += 1
        if mode == "eval" and self.served_statistics is None:
            if statistics is not None:
                self._record_evaluation(group, statistics)
            self._queue_evaluation(group, now)
            return
        if isinstance(rows, UnrollWriter):
            if self._lockstep is not None:
                self._lockstep.add(group)
                self._act_together(self._lockstep, now)
                return
            if rows.is_complete and not self.learner_sessions.of(group.task).try_push(group):
                self.counters.held_no_credit += 1
                self.learner_sessions.of(group.task).held.append(group)
                self._mark(group, RequestState.HELD_NO_CREDIT, now)
                return
        self._batcher.add(group, now)

    def _act_together(self, lockstep: Lockstep, now: float) -> None:
        """Once all training groups wait, push their complete unrolls, one for each credit, then queue all groups."""
        learner_session = self.learner_sessions.of("")
        while (groups := lockstep.all_waiting()) and learner_session.link.outbox.can_send(1):
            complete = [group for group in groups if group.is_unroll_complete]
            if complete:
                learner_session.push(complete[0])
                continue
            lockstep.release()
            for group in groups:
                self._batcher.add(group, now)

    def _count(self, group: Group) -> None:
        """Count the steps and ended episodes of a group's newest rows.

        Only once they are answered: if the session ends before, the group sends them again in its next one.
        """
        mode, statistics = group.session.hello.mode, group.statistics
        if self.served_statistics is not None and statistics is not None:
            self.served_statistics.add(statistics)
        if mode == "eval":
            self.counters.eval_steps += valid_steps(group.flags)
        elif mode == "train":
            self._count_training(group)
        group.statistics = None

    def _count_training(self, group: Group) -> None:
        """Count a training group's valid transitions, and the episodes that ended or were aborted."""
        steps = valid_steps(group.flags)
        has_resets = steps < len(group.flags) and group.lanes.tick > 0
        aborted = aborted_episodes(group.previous_flags, group.flags) if has_resets else 0
        self.counters.acted_steps += steps
        episodes = self.learner_sessions.of(group.task).episodes
        episodes.count_steps(steps, aborted)
        if group.statistics is not None:
            episodes.add(group.statistics, group.version)

    # Evaluation

    def _record_evaluation(self, group: Group, statistics: Array) -> None:
        """Take the episodes of a round that ended in this tick, and report the round if they are its last."""
        result = self.evaluations.record(group, statistics)
        if result is not None:
            self.learner_sessions.of(group.task).episodes.report_evaluation(group.session.hello.spec, result)

    def _queue_evaluation(self, group: Group, now: float) -> None:
        self._start_evaluations(now)
        seed = self.evaluations.reset_seed(group)
        if seed is not None:
            payload = [bytes(frame) for frame in group.lanes.act_layout.allocate()]
            self._actions.append(ForgetState(group.lanes))
            group.lanes.seed, group.lanes.tick, group.lanes.noise_block = seed, -1, -1
            self._answer(group, self.evaluations.version(group), payload, now, bits=int(ActBits.RESET), reset_seed=seed)
        elif self.evaluations.may_act(group):
            self._batcher.add(group, now)
        else:
            self._mark(group, RequestState.HELD_NO_EVALUATION, now)

    def _start_evaluations(self, now: float) -> None:
        """Request frozen weights for evaluations that have groups, and begin those whose weights are frozen."""
        groups = self._evaluation_groups()
        wanted = self.evaluations.wanted_version(groups)
        if wanted and wanted == self.version:
            self.evaluations.freezing()
            self._actions.append(FreezeWeights())
        elif wanted and wanted < self.version:  # newer ones are on their way
            self.learner_sessions.main.fetch(wanted)
        for group in self.evaluations.start(groups):
            if group.session.state == RequestState.HELD_NO_EVALUATION:
                self._queue_evaluation(group, now)

    def weights_frozen(self, version: int, now: float) -> None:
        """Begin the evaluations of this version, whose weights are now frozen; 0: none could be frozen."""
        self.evaluations.frozen(version)
        if version:
            self._start_evaluations(now)

    def unplayed_evaluations(self) -> dict[str, int]:
        """Return the requested episodes of each task that no group here plays."""
        return self.evaluations.without_groups(self._evaluation_groups())

    def _evaluation_groups(self) -> list[Group]:
        return list(self._evaluating.values())

    # From the learner

    def credited(self, credit: Credit, now: float, *, task: str = "") -> None:
        """Release a task's held groups as far as its new credit goes, and take its request for an evaluation.

        With each new request the episodes so far are reported, so that the results of a short run count them too.
        """
        if self.evaluations.ask(task, credit.evaluation):
            self.flush_episodes()
        self._start_evaluations(now)
        self._release_held(self.learner_sessions.of(task), now)

    def release_held(self, now: float) -> None:
        """Release the held groups of every task as far as its credit goes."""
        for learner_session in self.learner_sessions.all:
            self._release_held(learner_session, now)

    def _release_held(self, learner_session: LearnerSession, now: float) -> None:
        if self._lockstep is not None:
            self._act_together(self._lockstep, now)
        while learner_session.held:
            group = learner_session.held[0]
            if not learner_session.try_push(group):
                return
            learner_session.held.popleft()
            self._mark(group, RequestState.QUEUED, now)
            self._batcher.add(group, now)

    def end_task(self, task: str) -> None:
        """End the sessions of a task that the learner refuses; the answer to their next HELLO says why."""
        for session in [item for item in self.table.sessions.values() if item.hello.task == task]:
            self._send(session.route, self.table.challenge(session.id))
            self.table.end(session)
            self.counters.lost_groups += 1
            self._release(session, "refused_task")

    def weights_changed(self, version: int, now: float) -> None:
        """Note that the engine acts with this version from now on."""
        self.version = version
        self._start_evaluations(now)

    # Batches

    @property
    def _num_active(self) -> int:
        """How many groups could be part of the next batch; fewer where one is absent for two reasons."""
        table = self.table
        between_rounds = sum(
            group.session.state == RequestState.HELD_NO_EVALUATION for group in self._evaluating.values()
        )
        absent = table.num_unstepped + table.num_detached + self.learner_sessions.num_held + between_rounds
        return len(table.sessions) - absent

    def launch(self, now: float) -> None:
        """Start a batch if the device is free, or schedule the next call."""
        if self.num_loading:
            return
        at = self._batcher.launch_at(self._num_active, now)
        if at is None:
            return
        if at > now:
            self._actions.append(LaunchAt(at))
            return
        groups = []
        for group, wait_s in self._batcher.take(now):
            self.counters.wait_s += wait_s
            self.counters.waits += 1
            groups.append(group)
        batches: dict[tuple[bool, bool], list[Group]] = {}
        for group in groups:
            batches.setdefault((group.lanes.uses_frozen_weights, group.lanes.greedy), []).append(group)
        ordered = [group for batch in batches.values() for group in batch]
        self.counters.batches += 1
        self.counters.batch_lanes += sum(group.lanes.count for group in ordered)
        self._actions.append(RunBatches([[group.lanes for group in batch] for batch in batches.values()], ordered))

    def acted(
        self, groups: Sequence[Group], payloads: Sequence[Sequence[bytes]], versions: Sequence[int], now: float
    ) -> None:
        """Answer the groups of a batch that is done, and start the next one."""
        self._batcher.finished()
        if self._lockstep is not None and any(isinstance(group.lanes.rows, UnrollWriter) for group in groups):
            self._lockstep.acted(now)
        for group, payload, version in zip(groups, payloads, versions, strict=True):
            if not group.session.is_ended:
                wants_picture = group.session.hello.mode != "train" and self.pictures.wants(group.session, now)
                self._answer(
                    group, version, payload, now, bits=int(ActBits.PICTURE) if wants_picture else group.act_bits
                )
        self.launch(now)

    def _answer(
        self, group: Group, version: int, payload: Sequence[bytes], now: float, *, bits: int = 0, reset_seed: int = 0
    ) -> None:
        self._count(group)
        session = group.session
        frames = [encode_act(session.id, session.last_seq, version, bits, reset_seed), *payload]
        self.table.answer(session, frames, now)
        self._actions.append(SendToEnvironment(session.route, frames))

    # Time

    def beat(self, now: float, *, drained: bool, stalled_until: float) -> None:
        """End the sessions whose lease is over, see who is awaited, and send ended episodes to the learner.

        Call it twice a second.

        Args:
          drained: whether every message that has arrived was read.
          stalled_until: no lease ends before this time, seconds.
        """
        for session in self.table.expire(now, drained=drained, stalled_until=stalled_until):
            self.counters.lost_groups += 1
            self.actors.mark_lost(session.hello.actor, now)
            self._release(session, "silent" if session.is_reachable else "closed")
        self.actors.forget_lost(now)
        lockstep = None if self.table.is_draining else self._lockstep  # groups that were dismissed are not awaited
        self.awaited_groups = lockstep.awaited(now) if lockstep is not None else []
        self.flush_episodes()

    def probe(self, now: float) -> None:
        """Send each silent connection a PONG, which shows whether it is still open; after the run, BYE again to all.

        Call it every second. Connections that PING need none: every answer shows it.
        """
        if self.goodbyes is not None:
            for route in self.goodbyes.waiting(now):
                self._send(route, Bye(session=0, reason="run_finished"))
                self.goodbyes.bye_sent(route)
        else:
            for route in self.table.silent_routes(now):
                self._send(route, Pong(sent_ms=0, server_epoch=self.incarnation, work_age_ms=0))

    def flush_episodes(self) -> None:
        """Send the training episodes and steps since the last time to the learner."""
        if self.recorded is not None:
            for learner_session in self.learner_sessions.all:
                learner_session.episodes.flush(self.recorded.spec)

    # Ends

    def revoke(self, routes: Sequence[bytes]) -> int:
        """End the sessions of connections whose keys were revoked, tell each once, and return how many ended."""
        ended = self.table.revoke(routes)
        for session in ended:
            self._send(session.route, revoked(session.id, "inference's keys are"))
            self.counters.lost_groups += 1
            self._release(session, "revoked")
        return len(ended)

    def dismiss(self, reason: str) -> None:
        """Send BYE to every connection that has a session or asked for one, and end all sessions.

        Args:
          reason: "draining": groups move to another service; "run_finished": actors end.
        """
        if reason == "run_finished":
            self.goodbyes = GoodbyeTracker()
        inside = set(self.table.routes())
        for route in inside | self._greeting.keys():
            self._send(route, Bye(session=0, reason=reason))
            if self.goodbyes is not None:
                self.goodbyes.bye_sent(route, is_stranger=route not in inside)
        self._greeting.clear()
        for session in self.table.drain():
            writer = session.attached.lanes.rows if session.attached else None
            if isinstance(writer, UnrollWriter) and writer.is_complete and self.goodbyes is None:
                self.learner_sessions.of(session.hello.task).push(
                    session.attached
                )  # the unroll was held for credit, which may still come
            self._release(session, reason)
        self.flush_episodes()

    def still_here(self, now: float) -> list[bytes]:
        """Return the connections that were sent BYE(run_finished) and have not left yet; empty before that."""
        return [] if self.goodbyes is None else self.goodbyes.waiting(now)

    def _strike(self, session: Session, route: bytes, error: RemoteWireError) -> None:
        """Refuse a STEP: observations out of bounds end the session at once, other errors after too many."""
        self.counters.refused_messages += 1
        is_fatal = error.code == BOUNDS
        ended = self.table.strike(session)
        if is_fatal:
            self.table.end(session)
            ended = session
        self._send(route, about_step(session.id, error, is_over=ended is not None, retryable=not is_fatal))
        if ended is not None:
            self._release(ended, "out_of_bounds" if is_fatal else "broken_messages")

    def _release(self, session: Session, reason: str) -> None:
        """Free the slots of an ended session, and count why it ended."""
        group: Group | None = session.attached
        if group is None:
            return
        session.attached = None
        rows = group.lanes.rows
        self.counters.ended(reason, rows.num_unsent_steps if isinstance(rows, UnrollWriter) else 0)
        self._batcher.discard(group)
        self.learner_sessions.forget(group)
        if self._lockstep is not None:
            self._lockstep.discard(group)
        self._slots.release(group.lanes.start, group.lanes.count)
        if self._evaluating.pop(session.id, None) is not None:
            self.evaluations.lose(group)

    def _mark(self, group: Group, state: RequestState, now: float) -> None:
        self.table.mark(group.session, int(state), now)

    def _send(self, route: bytes, message: Message) -> None:
        self._actions.append(SendToEnvironment(route, [encode(message)]))

    @property
    def training_lanes(self) -> int:
        """The number of lanes in training groups."""
        sessions = self.table.sessions.values()
        return sum(session.lanes for session in sessions if session.hello.mode == "train")

    def lanes_by_task(self) -> dict[str, float]:
        """Return the training lanes of each task that has any."""
        sessions = list(self.table.sessions.values())
        lanes: dict[str, float] = {}
        for session in sessions:
            if session.hello.mode == "train" and session.hello.task:
                lanes[session.hello.task] = lanes.get(session.hello.task, 0) + session.lanes
        return lanes

    def lanes_by_actor(self) -> dict[str, float]:
        """Return the lanes of each actor; 0 for those that were lost and have not come back."""
        return self.actors.lanes(list(self.table.sessions.values()))

    @property
    def used_slots(self) -> int:
        """The number of slots in use."""
        return self._slots.used

    @property
    def num_sessions(self) -> int:
        """The number of groups with a session, of every mode."""
        return len(self.table.sessions)
