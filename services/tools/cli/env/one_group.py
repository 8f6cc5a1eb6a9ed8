"""A service of one group, as the inference that it dials: rows are handed on and answered when somebody says so.

No socket, no clock.

| what comes | what is done |
|---|---|
| HELLO of the mode that is awaited | WELCOME; a second group: REJECT `capacity` |
| HELLO of another mode | REJECT `mode`, and that is the end |
| STEP | handed on; `ask` answers it |
| the same rows in a new session | what was asked is asked again, for it was lost with the former session |
| BYE and no HELLO after it, silence | the end, as is a process that ends |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.services.tools.cli.env.life import Life, ServiceLink, describe_status, quote
from seedbed.services.tools.cli.env.row_checks import Tick, read_tick
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Act, ActBits, Bye, Hello, Message, Reject, Step, StepBits, Welcome
from seedbed.shared.protocol.pictures import PICTURE_HEADER_BYTES, check_picture
from seedbed.shared.protocol.rows import REWARD_PROBLEM, act_layout, are_rewards
from seedbed.shared.protocol.sessions import Session, StepVerdict

ALONE_S = 3.0  # without a session, and nobody comes back
STALL_S = 1.0  # between two polls: it was us who slept, and messages may be waiting
REFUSAL_S = 2.0  # for a service that was refused to leave by itself
PURPOSES = {  # by mode: what is done with the group, the run's id, and why another mode is refused
    "play": ("playing", "play", "a person plays here"),
    "eval": ("evaluating", "evaluation", "a policy is evaluated here"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTick:
    """One tick of a service's group, and the HELLO of that group."""

    hello: Hello
    tick: Tick
    picture: Array | None  # u8 [height, width, 3]


