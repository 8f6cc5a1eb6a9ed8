"""The conformance kit against a good service and against one for each rule that it breaks; no sockets, no clock."""

from dataclasses import replace

import msgpack
import pytest

from seedbed.services.tools.cli.env.group_script import EXERCISES
from seedbed.services.tools.cli.env.kit import ScriptedLife, Stopped, UnknownVersion
from seedbed.services.tools.cli.env.verdicts import RuleVerdict, has_failed
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import Bye, Hello, Ping, Step, Welcome
from tests.support.service_in_memory import BrokenRules, ServiceInMemory


def repeats_steps(message, frames):
    """Every STEP comes twice."""
    return [frames, frames] if isinstance(message, Step) else [frames]


def sends_no_pings(message, frames):
    """No heartbeat."""
    return [] if isinstance(message, Ping) else [frames]


def sends_nothing(message, frames):
    """It never comes."""
    return []


def sends_no_byes(message, frames):
    """It leaves without a word."""
    return [] if isinstance(message, Bye) else [frames]


def shortens_rows(message, frames):
    """Payloads of a wrong size."""
    return [[frames[0], frames[1][:-8], *frames[2:]]] if isinstance(message, Step) else [frames]


def adds_nonsense(message, frames):
    """What is no header stands before each message."""
    return [[b"\xc1"], frames]


def claims_a_run(message, frames):
    """A run id before any was told."""
    return [[encode(replace(message, run_id="mine"))]] if isinstance(message, Hello) else [frames]


def evaluates(message, frames):
    """Another mode than asked for."""
    return [[encode(replace(message, mode="eval"))]] if isinstance(message, Hello) else [frames]


class GreetsOnce:
    """Each HELLO is said once, answered or not."""

    def __init__(self):
        self.said = set()

    def __call__(self, message, frames):
        if not isinstance(message, Hello):
            return [frames]
        is_new = (message.group, message.nonce) not in self.said
        self.said.add((message.group, message.nonce))
        return [frames] if is_new else []


class StepsOnce:
    """No STEP is sent a second time; or, changed, with other rows."""

    def __init__(self, *, changed=False):
        self.seen, self.changed = set(), changed

    def __call__(self, message, frames):
        if isinstance(message, Step):
            key = message.session, message.seq
            if key in self.seen:
                return [[frames[0], bytes(len(frames[1])), *frames[2:]]] if self.changed else []
            self.seen.add(key)
        return [frames]


class Impatient:
    """The newest STEPs are sent again with every PING."""

    def __init__(self):
        self.newest = {}

    def __call__(self, message, frames):
        if isinstance(message, Step):
            self.newest[message.session] = frames
        return [frames, *self.newest.values()] if isinstance(message, Ping) else [frames]


def test_a_good_service_passes_every_exercise():
    """With figures for people."""
    results = ServiceInMemory().run()
    assert not has_failed(list(results.values())), results
    assert {results[name].verdict for name in EXERCISES} == {RuleVerdict.PASS}
    assert results["lanes"].found == "2 groups of 2 lanes"
    assert results["finished"].found == "BYE for every session, exit status 0"


@pytest.mark.parametrize(
    ("rule", "found", "broken"),
    [
        ("hello", "run id 'mine' before any WELCOME", BrokenRules(up=claims_a_run)),
        ("hello", "mode 'eval'", BrokenRules(up=evaluates)),
        ("lanes", "2 groups of 3 lanes; 2 groups of 2 lanes were asked for", BrokenRules(lanes=3)),
        ("hello again", "nothing came for 4 s", BrokenRules(up=GreetsOnce())),
        ("messages", "not one MessagePack value", BrokenRules(up=adds_nonsense)),
        ("messages", "payload frames of", BrokenRules(up=shortens_rows)),
        ("one step outstanding", "it sent STEP 0", BrokenRules(up=repeats_steps)),
        ("ACT twice", "it sent STEP", BrokenRules(up=repeats_steps)),
        ("beats", "nothing came for 4 s", BrokenRules(up=sends_no_pings)),
        ("patience", "no ACT, and it sent STEP", BrokenRules(up=Impatient())),
        ("lost STEP", "not sent again after 5 PONGs", BrokenRules(up=StepsOnce())),
        ("lost STEP", "sent again with other bytes", BrokenRules(up=StepsOnce(changed=True))),
        ("lost ACT", "sent again with other bytes", BrokenRules(up=StepsOnce(changed=True))),
        ("malformed replies", "it left with signal 11", BrokenRules(dies_of=lambda m: -11 if m is None else None)),
        ("forgotten session", "other rows than the outstanding one", BrokenRules(resets_when_lost=True)),
        ("connection lost", "nothing came for 4 s", BrokenRules(dials_again=False)),
        ("finished", "still there 4 s after", BrokenRules(down=lambda m, frames: [] if isinstance(m, Bye) else frames)),
        ("finished", "no BYE for 2 of 2 sessions", BrokenRules(up=sends_no_byes)),
        ("started", "no HELLO within 20 s", BrokenRules(up=sends_nothing)),
    ],
)
def test_a_broken_rule_is_found(rule, found, broken):
    """In words that say what happened."""
    result = ServiceInMemory(broken=broken).run()[rule]
    assert result.verdict is RuleVerdict.FAIL
    assert found in result.found


