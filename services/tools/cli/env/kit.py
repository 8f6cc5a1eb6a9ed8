"""The conformance kit: three lives of a service, each met by an inference that tests it.

No socket, no process, no clock: `link` brings events and time, and does what is decided here.

| life | what the service must do |
|---|---|
| ScriptedLife | every exercise of `group_script`, in each of its groups, then leave when the run is finished |
| UnknownVersion | refuse a WELCOME of a version that it does not speak |
| Stopped | say BYE when it is told to stop |
"""

from collections.abc import Sequence
from dataclasses import replace

from seedbed.services.tools.cli.env.group_script import EXERCISES, Beat, Cut, Greeted, GroupScript, Stepped
from seedbed.services.tools.cli.env.life import Answering, Expected, Life, ServiceLink, describe_status, quote
from seedbed.services.tools.cli.env.row_checks import read_tick
from seedbed.services.tools.cli.env.verdicts import Result, failed, merge, passed, skipped
from seedbed.shared.protocol.messages import PROTOCOL_MAX, PROTOCOL_MIN, Bye, Hello, Message, Ping, Pong, Step, Welcome

STEPS_BEFORE_STOP = 20
VERSION_OF_NOBODY = 255


class ScriptedLife(Life):
    """The long life: one script for each group, then BYE(run_finished)."""

    rule = "finished"

    def __init__(self, link: ServiceLink) -> None:
        super().__init__(link)
        self.scripts: dict[int, GroupScript] = {}
        self._dismissed_at: float | None = None
        self._routes: set[bytes] = set()

    def on_message(self, message: Message, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Hand it to the script of its group."""
        self._routes.add(route)
        super().on_message(message, route, payload, now)
        self._cut_if_all_are_ready(now)

    def on_step(self, step: Step, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Feed the group's script with the rows."""
        script = self._script(step.session)
        if script is not None:
            tick = read_tick(script.hello.spec, script.hello.lanes, step.bits, payload)
            verdict = self.table.step(step, route, now)
            script.feed(Stepped(step.seq, tick, tuple(payload), verdict), route, now)

    def on_time(self, now: float) -> None:
        """Fail if nothing moves on for too long; end when every group is done."""
        for script in self.scripts.values():
            script.judge_time(now, self.options.patience_s, unreadable=self._refused)
        self._cut_if_all_are_ready(now)
        if self._dismissed_at is None:
            if self._is_complete(now) and all(script.is_done for script in self.scripts.values()):
                self._dismissed_at = now
                self._tell_all(Bye(session=0, reason="run_finished"))
        elif self.expected is None and not any(self._is_there(route) for route in self._routes):
            self.end(passed("finished", "left after BYE(run_finished); its exit status is not known"))
        elif now - self._dismissed_at > self.options.patience_s:
            self.end(failed("finished", f"still there {self.options.patience_s:.0f} s after BYE(run_finished)"))

    def on_exit(self, status: int, last_words: str) -> None:
        """Judge how the service left: because it was told to, or in the middle of an exercise."""
        what = f"it left with {describe_status(status)}{quote(last_words)}"
        if self._dismissed_at is not None:
            if status != 0:
                self.end(failed("finished", what))
            elif self.table.sessions:
                self.end(failed("finished", f"no BYE for {len(self.table.sessions)} of {len(self.scripts)} sessions"))
            else:
                self.end(passed("finished", "BYE for every session, exit status 0"))
            return
        for script in self.scripts.values():
            if script.exercise == "malformed replies" and status > 0 and last_words:
                missed = EXERCISES[EXERCISES.index(script.exercise) + 1 :]
                script.results.append(passed(script.exercise, what))
                script.results += [skipped(name, "not reached: it left after malformed replies") for name in missed]
            else:
                script.leave(what)
        self.end(skipped("finished", "it had left before"))

    def all_results(self) -> list[Result]:
        """The results of all groups, merged."""
        links = [item for script in self.scripts.values() for item in script.all_results()]
        return merge([*super().all_results(), *self._judge_hello(), *links])

    @property
    def doing(self) -> str:
        """The exercise of the slowest group."""
        active = [EXERCISES.index(script.exercise) for script in self.scripts.values() if not script.is_done]
        return EXERCISES[min(active)] if active else super().doing

    # Within

    def on_hello(self, hello: Hello, route: bytes, now: float) -> None:
        """Begin the group's script, or feed it."""
        known = next(iter(self.hellos.values()))
        if hello.incarnation != known.incarnation:
            for script in self.scripts.values():
                script.give_up("another process said HELLO: it was restarted, or two services dial this address")
            return
        if hello.group not in self.scripts:
            self.scripts[hello.group] = GroupScript(
                hello, self.table, self.link.send, soak_steps=self.options.soak_steps,
                seed=self.options.seed + hello.group, who=f"group {hello.group}: ",
            )  # fmt: skip
        self.scripts[hello.group].feed(Greeted(hello), route, now)

    def on_ping(self, ping: Ping, route: bytes, now: float) -> None:
        """Answer as the scripts want it, then feed those of the connection."""
        pong = self.table.ping(ping, route, now)
        script_of = {report.session: self._script(report.session) for report in pong.sessions}
        reports = tuple(
            script.doctor(report) if (script := script_of[report.session]) else report for report in pong.sessions
        )
        self.send(route, replace(pong, sessions=reports))
        for script in self.scripts.values():
            if script.route == route:
                script.feed(Beat(ping), route, now)

    def _script(self, session_id: int) -> GroupScript | None:
        session = self.table.sessions.get(session_id)
        return self.scripts.get(session.hello.group) if session else None

    def _is_complete(self, now: float) -> bool:
        """Whether no further group is expected."""
        if self.expected is not None and len(self.scripts) < self.expected.groups:
            return self._is_late(now)
        return bool(self.scripts)

    def _is_late(self, now: float) -> bool:
        """Return whether the groups that are there have waited long enough for the others."""
        return now - max(script.progress_at for script in self.scripts.values()) > self.options.patience_s

    def _cut_if_all_are_ready(self, now: float) -> None:
        active = [script for script in self.scripts.values() if not script.is_done]
        if active and all(script.awaits_cut for script in active) and self._is_complete(now):
            self._routes.clear()
            self.link.cut()
            for script in active:
                script.feed(Cut(), script.route, now)

    def _tell_all(self, message: Message) -> None:
        for route in self._routes:
            self.send(route, message)

    def _is_there(self, route: bytes) -> bool:
        """A probe that answers no PING says nothing to a service, and whether it is still connected to us."""
        return self.send(route, Pong(sent_ms=0, server_epoch=self.table.server_epoch, work_age_ms=0))

    def _judge_hello(self) -> list[Result]:
        """Compare what HELLO said with what was asked for."""
        if not self.hellos:
            return []
        hello, expected = next(iter(self.hellos.values())), self.expected
        problem = _problem_of(hello, expected)
        results = [failed("hello", problem) if problem else passed("hello", describe_hello(hello))]
        if "render" in hello.capabilities:
            results.append(skipped("pictures", "asked for in modes eval and play alone: untested here"))
        lanes = sorted({item.lanes for item in self.hellos.values()})
        found = f"{len(self.hellos)} groups of {' and '.join(map(str, lanes))} lanes"
        if expected is None:
            return [*results, passed("lanes", found)]
        is_asked = set(self.hellos) == set(range(expected.groups)) and lanes == [expected.lanes]
        asked = f"{expected.groups} groups of {expected.lanes} lanes were asked for"
        return [*results, passed("lanes", found) if is_asked else failed("lanes", f"{found}; {asked}")]


class UnknownVersion(Life):
    """WELCOME in a version of the far future: no STEP may follow."""

    rule = "unknown version"
    _welcomed_at: float | None = None

    def on_hello(self, hello: Hello, route: bytes, now: float) -> None:
        """Answer with a WELCOME in a protocol version that nobody speaks."""
        welcome = self.table.hello(hello, route, now)
        if isinstance(welcome, Welcome):
            self.send(route, replace(welcome, protocol=VERSION_OF_NOBODY))
        self._welcomed_at = now if self._welcomed_at is None else self._welcomed_at

    def on_ping(self, ping: Ping, route: bytes, now: float) -> None:
        """Send no PONG, as a service that hangs."""

    def on_step(self, step: Step, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Fail: no STEP may follow."""
        self.end(failed("unknown version", f"it sent STEP after a WELCOME with protocol {VERSION_OF_NOBODY}"))

    def on_time(self, now: float) -> None:
        """Staying is allowed, as long as it does not step."""
        if self._welcomed_at is not None and now - self._welcomed_at > self.options.patience_s / 4:
            self.end(passed("unknown version", "it stays and does not step"))

    def on_exit(self, status: int, last_words: str) -> None:
        """Judge how the service left: it should leave, with an exit status above 0 and a reason."""
        what = f"it left with {describe_status(status)}{quote(last_words)}"
        is_clear = status > 0 and bool(last_words)
        self.end(passed("unknown version", what) if is_clear else failed("unknown version", what))


class Stopped(Answering):
    """The exercise of a service that is stopped: a few ticks, then SIGTERM."""

    rule = "stopped"
    _told_at: float | None = None

    def on_time(self, now: float) -> None:
        """Told once it steps; given time to leave."""
        if self._told_at is None:
            if self.num_steps >= STEPS_BEFORE_STOP:
                self._told_at = now
                self.link.stop()
            elif now > 5 * self.options.patience_s:
                self.end(failed("stopped", f"only {self.num_steps} steps came in {now:.0f} s"))
        elif now - self._told_at > self.options.patience_s:
            self.end(failed("stopped", f"still there {self.options.patience_s:.0f} s after SIGTERM"))

    def on_exit(self, status: int, last_words: str) -> None:
        """BYE for every session, exit status 0."""
        if self._told_at is None:
            what = f"it left by itself with {describe_status(status)}{quote(last_words)}"
            self.end(failed("soak", what), skipped("stopped", "it had left before"))
        elif status != 0:
            self.end(failed("stopped", f"it left with {describe_status(status)}{quote(last_words)}"))
        elif self.num_byes < len(self.hellos):
            self.end(failed("stopped", f"BYE for {self.num_byes} of {len(self.hellos)} sessions"))
        else:
            self.end(passed("stopped", "BYE for every session, exit status 0"))


def _problem_of(hello: Hello, expected: Expected | None) -> str:
    """What is wrong with a HELLO that could be read."""
    if not hello.protocol_min <= PROTOCOL_MAX or not hello.protocol_max >= PROTOCOL_MIN:
        return (
            f"protocol {hello.protocol_min} to {hello.protocol_max}; this kit speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )
    if hello.nonce == 0:
        return "nonce 0: it must be random for each attempt"
    if hello.run_id:
        return f"run id {hello.run_id!r} before any WELCOME; it must be empty"
    if expected is not None and hello.mode != "train":
        return f"mode {hello.mode!r}; SEEDBED_ACTOR__MODE=train was set"
    if expected is not None and hello.spec.env_id != expected.env_id:
        return f"environment id {hello.spec.env_id!r}; service.toml says env_id = {expected.env_id!r}"
    return ""


def describe_hello(hello: Hello) -> str:
    """Return who the service is and what it can do, in one line."""
    leaves = len(hello.spec.observation.leaves()), len(hello.spec.action.leaves())
    capabilities = ", ".join(hello.capabilities) or "none"
    return (
        f"{hello.library} {hello.library_version}, {hello.spec.env_id}, {leaves[0]} observation and {leaves[1]} action "
        f"leaves, seeding {hello.seeding}, capabilities {capabilities}"
    )
