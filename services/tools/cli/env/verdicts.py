"""What `env check` finds: one result for each rule, and how results of several groups or lives become one.

A rule's reason and its remedy are the same wherever it is broken, so they stand here, in one table; a result adds what
was seen.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


class RuleVerdict(StrEnum):
    """How a service stands to one rule."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"  # every rule is kept, and learning may suffer
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that every environment or service must do."""

    why: str  # what breaks otherwise
    change: str  # what its author should do


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found about one rule. `why` and `change` are filled for failures and warnings."""

    name: str
    verdict: RuleVerdict
    found: str
    why: str = ""
    change: str = ""


RULES: Mapping[str, Rule] = {
    # What everything else follows from
    "started": Rule("a service that does not dial cannot be checked", "run its command by hand and read what it says"),
    "messages": Rule("a message that breaks the protocol is dropped", "see docs/protocol.md for the field named"),
    "hello": Rule("HELLO says who speaks, in which mode, with how many lanes", "see docs/protocol.md, HELLO"),
    "lanes": Rule(
        "whoever starts a service decides how many environments it runs",
        "take SEEDBED_ACTOR__GROUPS and SEEDBED_ACTOR__LANES (or actor.groups=, actor.lanes=) for what HELLO says",
    ),
    # An environment and its rows
    "made": Rule("nothing can be stepped", "fix what the message says; try the constructor in a Python shell"),
    "dtypes": Rule(
        "values are converted to the space's dtype without a word, which costs time and may round or overflow",
        "return values of the space's own dtype and shape, e.g. np.asarray(x, np.float32)",
    ),
    "answers": Rule(
        "everything else reads what reset and step return by its place",
        "return (observation, info) from reset, and (observation, reward, terminated, truncated, info) from step",
    ),
    "values": Rule(
        "no policy may see NaN, infinite values or categories outside their space: such a lane is made anew",
        "find the state in which it happens; clip or end the episode before it does",
    ),
    "bounds": Rule(
        "bounds say what to expect; a policy or a wrapper may scale by them",
        "widen the Box (infinite bounds are fine) or clip the values",
    ),
    "first rows": Rule("a session begins with fresh episodes", "send flag `first` in every lane after a reset"),
    "flags": Rule(
        "flags cut returns and memory; contradictory ones corrupt both",
        "use terminated 1, truncated 2, first 4, life_lost 8, absent 16; a reset row is `first` and nothing has ended",
    ),
    "next-step reset": Rule(
        "the row that ends an episode holds its final observation, the next row of the lane is the reset row",
        "reset in the step after the end, ignore that step's action, and flag the row `first`",
    ),
    "reset rewards": Rule("nothing was done to earn a reward at a reset row", "send reward 0 in rows that are `first`"),
    "no rebuilt lanes": Rule(
        "a lane that fails is made anew and its episode is lost", "fix the failure that the environment reports"
    ),
    "masks": Rule("a mask column is 1 for allowed or 0", "give uint8 ones and zeros, one for each category"),
    "statistics": Rule(
        "return and length of a whole episode are what the learning curve shows",
        "send one row of statistics for each lane that ended, ascending by lane: sum of raw rewards, number of steps",
    ),
    "own statistics": Rule(
        "a statistic that no finished episode has is in no figure, and nothing says so",
        "put it into the info of the step that ends an episode, under its name in metadata['statistics']",
    ),
    "ends": Rule(
        "a truncated episode is worth what would have followed, a terminated one nothing",
        "set truncated where a time limit cuts an episode, terminated where the task itself ends",
    ),
    "truncation": Rule("nobody looked at what a time limit does", "play on with --soak-steps, or shorten the limit"),
    "pictures": Rule("nobody looked at what it draws", "seedbed play shows it"),
    "constant": Rule(
        "what never changes tells a policy nothing, and costs time", "see that it is filled in, or leave it out"
    ),
    "scale": Rule(
        "networks learn from values of about one; bounds scale integers and images, and nothing scales floats",
        "declare the bounds that values fill; for floats and unbounded integers set policy.normalise_observation",
    ),
    "seeds": Rule(
        "evaluations compare policies on the same episodes, and runs can be repeated",
        "draw everything random from one generator that reset(seed=…) seeds (self.np_random in Gymnasium)",
    ),
    "soak": Rule("a service runs for days", "fix what ended it; what it printed stands above, in this terminal"),
    # The link
    "hello again": Rule(
        "the first HELLO may be lost, and inference may have no policy yet",
        "repeat HELLO after 0.2 s, doubling to 2 s, until an answer with its nonce comes; ERROR(starting) is none",
    ),
    "one step outstanding": Rule(
        "each STEP is answered once, and the next one has the next seq",
        "wait for the ACT of this session and seq before stepping; send nothing twice without being asked",
    ),
    "ACT twice": Rule(
        "after a reconnection an ACT may come twice", "act only on the ACT whose seq is that of the outstanding STEP"
    ),
    "foreign ACT": Rule(
        "an ACT may arrive late, for an earlier seq or session", "compare session and seq, ignore all others"
    ),
    "beats": Rule(
        "without PINGs inference takes a service for dead and frees its lanes",
        "send PING every WELCOME.beat_s, also while waiting and while the environments step",
    ),
    "patience": Rule(
        "inference may hold an ACT for as long as its learner is away",
        "without an ACT do nothing while PONG says `queued` or `held`",
    ),
    "lost STEP": Rule(
        "messages are lost when a connection breaks",
        "when a PONG shows a lower last_seq for a PING sent after the STEP, send the same STEP again, same bytes",
    ),
    "lost ACT": Rule(
        "messages are lost when a connection breaks",
        "when a PONG says `answered` and the ACT is not there, send the same STEP again, same bytes",
    ),
    "malformed replies": Rule(
        "a broken or newer inference must not kill environments",
        "drop what cannot be read or has wrong sizes, keep the outstanding STEP, and wait for the right ACT",
    ),
    "forgotten session": Rule(
        "inference was restarted: the episode goes on in a new session",
        "after CHALLENGE for the current session say HELLO; then send the outstanding rows again, unchanged, as seq 0",
    ),
    "connection lost": Rule(
        "inference was restarted under the same address",
        "dial again by itself (ZeroMQ does), say HELLO again, go on with the outstanding rows",
    ),
    "draining": Rule(
        "inference leaves and another one comes: environments must outlive it",
        "after BYE(draining) say HELLO again, with patience; never exit",
    ),
    "finished": Rule(
        "a finished run takes its services down", "after BYE(run_finished) say BYE too and leave with exit status 0"
    ),
    "unknown version": Rule(
        "rows in a version that one side does not know would be misread",
        "refuse a WELCOME with a version outside your protocol_min … protocol_max: exit status 78, or stay and say so",
    ),
    "stopped": Rule("a service that is stopped must free its lanes at once", "on SIGTERM send BYE and exit with 0"),
}


