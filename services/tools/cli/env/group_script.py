"""What the conformance kit does with one group of a service: an inference that is unhelpful on purpose.

One script, exercise after exercise, written as a generator that is fed events and sends what it likes; no socket, no
clock. An exercise that gets no further within the kit's patience has failed, and those behind it are skipped.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seedbed.services.tools.cli.env.life import Send, random_action_frames
from seedbed.services.tools.cli.env.row_checks import RowChecker, Tick, compare_episodes, fingerprint
from seedbed.services.tools.cli.env.verdicts import Result, failed, passed, skipped
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Error,
    Hello,
    Message,
    Ping,
    Reject,
    RequestState,
    SessionReport,
)
from seedbed.shared.protocol.rows import act_layout
from seedbed.shared.protocol.sessions import Session, SessionTable, StepVerdict

SEED_TICKS = 100  # of each episode that is compared
QUIET_BEATS = 3  # PONGs that say `queued` while an ACT is held back
RESEND_BEATS = 4  # PONGs that show a STEP or ACT missing, at most
UNREADABLE = (b"", b"\xc1", b"\x00", b"\x90", b"\x91\x63", b"\x93\x05\x01\x02", b"\x96\x05\xa1x\x00\x00\x00\x00")

# Exercises in their order; each is a rule.
EXERCISES = (
    "hello again", "soak", "beats", "patience", "ACT twice", "foreign ACT", "lost STEP", "lost ACT",
    "malformed replies", "forgotten session", "seeds", "connection lost", "draining",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Greeted:
    """An event: the group said HELLO."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Stepped:
    """STEP, as the table of sessions judged it."""

    seq: int
    tick: Tick
    payload: tuple[bytes, ...]
    verdict: StepVerdict


@dataclass(frozen=True, slots=True)
class Beat:
    """PING; its PONG has been sent."""

    ping: Ping


@dataclass(frozen=True, slots=True)
class Cut:
    """Every connection was closed; the address listens again."""


GREETED = "repeated until WELCOME came"

Event = Greeted | Stepped | Beat | Cut
Script = Generator[None, Event, None]
Answer = Generator[None, Event, Stepped]