class OneGroup(Life):
    """One group. `show` gets each tick that is to be answered; then `ask` or `dismiss` is called."""

    def __init__(self, link: ServiceLink, *, show: Callable[[SeenTick], None], asks_pictures: bool = True) -> None:
        self.rule, self.run_id, self._host = PURPOSES[link.options.mode]
        super().__init__(link)
        self._show, self._asks_pictures = show, asks_pictures
        self._problem = ""
        self._known: Hello | None = None
        self._session: Session | None = None
        self._tick: Tick | None = None
        self._payload: Sequence[bytes] = ()  # of the newest STEP
        self._asked: tuple[int, Sequence[bytes], int] | None = None  # of an ACT whose STEP has not come
        self._leaves_by: float | None = None
        self._alone_since: float | None = None
        self._polled_at = self._patient_until = 0.0

    @property
    def problem(self) -> str:
        """What went wrong, if anything did."""
        return self._problem or "; ".join(result.found for result in self.results)

    def ask(self, actions: Sequence[bytes], *, bits: int = 0, seed: int = 0) -> None:
        """Answer the outstanding STEP: ACT's payload frames, bits and reset seed. Nothing happens while none waits."""
        session = self._session
        if session is not None and self._tick is not None and self._asked is None:
            self._asked = bits, actions, seed
            self._answer(session, *self._asked)

    def reset(self, seed: int) -> None:
        """Have every lane begin anew with this seed. Nothing happens while no STEP waits."""
        if self._session is None:
            return
        actions = act_layout(self._session.hello.spec, self._session.lanes).allocate()
        self.ask([bytes(frame) for frame in actions], bits=int(ActBits.RESET), seed=seed)

    def dismiss(self) -> None:
        """Tell the group that it is over, with BYE(run_finished)."""
        if self._session is None or self.is_done:
            self.end()
        elif self._leaves_by is None:
            self._leaves_by = self._polled_at + self.options.patience_s
            self.send(self._session.route, Bye(session=0, reason="run_finished"))

    # Life

    def on_message(self, message: Message, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Answer at once, but for STEPs that wait for `ask`."""
        self._polled_at = max(self._polled_at, now)
        super().on_message(message, route, payload, now)

    def on_time(self, now: float) -> None:
        """Judges silence; ends what is over."""
        if now - self._polled_at > STALL_S:
            self._patient_until = now + self.table.limits.lease_s
        self._polled_at = now
        self.table.expire(now, drained=True, stalled_until=self._patient_until)
        is_alone = self._session is None or self._session.is_ended
        self._alone_since = (self._alone_since or now) if is_alone else None
        is_alone_for_long = self._alone_since is not None and now - self._alone_since > ALONE_S
        if self._leaves_by is not None:
            if self.expected is None and is_alone:
                self.end()
            elif now > self._leaves_by:
                self._fail("it is still there, long after it was told to leave")
        elif self._refused:
            self._fail(f"it sent what cannot be read: {self._refused}")
        elif self._session is not None and is_alone_for_long:
            self._fail("it left, or fell silent, and did not come back")
        elif self._tick is None and now > 10 * self.options.patience_s:
            self._fail("it came, but sent no STEP")

    def on_exit(self, status: int, last_words: str) -> None:
        """After BYE, as it should; else it died."""
        if self._leaves_by is None or status:
            self._fail(f"it ended with {describe_status(status)}{quote(last_words)}")
        else:
            self.end()

    # Within

    def on_hello(self, hello: Hello, route: bytes, now: float) -> None:
        """Welcome the one group that is awaited."""
        known = self._known
        if hello.mode != self.options.mode:
            found = f"{self._host}, and this group comes in mode {hello.mode!r}"
            hint = f"start it with actor.mode={self.options.mode}"
            self.send(route, Reject(nonce=hello.nonce, code="mode", retryable=False, message=found, hint=hint))
            self._problem = self._problem or f"it said HELLO in mode {hello.mode!r}: {hint}"
            self._leaves_by = now + REFUSAL_S if self._leaves_by is None else self._leaves_by
        elif known is not None and (known.incarnation, known.group) != (hello.incarnation, hello.group):
            found, hint = "another group is stepped here", "one group is enough"
            self.send(route, Reject(nonce=hello.nonce, code="capacity", retryable=True, message=found, hint=hint))
        else:
            self._known = hello
            answer = self.table.hello(hello, route, now)
            if isinstance(answer, Welcome):
                self._session = self.table.sessions[answer.session]
            self.send(route, answer)

    def on_step(self, step: Step, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Hand the rows on, unless they were there before."""
        session = self.table.sessions.get(step.session)
        if session is None:
            self.send(route, self.table.challenge(step.session))
            return
        tick = read_tick(session.hello.spec, session.lanes, step.bits, payload)
        if not are_rewards(tick.reward).all():
            raise RemoteWireError("reward", REWARD_PROBLEM)
        seen = SeenTick(hello=session.hello, tick=tick, picture=sent_picture(step, payload))
        verdict = self.table.step(step, route, now)
        if verdict is StepVerdict.CACHED and session.reply is not None:
            self.link.send(route, session.reply)
        elif verdict is StepVerdict.CHALLENGE:
            self.send(route, self.table.challenge(step.session))
        elif verdict is StepVerdict.ACCEPT:
            self._accept(session, seen, payload)

    def _accept(self, session: Session, seen: SeenTick, payload: Sequence[bytes]) -> None:
        is_first, is_again = self._tick is None, session.last_seq == 0 and payload == self._payload
        self._tick, self._payload = seen.tick, payload
        if is_again:
            if self._asked is not None:
                self._answer(session, *self._asked)
        elif is_first or self._asked is not None:  # else nobody waits for it: the next tick will show it
            self._asked = None
            self._show(seen)

    def _answer(self, session: Session, bits: int, actions: Sequence[bytes], seed: int) -> None:
        """Send what was asked as the ACT for the outstanding STEP."""
        if self._asks_pictures and "render" in session.capabilities:
            bits |= int(ActBits.PICTURE)
        act = Act(session=session.id, seq=session.last_seq, policy_version=1, bits=bits, reset_seed=seed)
        reply = [encode(act), *actions]
        self.table.answer(session, reply, self._polled_at)
        if not self.link.send(session.route, reply):
            self.table.unroutable(session.route, self._polled_at)

    def send(self, route: bytes, message: Message) -> bool:
        """Send a message, and note where nobody is there to get it."""
        is_sent = super().send(route, message)
        if not is_sent:
            self.table.unroutable(route, self._polled_at)
        return is_sent

    def _fail(self, problem: str) -> None:
        self._problem = self._problem or problem
        self.end()


def sent_picture(step: Step, payload: Sequence[bytes]) -> Array | None:
    """Return the picture that came with a STEP, u8 [height, width, 3], if one did. Raises: RemoteWireError."""
    if not step.bits & StepBits.RENDER:
        return None
    height, width = check_picture(payload[-1])
    return np.frombuffer(payload[-1], np.uint8, offset=PICTURE_HEADER_BYTES).reshape(height, width, 3)