class GreetsForEver:
    """HELLO with a new nonce for each PING, and no STEP."""

    def __init__(self):
        self.hellos = {}

    def __call__(self, message, frames):
        if isinstance(message, Hello):
            self.hellos[message.group] = message
        if not isinstance(message, Ping):
            return [] if isinstance(message, Step) else [frames]
        self.hellos = {group: replace(hello, nonce=hello.nonce + 1) for group, hello in self.hellos.items()}
        return [frames, *([encode(hello)] for hello in self.hellos.values())]


def forgets_the_last_field(message, frames):
    """HELLO without max_stall_s."""
    return [[msgpack.packb(msgpack.unpackb(frames[0])[:15])]] if isinstance(message, Hello) else [frames]


def first_failure(results):
    """As the table and the JSON show them."""
    return next(result for result in results.values() if result.verdict is RuleVerdict.FAIL)


def test_a_hello_that_cannot_be_read_is_the_first_failure_by_field():
    """At once, not after minutes of waiting for another one."""
    service = ServiceInMemory(broken=BrokenRules(up=forgets_the_last_field))
    found = first_failure(service.run())
    assert found.name == "messages"
    assert "max_stall_s" in found.found


def test_the_cause_comes_before_what_follows_from_it():
    """Rows of a wrong size: the message that could not be read, then the exercise that waited for it."""
    results = ServiceInMemory(broken=BrokenRules(up=shortens_rows)).run()
    assert first_failure(results).name == "messages"
    assert "that could be read" in results["hello again"].found


def test_a_service_that_leads_nowhere_is_given_up():
    """Though something comes all the time."""
    results = ServiceInMemory(broken=BrokenRules(up=GreetsForEver())).run()
    assert "no end after" in results["hello again"].found


@pytest.mark.parametrize("life", [ScriptedLife, Stopped])
def test_a_service_that_leaves_before_its_first_rows_has_environments_that_fail(life):
    """Not a client that repeats no HELLO or does not heed SIGTERM."""
    broken = BrokenRules(dies_of=lambda message: 1 if isinstance(message, Welcome) else None)
    results = ServiceInMemory(life, broken=broken).run()
    assert {name for name, result in results.items() if result.verdict is RuleVerdict.FAIL} == {"soak"}
    assert "exit status 1" in results["soak"].found


def test_what_nobody_looked_at_is_said():
    """Pictures, which are drawn in other modes, and truncation where none came."""
    results = ServiceInMemory(broken=BrokenRules(capabilities=("reset", "render"))).run()
    assert results["pictures"].verdict is RuleVerdict.SKIPPED
    assert "pictures" not in ServiceInMemory().run()


def test_what_follows_a_failed_exercise_is_skipped_with_the_reason():
    """Not passed, not failed."""
    results = ServiceInMemory(broken=BrokenRules(dials_again=False)).run()
    assert results["draining"].verdict is RuleVerdict.SKIPPED
    assert results["draining"].found == "not reached: 'connection lost' failed"


def test_a_service_may_leave_after_nonsense_if_it_says_why():
    """An exit status and words."""
    service = ServiceInMemory(broken=BrokenRules(dies_of=lambda message: 1 if message is None else None))
    service.last_words = "not one MessagePack value"
    results = service.run()
    assert results["malformed replies"].verdict is RuleVerdict.PASS
    assert "exit status 1: not one MessagePack value" in results["malformed replies"].found
    assert results["finished"].verdict is RuleVerdict.SKIPPED


def test_a_service_that_cannot_be_reset_is_not_asked_for_seeds():
    """The capability is optional."""
    result = ServiceInMemory(broken=BrokenRules(capabilities=())).run()["seeds"]
    assert result.verdict is RuleVerdict.SKIPPED
    assert "capability `reset`" in result.found


def test_a_service_that_ends_before_hello_has_not_started():
    """Its last words are shown."""
    service = ServiceInMemory(broken=BrokenRules(up=sends_nothing))
    service.status, service.last_words = 2, "no such file"
    assert service.run()["started"].found == "it ended with exit status 2 before HELLO: no such file"


def test_an_unknown_version_must_be_refused():
    """Ours leaves with status 78 and says which; one that believes anything is found out."""
    good = ServiceInMemory(UnknownVersion).run()["unknown version"]
    assert good.verdict is RuleVerdict.PASS
    assert "exit status 78: inference chose protocol 255" in good.found

    def believes(message, frames):
        return [encode(replace(message, protocol=1))] if isinstance(message, Welcome) else frames

    bad = ServiceInMemory(UnknownVersion, BrokenRules(down=believes)).run()["unknown version"]
    assert bad.verdict is RuleVerdict.FAIL
    silent = ServiceInMemory(
        UnknownVersion, BrokenRules(down=lambda m, frames: [] if isinstance(m, Welcome) else frames)
    ).run()
    assert silent["unknown version"].found == "it stays and does not step"


def test_a_stopped_service_says_bye():
    """For every session."""
    assert ServiceInMemory(Stopped).run()["stopped"].verdict is RuleVerdict.PASS
    result = ServiceInMemory(Stopped, BrokenRules(up=sends_no_byes)).run()["stopped"]
    assert result.verdict is RuleVerdict.FAIL
    assert result.found == "BYE for 0 of 2 sessions"