class GroupScript:
    """The script of one group. Owned by the kit; holds one STEP and fingerprints of two short episodes.

    Large because each exercise of the conformance script is a method.
    """

    def __init__(
        self, hello: Hello, table: SessionTable, send: Send, *, soak_steps: int, seed: int, who: str = ""
    ) -> None:
        self.hello = hello
        self.exercise = EXERCISES[0]
        self.results: list[Result] = []
        self.is_done = False
        self.awaits_cut = False  # the connection is shared: it is cut once every group is ready
        self.checker = RowChecker(hello.spec, hello.lanes, who)
        self.latencies_s: list[float] = []
        self.now = self.progress_at = self.begun_at = 0.0
        self.route = b""
        self._table, self._send_to, self._who = table, send, who
        self._soak_steps, self._seed = soak_steps, seed
        self._generator = np.random.default_rng(seed)
        self._session: Session | None = None
        self._answered = 0  # nonce of the HELLO that WELCOME answered last
        self._step: Stepped | None = None  # the outstanding one
        self._must_be_first = True
        self._rude = ""  # what the peer did out of turn, the first time
        self._doctored: Callable[[SessionReport], SessionReport] | None = None
        self._script = self._play_all()
        next(self._script)

    # From the kit

    def feed(self, event: Event, route: bytes, now: float) -> None:
        """Handle one event of this group, and send what follows."""
        self.now, self.route = now, route
        if not isinstance(event, Beat):
            self.progress_at = now
        if self.is_done:
            return
        try:
            self._script.send(event)
        except StopIteration:
            self.is_done = True

    def doctor(self, report: SessionReport) -> SessionReport:
        """The PONG's line for this group, as the exercise wants it."""
        return self._doctored(report) if self._doctored else report

    def judge_time(self, now: float, patience_s: float, *, unreadable: str) -> None:
        """Give up the exercise under way if nothing comes, or if things come and lead nowhere.

        Args:
          unreadable: what came and could not be read, if anything did: then that is why.
        """
        if self.is_done or self.awaits_cut:
            return
        if now - self.progress_at > patience_s:
            self.give_up(f"nothing came for {patience_s:.0f} s" + (" that could be read" if unreadable else ""))
        elif self.exercise != "soak" and now - self.begun_at > 3 * patience_s:
            self.give_up(f"no end after {now - self.begun_at:.0f} s" + (f": {self._rude}" if self._rude else ""))

    def give_up(self, reason: str) -> None:
        """The exercise under way failed; the rest is not reached."""
        if self.is_done:
            return
        self.is_done = True
        self.results.append(failed(self.exercise, f"{self._who}{reason}"))
        missed = EXERCISES[EXERCISES.index(self.exercise) + 1 :]
        self.results += [skipped(name, f"not reached: {self.exercise!r} failed") for name in missed]

    def leave(self, what: str) -> None:
        """The service left by itself: once it has been welcomed and before its first rows, its environments failed."""
        if self.exercise == EXERCISES[0] and self._session is not None:
            self._pass(GREETED)
            self.exercise = "soak"
        self.give_up(what)

    def all_results(self) -> list[Result]:
        """What was found about rows, and about the link."""
        order = "one step outstanding"
        manners = failed(order, self._who + self._rude) if self._rude else passed(order)
        rows = self.checker.results() if self.checker.num_ticks else []
        return [*self.results, *rows, manners]

    # The script

    def _play_all(self) -> Script:
        steps = (
            self._greet, self._soak, self._beat, self._hold, self._act_twice, self._act_foreign, self._lose_step,
            self._lose_act, self._send_nonsense, self._forget_session, self._compare_seeds, self._cut, self._drain,
        )  # fmt: skip
        for name, exercise in zip(EXERCISES, steps, strict=True):
            self.exercise, self.progress_at, self.begun_at = name, self.now, self.now
            yield from exercise()

    def _greet(self) -> Script:
        """The first HELLO gets no answer, the second one ERROR(starting), the third one WELCOME."""
        yield from self._await_hello()
        again = yield from self._await_hello()
        said = "no policy yet"
        self._send(
            Error(code="starting", scope="connection", session=0, nonce=again.nonce, retryable=True, message=said)
        )
        self._welcome((yield from self._await_hello()))
        yield from self._next()
        self._pass(GREETED)

    def _soak(self) -> Script:
        started = self.now
        for _ in range(self._soak_steps):
            yield from self._act()
        seconds = max(self.now - started, 1e-9)
        p50, p99 = 1e3 * np.percentile(self.latencies_s, [50, 99])
        rate = self._soak_steps * self.hello.lanes / seconds
        self._pass(
            f"{self._soak_steps} ticks of {self.hello.lanes} lanes, {rate:,.0f} steps/s a group, "
            f"ACT to STEP p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )

    def _act_twice(self) -> Script:
        was_rude = self._rude
        frames = self._act_frames()
        self._send_frames(frames)
        self._send_frames(frames)
        yield from self._next()
        did = yield from self._quiet(1)
        self._judge(
            not did and self._rude == was_rude, "acted on once", f"after the same ACT twice {did or self._rude}"
        )
        yield from self._act()

    def _act_foreign(self) -> Script:
        was_rude, session = self._rude, self._known_session()
        payload = self._actions()
        for seq, name in (
            (session.last_seq - 1, session.id),
            (session.last_seq + 1, session.id),
            (session.last_seq, 7),
        ):
            self._send_frames([encode(Act(session=name, seq=max(0, seq), policy_version=1)), *payload])
        resent = yield from self._quiet(1)
        self._judge(not resent and self._rude == was_rude, "ignored", f"an ACT of another seq or session: {resent}")
        yield from self._act()

    def _beat(self) -> Script:
        beats: list[float] = []
        while len(beats) < 3:
            event = yield
            if isinstance(event, Beat):
                beats.append(self.now)
                self.progress_at = self.now
            else:
                self._out_of_turn(event)
        asked, longest = self._table.limits.beat_s, float(np.diff(beats).max())
        self._judge(
            longest < max(4 * asked, asked + 1.0),
            f"every {1e3 * float(np.mean(np.diff(beats))):.0f} ms, WELCOME.beat_s is {1e3 * asked:.0f} ms",
            f"{longest:.1f} s between two PINGs, WELCOME.beat_s is {asked} s",
        )

    def _hold(self) -> Script:
        resent = yield from self._quiet(QUIET_BEATS)
        self._judge(not resent, f"silent through {QUIET_BEATS} PONGs that said `queued`", f"no ACT, and {resent}")
        yield from self._act()

    def _lose_step(self) -> Script:
        """Say that the outstanding STEP never came."""
        self._doctored = lambda report: replace(report, last_seq=report.last_seq - 1, state=int(RequestState.ANSWERED))
        yield from self._await_resend("last_seq below the outstanding seq")
        self._doctored = None
        yield from self._act()

    def _lose_act(self) -> Script:
        """Answer a STEP, but keep the ACT back until a PONG has shown that it must be missing."""
        reply = self._act_frames()
        yield from self._await_resend("`answered`, and the ACT never came")
        self._send_frames(reply)
        yield from self._next()

    def _send_nonsense(self) -> Script:
        session = self._known_session()
        for header in UNREADABLE:
            self._send_frames([header])
        act = encode(Act(session=session.id, seq=session.last_seq, policy_version=1))
        payload = self._actions()
        self._send_frames([act])
        self._send_frames([act, *(frame[:-1] for frame in payload)])
        self._send_frames([act, *payload, b"more"])
        self._send(Bye(session=session.id ^ 1 << 40, reason="draining"))
        yield from self._act()
        self._pass(f"{len(UNREADABLE) + 3} of them; it went on")

    def _forget_session(self) -> Script:
        session = self._known_session()
        self._table.end(session)
        self._send(self._table.challenge(session.id))
        yield from self._renew()

    def _compare_seeds(self) -> Script:
        if "reset" not in self.hello.capabilities:
            self.results.append(skipped("seeds", "HELLO names no capability `reset`, so episodes cannot be repeated"))
            return
        ticks = min(SEED_TICKS, self._soak_steps)
        played: list[list[dict[str, str]]] = []
        for seed in (self._seed, self._seed, self._seed + 1):
            self._generator = np.random.default_rng(self._seed)  # the same actions for each
            session = self._known_session()
            reset = Act(
                session=session.id, seq=session.last_seq, policy_version=1, bits=int(ActBits.RESET), reset_seed=seed
            )
            self._must_be_first = True
            frames = [encode(reset), *map(bytes, act_layout(self.hello.spec, self.hello.lanes).allocate())]
            self._table.answer(session, frames, self.now)
            self._send_frames(frames)
            step = yield from self._next()
            played.append([fingerprint(self.hello.spec, step.tick)])
            for _ in range(ticks):
                step = yield from self._act()
                played[-1].append(fingerprint(self.hello.spec, step.tick))
        if self.hello.seeding == "none":
            self.results.append(skipped("seeds", "HELLO says seeding `none`; resets were answered with `first` rows"))
        else:
            self.results.append(compare_episodes(*played))

    def _cut(self) -> Script:
        """Close the connection under its feet."""
        self.awaits_cut = True
        while not isinstance((yield), Cut):
            pass
        self.awaits_cut, self.begun_at = False, self.now
        self._welcome((yield from self._await_hello()))
        event = yield
        while not isinstance(event, Stepped):
            event = yield
        same = self._step is not None and event.payload == self._step.payload
        self._judge(same, "dialled again and went on", "the outstanding STEP came back with other rows")
        if event.verdict is StepVerdict.ACCEPT:
            self._step = event
        yield from self._act()

    def _drain(self) -> Script:
        session = self._known_session()
        self._table.end(session)
        self._send(Bye(session=session.id, reason="draining"))
        hello = yield from self._await_hello()
        self._send(Reject(nonce=hello.nonce, code="draining", retryable=True, message="leaving"))
        yield from self._renew()

    # Steps of the script

    def _next(self) -> Answer:
        """Wait for the next STEP, judge its rows."""
        while True:
            event = yield
            if isinstance(event, Stepped) and event.verdict is StepVerdict.ACCEPT:
                self.checker.observe(event.tick, after_reset=self._must_be_first)
                self._must_be_first = False
                self._step = event
                return event
            self._out_of_turn(event)

    def _await_hello(self) -> Generator[None, Event, Hello]:
        """Wait for HELLO; what was under way before does not count."""
        while True:
            event = yield
            if isinstance(event, Greeted):
                return event.hello

    def _act(self) -> Answer:
        """Answer the outstanding STEP with random actions, and wait for the next one."""
        self._send_frames(self._act_frames())
        sent_at = self.now
        step = yield from self._next()
        self.latencies_s.append(self.now - sent_at)
        return step

    def _quiet(self, beats: int) -> Generator[None, Event, str]:
        """Wait through so many beats; what the peer did instead of waiting, "" for nothing."""
        did = ""
        while beats:
            event = yield
            if isinstance(event, Beat):
                beats -= 1
                self.progress_at = self.now
            else:
                did = did or self._describe(event)
                self._out_of_turn(event)
        return did

    def _await_resend(self, shown: str) -> Script:
        """Wait for the outstanding STEP to come again."""
        beats = 0
        while beats <= RESEND_BEATS:
            event = yield
            if isinstance(event, Stepped):
                same = self._step is not None and event.payload == self._step.payload
                self._judge(same, "sent again, same bytes", "sent again with other bytes")
                return
            beats += isinstance(event, Beat)
        self.results.append(failed(self.exercise, f"{self._who}not sent again after {beats} PONGs with {shown}"))

    def _renew(self) -> Script:
        """The session is over: HELLO, WELCOME to a new one, the outstanding rows as seq 0."""
        hello = yield from self._await_hello()
        self._welcome(hello)
        event = yield
        while not (isinstance(event, Stepped) and event.verdict is StepVerdict.ACCEPT):
            event = yield
        problem = ""
        if self._step is not None and event.payload != self._step.payload:
            problem = "the first STEP of the new session holds other rows than the outstanding one"
        elif hello.run_id != self._table.run_id:
            problem = f"HELLO says run id {hello.run_id!r}, the last WELCOME said {self._table.run_id!r}"
        self._judge(not problem, "went on in a new session with the same rows", problem)
        self._step = event
        yield from self._act()

    def _welcome(self, hello: Hello) -> None:
        self._answered = hello.nonce
        answer = self._table.hello(hello, self.route, self.now)
        self._session = next(
            (item for item in self._table.sessions.values() if item.hello.group == hello.group), self._session
        )
        self._send(answer)

    def _out_of_turn(self, event: Event) -> None:
        """Something that nobody asked for: noted, and answered as inference would."""
        if isinstance(event, Greeted):
            if event.hello.nonce != self._answered:  # else it crossed our answer
                self._rude = self._rude or "it said HELLO again, though its session is fine"
            self._welcome(event.hello)
        elif isinstance(event, Stepped):
            self._rude = self._rude or self._describe(event)
            session = self._known_session()
            if event.verdict is StepVerdict.CACHED and session.reply:
                self._send_frames(session.reply)

    def _describe(self, event: Event) -> str:
        if isinstance(event, Greeted):
            return "it said HELLO"
        if isinstance(event, Stepped):
            return f"it sent STEP {event.seq}, the outstanding one is {self._known_session().last_seq}"
        return ""

    # Small things

    def _known_session(self) -> Session:
        assert self._session is not None, "no exercise comes before WELCOME"
        return self._session

    def _actions(self) -> list[bytes]:
        """Random actions of all lanes, as the payload frames of an ACT."""
        mask = self._step.tick.mask if self._step is not None else None
        return random_action_frames(self.hello.spec, self.hello.lanes, mask, self._generator)

    def _act_frames(self) -> list[bytes]:
        """The answer to the outstanding STEP, kept for resends."""
        session = self._known_session()
        header = encode(Act(session=session.id, seq=session.last_seq, policy_version=1))
        frames = [header, *self._actions()]
        self._table.answer(session, frames, self.now)
        return frames

    def _send(self, message: Message) -> None:
        self._send_to(self.route, [encode(message)])

    def _send_frames(self, frames: Sequence[bytes]) -> None:
        self._send_to(self.route, frames)

    def _pass(self, found: str) -> None:
        self.results.append(passed(self.exercise, found))

    def _judge(self, is_kept: bool, found: str, problem: str) -> None:
        self.results.append(passed(self.exercise, found) if is_kept else failed(self.exercise, self._who + problem))