def result(name: str, verdict: RuleVerdict, found: str) -> Result:
    """A result, with the rule's reason and remedy if it failed."""
    rule = RULES[name]
    is_told = verdict in (RuleVerdict.FAIL, RuleVerdict.WARN)
    return Result(
        name=name, verdict=verdict, found=found, why=rule.why if is_told else "", change=rule.change if is_told else ""
    )


def passed(name: str, found: str = "") -> Result:
    """The rule is kept; `found` says what was seen of it."""
    return result(name, RuleVerdict.PASS, found)


def failed(name: str, found: str) -> Result:
    """The rule is broken; `found` says where and how."""
    return result(name, RuleVerdict.FAIL, found)


def warned(name: str, found: str) -> Result:
    """The rule is kept in a way that will do harm."""
    return result(name, RuleVerdict.WARN, found)


def skipped(name: str, reason: str) -> Result:
    """The rule was not tested; `found` says why."""
    return result(name, RuleVerdict.SKIPPED, reason)


_WEIGHT = {RuleVerdict.FAIL: 0, RuleVerdict.WARN: 1, RuleVerdict.PASS: 2, RuleVerdict.SKIPPED: 3}


def merge(results: Iterable[Result]) -> list[Result]:
    """One result for each rule, in the order of RULES: the first failure, else the first that was looked at."""
    best: dict[str, Result] = {}
    for item in results:
        known = best.get(item.name)
        if known is None or _WEIGHT[item.verdict] < _WEIGHT[known.verdict]:
            best[item.name] = item
    return [best[name] for name in RULES if name in best]


def has_failed(results: Sequence[Result]) -> bool:
    """Whether a rule was broken that must hold."""
    return any(item.verdict is RuleVerdict.FAIL for item in results)


def to_json(target: str, results: Sequence[Result]) -> str:
    """One object: target, verdict, and the checks as written by `Result`."""
    verdict = RuleVerdict.FAIL if has_failed(results) else RuleVerdict.PASS
    return json.dumps({"target": target, "verdict": verdict, "checks": [asdict(item) for item in results]}, indent=2)


_MARKS = {
    RuleVerdict.PASS: ("✓", "green"), RuleVerdict.FAIL: ("✗", "bold red"), RuleVerdict.WARN: ("!", "yellow"),
    RuleVerdict.SKIPPED: ("–", "dim"),
}  # fmt: skip


def render(target: str, results: Sequence[Result]) -> RenderableType:
    """A line for each check, below a failure its reason and remedy, and a verdict."""
    table = Table(box=SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for item in results:
        mark, style = _MARKS[item.verdict]
        is_skipped = item.verdict is RuleVerdict.SKIPPED
        name = Text(item.name, "dim" if is_skipped else "")
        table.add_row(Text(mark, style), name, Text(item.found, "dim" if is_skipped else ""))
        if item.why:
            table.add_row("", "", Text(f"why: {item.why}", "yellow"))
            table.add_row("", "", Text(f"change: {item.change}", "yellow"))
    counts = {verdict: sum(item.verdict is verdict for item in results) for verdict in RuleVerdict}
    passed, failed, skipped = (counts[key] for key in (RuleVerdict.PASS, RuleVerdict.FAIL, RuleVerdict.SKIPPED))
    text = f"{target}: {passed} passed, {failed} failed, {skipped} skipped"
    text += f", {counts[RuleVerdict.WARN]} to think about" if counts[RuleVerdict.WARN] else ""
    return Group(table, Text(text, "bold red" if counts[RuleVerdict.FAIL] else "bold green"))
