"""What inference decides on each event, without sockets, threads or clocks: groups in, batches out, unrolls up.

After each event the shell performs what `take_actions` returns.

| a group waits for | unblocked by | PONG says |
|---|---|---|
| its turn in a batch | the compute thread | queued |
| credit for its complete unroll | the learner's CREDIT | held: no credit |
| an evaluation (evaluation groups only) | CREDIT with a request, weights of that version | held: no evaluation |

Groups are held before the forward pass, so that fresh weights act when they go on.
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
from seedbed.inference_svc.admission import judge
from seedbed.inference_svc.batcher import Batcher
from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.episodes import aborted_episodes, valid_steps
from seedbed.inference_svc.evaluations import Evaluations
from seedbed.inference_svc.goodbyes import GoodbyeTracker
from seedbed.inference_svc.group import Group, make_group, read_step
from seedbed.inference_svc.learner_sessions import LearnerSession, LearnerSessions
from seedbed.inference_svc.pictures import Pictures
from seedbed.inference_svc.refusal_replies import RefusalReplies, about_step
from seedbed.inference_svc.row_check import BOUNDS
from seedbed.inference_svc.serving import ServedStatistics
from seedbed.inference_svc.slots import SlotPool
from seedbed.inference_svc.tally import InferenceTally
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

BYE_REASONS = ("moved", "stopped", "draining")  # of environments, as they are counted
MAX_GREETING = 4096  # connections that are told when to go though they never came in


class Server:
    """All of inference's decisions. One thread; bounded by `max_lanes`, credit and one unroll per group.

    Large because each message of an environment and each event of the learner has a method; their state is in the
    parts.

    Args:
      owner: whose key a connection has, by its route; empty without keys.
      work_age_s: how long the running batch has been running, seconds.
    """

    def __init__(
        self,
        config: InferenceConfig,
        incarnation: int,
        learner_sessions: LearnerSessions,
        tally: InferenceTally,
        *,
        owner: Callable[[bytes], str] = lambda _route: "",
        work_age_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.config, self.incarnation, self.learner_sessions, self.tally = config, incarnation, learner_sessions, tally
        self.recorded: RecordSpec | None = None  # of the policy that is there; until then nobody is let in
        limits = SessionLimits(
            beat_s=config.beat_s,
            lease_s=config.lease_s,
            max_lanes=config.max_lanes,
            max_frame_bytes=config.max_frame_bytes,
        )
        self.table = SessionTable(incarnation, 0, "", limits, owner=owner)
        self.version = 0  # of the weights that act, packed
        self.departures: GoodbyeTracker | None = None  # once the run is over
        self.audience: ServedStatistics | None = None  # of a policy that is served without a learner
        self.evaluations = Evaluations()
        self.pictures = Pictures()
        self.actors = ActorRegistry()
        self._batcher: Batcher[Group] = Batcher(config.idle_deadline_ms / 1e3)
        self._slots = SlotPool(config.max_lanes)
        self._greeting: dict[bytes, None] = {}  # connections that said HELLO and were not let in, the newest last
        self._replies = RefusalReplies()
        self._work_age_s = work_age_s
        self._actions: list[Action] = []  # decided since they were last taken

    def take_actions(self) -> list[Action]:
        """Return what was decided since the last call, to be performed in this order."""
        actions, self._actions = self._actions, []
        return actions

    def unroutable(self, route: bytes, now: float) -> None:
        """A connection was gone when something was to be sent on it: its groups may come back on another."""
        if self.departures is not None:
            self.departures.closed(route, now)
        else:
            self.table.unroutable(route, now)

    def serve(self, record: RecordSpec, run_id: str, run_seed: int, *, replica: int = 0) -> None:
        """A policy is there: open for groups. Another run, or another record, ends the sessions of the former.

        `replica` goes into the groups' seeds: no two inference services of a run, nor two lives of one, share it.
        """
        self.evaluations.forget_frozen()
        if self.recorded is None:
            self.table.run_id, self.table.run_seed, self.table.replica = run_id, run_seed, replica
        else:
            if self.recorded == record and self.table.run_id == run_id:
                return
            self.learner_sessions.discard_unrolls()
            for session in self.table.change_run(run_id, run_seed):
                self._send(session.route, self.table.challenge(session.id))
                self._release(session, "another_run")
        self.recorded = record

    # From environments

    def receive(self, route: bytes, frames: Sequence[bytes], now: float) -> bool:
        """One message from an environment; bad ones are counted and answered, never raised.

        Returns whether it moved a group on: a step that nobody had sent yet.
        """
        try:
            message = decode(frames[0])
            if self.departures is not None:
                self._see_off(message, route, self.departures)
            elif isinstance(message, Step):
                return self._step(message, route, frames, now)
            elif isinstance(message, Hello):
                self._hello(message, route, now)
            elif isinstance(message, Ping):
                self._ping(message, route, now)
            elif isinstance(message, Bye):
                self._bye(message, route, now)
            else:
                raise RemoteWireError("unexpected", f"{type(message).__name__} is not for inference")
        except RemoteWireError as error:
            self.tally.refused_messages += 1
            complaint = self._replies.about_message(route, error)
            if complaint is not None:
                self._send(route, complaint)
        return False

    def _see_off(self, message: Message, route: bytes, departures: GoodbyeTracker) -> None:
        """The run is over: whoever says anything hears so, until they say BYE themselves."""
        if isinstance(message, Bye) and message.session == 0:
            departures.left(route)
        else:
            self._send(route, Bye(session=0, reason="run_finished"))
            departures.told(route)

    def _hello(self, hello: Hello, route: bytes, now: float) -> None:
        self._greeting.pop(route, None)
        if len(self._greeting) == MAX_GREETING:
            del self._greeting[next(iter(self._greeting))]
        self._greeting[route] = None
        misplaced = self.audience.judge(hello) if self.audience is not None else None
        served = self.recorded.spec if self.recorded else None
        refusal = misplaced or judge(hello, served, self.learner_sessions, self.config.max_frame_bytes)
        if not isinstance(refusal, Reject):
            self.learner_sessions.introduce(hello.task, hello.spec, now)
        if refusal is not None or self.recorded is None:
            if refusal is not None:
                self.tally.refused(refusal.code)
                self._send(route, refusal)
            return
        answer = self.table.hello(hello, route, now)
        if isinstance(answer, Welcome):
            self.actors.met(hello.actor, hello.incarnation, is_start=not hello.group and not hello.run_id)
            session = self.table.sessions[answer.session]
            if session.attached is None and not self._admit(session, self.recorded):
                return
            del self._greeting[route]
        else:
            self.tally.refused(answer.code)
        self._send(route, answer)

    def _admit(self, session: Session, record: RecordSpec) -> bool:
        """Give a new session its slots and rows."""
        start = self._slots.allocate(session.lanes)
        if start is None:  # free slots are there but in pieces: it asks again
            self.table.end(session)
            return False
        session.attached = group = make_group(session, record, start, self.config.out_of_bounds)
        if self.audience is not None:
            group.lanes.greedy, group.lanes.pinned = self.audience.greedy, False
        self._actions.append(ForgetState(group.lanes))
        return True

    def _ping(self, ping: Ping, route: bytes, now: float) -> None:
        if self.recorded is None:
            self._send(route, Pong(sent_ms=ping.sent_ms, server_epoch=self.incarnation, work_age_ms=0, turns_away=True))
        else:
            sessions = self.table.sessions.values()
            if any(session.route == route and session.hello.mode == "train" for session in sessions):
                self.tally.pinged(ping.load)
            work_age_ms = int(1e3 * self._work_age_s())
            self._send(route, self.table.ping(ping, route, now, work_age_ms=work_age_ms))

    def _bye(self, bye: Bye, route: bytes, now: float) -> None:
        for session in self.table.bye(bye, route, now):
            self._release(session, bye.reason if bye.reason in BYE_REASONS else "bye")

    def _step(self, step: Step, route: bytes, frames: Sequence[bytes], now: float) -> bool:
        """Judge a STEP, and act on it if it is the group's next one; whether it was."""
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
            self.tally.out_of_bounds += outside
            if picture is not None:
                version = self.evaluations.version(group) if group.lanes.pinned else self.version
                self.pictures.take(session, version, picture, now)
            self._accept(group, inputs, statistics, now)
            return True
        if verdict is StepVerdict.CACHED and session.reply is not None:
            self._actions.append(SendToEnvironment(route, session.reply))
        elif verdict is StepVerdict.CHALLENGE:
            self._send(route, table.challenge(step.session))
        return False

    def _accept(self, group: Group, inputs: list[Array], statistics: Array | None, now: float) -> None:
        """A new tick of a group: write its rows, count its ends, then queue or hold it."""
        group.previous_flags, group.flags = group.flags, inputs[-1]
        rows, mode = group.lanes.rows, group.session.hello.mode
        rows.write(inputs)
        group.lanes.tick += 1
        self.tally.requests += 1
        if statistics is not None:
            self._count_episodes(group, statistics)
        if mode == "eval":
            self.tally.eval_steps += valid_steps(group.flags)
            if self.audience is None:
                self._queue_evaluation(group, now)
                return
        if isinstance(rows, UnrollWriter):
            self._count_steps(group)
            if rows.is_complete and not self.learner_sessions.of(group.task).pass_on(group):
                self.tally.held_no_credit += 1
                self.learner_sessions.of(group.task).held.append(group)
                self._mark(group, RequestState.HELD_NO_CREDIT, now)
                return
        self._batcher.add(group, now)

    def _count_steps(self, group: Group) -> None:
        """Valid transitions of a training group's tick."""
        steps = valid_steps(group.flags)
        has_resets = steps < len(group.flags) and group.lanes.tick > 0
        self.tally.acted_steps += steps
        aborted = aborted_episodes(group.previous_flags, group.flags) if has_resets else 0
        self.learner_sessions.of(group.task).episodes.count_steps(steps, aborted)

    def _count_episodes(self, group: Group, statistics: Array) -> None:
        """Episodes that ended in this tick, f32 [ended lanes, K]."""
        if self.audience is not None:
            self.audience.add(statistics)
            return
        hello, episodes = group.session.hello, self.learner_sessions.of(group.task).episodes
        if hello.mode == "train":
            episodes.add(statistics, self.version)
        elif hello.mode == "eval":
            result = self.evaluations.record(group, statistics)
            if result is not None:
                episodes.tell_evaluation(hello.spec, result)

    # Evaluation

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
        """Freeze weights for what is asked for, if evaluation groups are there; begin what has frozen weights."""
        groups = self._evaluation_groups()
        wanted = self.evaluations.wanted_version(groups)
        if wanted and wanted == self.version:
            self.evaluations.freezing()
            self._actions.append(FreezeWeights())
        elif wanted and wanted < self.version:  # else it is on its way
            self.learner_sessions.main.fetch(wanted)
        for group in self.evaluations.start(groups):
            if group.session.state == RequestState.HELD_NO_EVALUATION:
                self._queue_evaluation(group, now)

    def pinned(self, version: int, now: float) -> None:
        """These weights are frozen: rounds of theirs begin with the groups that are there. 0: none are."""
        self.evaluations.frozen(version)
        if version:
            self._start_evaluations(now)

    def unplayed_evaluations(self) -> dict[str, int]:
        """Episodes of each evaluation that is wanted and that no group here plays, by task."""
        return self.evaluations.without_groups(self._evaluation_groups())

    def _evaluation_groups(self) -> list[Group]:
        return [session.attached for session in self.table.sessions.values() if session.hello.mode == "eval"]

    # From the learner

    def credited(self, credit: Credit, now: float, *, task: str = "") -> None:
        """A task's new figures: its held groups go on while they last, and an evaluation may be asked for."""
        self.evaluations.ask(task, credit.evaluation)
        self._start_evaluations(now)
        self._release_held(self.learner_sessions.of(task), now)

    def release_held(self, now: float) -> None:
        """Let held groups go on while the learner takes their unrolls: those of a task whatever waits in others."""
        for stream in self.learner_sessions.all:
            self._release_held(stream, now)

    def _release_held(self, stream: LearnerSession, now: float) -> None:
        while stream.held:
            group = stream.held[0]
            if not group.session.is_ended:
                if not stream.pass_on(group):
                    return
                self._mark(group, RequestState.QUEUED, now)
                self._batcher.add(group, now)
            stream.held.popleft()

    def end_task(self, task: str) -> None:
        """The learner wants nothing of this task any more: its groups have to say HELLO again, and hear why."""
        for session in [item for item in self.table.sessions.values() if item.hello.task == task]:
            self._send(session.route, self.table.challenge(session.id))
            self.table.end(session)
            self.tally.lost_groups += 1
            self._release(session, "refused_task")

    def weights_changed(self, version: int, now: float) -> None:
        """The engine acts with this version from now on."""
        self.version = version
        self._start_evaluations(now)

    # Batches

    def launch(self, now: float) -> None:
        """Start a batch if the device is free and it is time."""
        table = self.table
        num_active = (
            len(table.sessions) - table.num_unstepped - self.learner_sessions.num_held
        )  # who may come to this batch
        at = self._batcher.launch_at(num_active, now)
        if at is None:
            return
        if at > now:
            self._actions.append(LaunchAt(at))
            return
        groups = []
        for group, wait_s in self._batcher.take(now):
            self.tally.wait_s += wait_s
            self.tally.waits += 1
            groups.append(group)
        batches: dict[tuple[bool, bool], list[Group]] = {}
        for group in groups:
            batches.setdefault((group.lanes.pinned, group.lanes.greedy), []).append(group)
        ordered = [group for batch in batches.values() for group in batch]
        self.tally.batches += 1
        self.tally.batch_lanes += sum(group.lanes.count for group in ordered)
        self._actions.append(RunBatches([[group.lanes for group in batch] for batch in batches.values()], ordered))

    def acted(
        self, groups: Sequence[Group], payloads: Sequence[Sequence[bytes]], versions: Sequence[int], now: float
    ) -> None:
        """A batch is done: answer its groups and start the next."""
        self._batcher.finished()
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
        session = group.session
        frames = [encode_act(session.id, session.last_seq, version, bits, reset_seed), *payload]
        self.table.answer(session, frames, now)
        self._actions.append(SendToEnvironment(session.route, frames))

    # Time

    def beat(self, now: float, *, drained: bool, stalled_until: float) -> None:
        """Twice a second: judge leases, find closed connections, pass on what ended."""
        for session in self.table.expire(now, drained=drained, stalled_until=stalled_until):
            self.tally.lost_groups += 1
            self.actors.lost(session.hello.actor, now)
            self._release(session, "silent" if session.is_reachable else "closed")
        self.actors.forget(now)
        self.flush_episodes()

    def probe(self, now: float) -> None:
        """Each second: a PONG nobody asked for, or BYE again, finds the connections that are closed."""
        if self.departures is not None:
            for route in self.departures.waiting(now):
                self._send(route, Bye(session=0, reason="run_finished"))
                self.departures.told(route)
        else:
            for route in self.table.routes():
                self._send(route, Pong(sent_ms=0, server_epoch=self.incarnation, work_age_ms=0))

    def flush_episodes(self) -> None:
        """Pass on training episodes and steps since the last time."""
        if self.recorded is not None:
            for stream in self.learner_sessions.all:
                stream.episodes.flush(self.recorded.spec)

    # Ends

    def revoke(self, routes: Sequence[bytes]) -> int:
        """The keys behind these connections were revoked: end their sessions, and say so once. How many ended."""
        ended = self.table.revoke(routes)
        for session in ended:
            self._send(session.route, revoked(session.id, "inference's keys are"))
            self.tally.lost_groups += 1
            self._release(session, "revoked")
        return len(ended)

    def dismiss(self, reason: str) -> None:
        """Tell everyone to go, who is in or asked to be: BYE(draining) means elsewhere, BYE(run_finished) for good."""
        if reason == "run_finished":
            self.departures = GoodbyeTracker()
        inside = set(self.table.routes())
        for route in inside | self._greeting.keys():
            self._send(route, Bye(session=0, reason=reason))
            if self.departures is not None:
                self.departures.told(route, is_stranger=route not in inside)
        self._greeting.clear()
        for session in self.table.drain():
            writer = session.attached.lanes.rows if session.attached else None
            if isinstance(writer, UnrollWriter) and writer.is_complete and self.departures is None:
                self.learner_sessions.of(session.hello.task).push(
                    session.attached
                )  # held for credit, which may still come
            self._release(session, reason)
        self.flush_episodes()

    def still_here(self, now: float) -> list[bytes]:
        """Return the connections that were told that the run is over and have not left yet; empty while it goes on."""
        return [] if self.departures is None else self.departures.waiting(now)

    def _strike(self, session: Session, route: bytes, error: RemoteWireError) -> None:
        """Refuse a STEP, and say so: with observations out of bounds for good, otherwise until there were too many."""
        self.tally.refused_messages += 1
        is_fatal = error.code == BOUNDS
        ended = self.table.strike(session)
        if is_fatal:
            self.table.end(session)
            ended = session
        self._send(route, about_step(session.id, error, is_over=ended is not None, retryable=not is_fatal))
        if ended is not None:
            self._release(ended, "out_of_bounds" if is_fatal else "broken_messages")

    def _release(self, session: Session, reason: str) -> None:
        """Free what a session held, and count why it ended."""
        group: Group | None = session.attached
        if group is None:
            return
        session.attached = None
        rows = group.lanes.rows
        self.tally.ended(reason, max(0, rows.row) * session.lanes if isinstance(rows, UnrollWriter) else 0)
        self._batcher.discard(group)
        self._slots.release(group.lanes.start, group.lanes.count)
        if session.hello.mode == "eval":
            self.evaluations.lose(group)

    def _mark(self, group: Group, state: RequestState, now: float) -> None:
        self.table.mark(group.session, int(state), now)

    def _send(self, route: bytes, message: Message) -> None:
        self._actions.append(SendToEnvironment(route, [encode(message)]))

    @property
    def training_lanes(self) -> int:
        """Lanes whose experience is learned from."""
        sessions = self.table.sessions.values()
        return sum(session.lanes for session in sessions if session.hello.mode == "train")

    def lanes_by_task(self) -> dict[str, float]:
        """Training lanes of each task that has any."""
        sessions = list(self.table.sessions.values())
        lanes: dict[str, float] = {}
        for session in sessions:
            if session.hello.mode == "train" and session.hello.task:
                lanes[session.hello.task] = lanes.get(session.hello.task, 0) + session.lanes
        return lanes

    def lanes_by_actor(self) -> dict[str, float]:
        """Lanes of each actor; 0 for those that were lost and have not come back."""
        return self.actors.lanes(list(self.table.sessions.values()))

    @property
    def used_slots(self) -> int:
        """How many slots belong to sessions."""
        return self._slots.used

    @property
    def num_sessions(self) -> int:
        """Groups that have a session now, of every mode."""
        return len(self.table.sessions)
