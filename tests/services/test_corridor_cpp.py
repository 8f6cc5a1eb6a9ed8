"""The C++ service, built with sanitizers: its bytes, what it does with a scripted inference, and training with it."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from seedbed.services.tools.cli.env.game import PersonsGame
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.remote_backend import group_of
from seedbed.services.tools.cli.env.visit import Visit
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.services.tools.cli.service_folder import ServiceFolder, ServiceManifest
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import Act, Bye, Message, Pong, RequestState, Welcome
from seedbed.shared.protocol.messages import SessionReport as Report
from seedbed.shared.protocol.rows import Flags, act_layout, step_layout
from tests.support.deployment import living, wait_until
from tests.support.hostile_peer import hostile_messages
from tests.support.inference_double import InferenceByHand, InferenceDouble
from tests.support.protocol_examples import EVERYTHING, MESSAGES

pytestmark = pytest.mark.timeout(300)  # the compiler takes 15 s of processor time, and cores may be busy
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "services" / "corridor_cpp"
GOLDEN = ROOT / "tests" / "golden"
REFUSED = 78
HEADERS = "#if !__has_include(<zmq.hpp>) || !__has_include(<msgpack.hpp>)\n#error\n#endif\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the service and the tool that shows its bytes, both built with sanitizers."""
    if not shutil.which("make") or not shutil.which("g++"):
        pytest.skip("needs make and g++")
    probe = subprocess.run(["g++", "-E", "-x", "c++", "-"], input=HEADERS, capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip("needs the headers of cppzmq and msgpack-cxx: libzmq3-dev cppzmq-dev libmsgpack-cxx-dev")
    folder = tmp_path_factory.mktemp("corridor_cpp")
    command = ["make", "-j2", "-C", str(FOLDER), f"BUILD={folder}", "sanitized", "tools"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder


# Its bytes


def vectors(built: Path, what: str, text: str = "") -> list[str]:
    """Lines of what the client writes or read."""
    command = [built / "vectors", what]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_it_writes_the_golden_headers(built: Path) -> None:
    """Byte for byte, with every kind of space."""
    golden = json.loads((GOLDEN / "headers.json").read_text())
    written = dict(line.split() for line in vectors(built, "write"))
    assert set(written) == {"hello", "hello_everything", "step", "ping", "bye"}
    assert written == {name: golden[name] for name in written}


def test_it_lays_payloads_out_as_the_golden_ones(built: Path) -> None:
    """The same frames, and each array at the same place."""
    golden = json.loads((GOLDEN / "payloads.json").read_text())
    lines = vectors(built, "layouts")
    assert len(lines) == 4
    for line in lines:
        sizes, places = line.split(";")
        name, *frame_bytes = sizes.split()
        assert list(map(int, frame_bytes)) == golden[name]["frame_bytes"]
        assert places.split() == [f"{frame}:{offset}" for *_, frame, offset in golden[name]["fields"]]


def test_it_reads_the_golden_headers(built: Path) -> None:
    """Every message that inference sends; the others are refused."""
    golden = json.loads((GOLDEN / "headers.json").read_text())
    names = [
        "welcome",
        "reject",
        "act",
        "act_reset",
        "act_picture",
        "challenge",
        "pong",
        "bye",
        "error",
        "step",
        "credit",
    ]
    read = vectors(built, "read", "".join(golden[name] + "\n" for name in names))
    welcome = MESSAGES["welcome"]
    assert isinstance(welcome, Welcome)
    assert read == [
        f"welcome {welcome.nonce} {welcome.session} {welcome.server_epoch} 1 inference run-1 1 10 123456789 1 7",
        "reject 5 spec 0 setting frame_skip: ours 4, theirs 2 / set frame_skip",
        f"act {welcome.session} 7 0 0",
        "act 1 0 1 10000",
        "act 1 8 0 0",
        "challenge 3",
        "pong 1700000000000 3:-1:0 4:300:5",
        "bye 0 run_finished",
        "error starting connection 0 5 1 no policy yet / ",
        "refused: a message of type 4",
        "refused: a message of type 21",
    ]


def test_fields_of_a_later_version_are_ignored_and_hostile_headers_refused(built: Path) -> None:
    """Whatever comes in place of a header is read or refused, and harms nothing: the sanitizers would end the tool."""
    later = bytearray(encode(Bye(session=3, reason="draining")))
    later[0] += 1
    assert vectors(built, "read", (bytes(later) + b"\xc0").hex()) == ["bye 3 draining"]
    texts = [message[0].hex() for message in hostile_messages(1500, seed=1)]
    nested = [(b"\x91" * 60_000).hex(), (b"\xdd\xff\xff\xff\xff").hex(), (b"\xdb\xff\xff\xff\xff").hex(), "81a16101"]
    read = vectors(built, "read", "\n".join([*nested, *texts]))
    assert len(read) == len(nested) + len(texts)
    assert all(line.startswith("refused: ") for line in read[: len(nested)])


def frames_of(line: str) -> list[bytes]:
    """The frames in a line of hexadecimal words."""
    return [bytes.fromhex(word) for word in line.split()]


def test_rows_of_every_space_and_of_lanes_that_fail(built: Path) -> None:
    """Arrays, masks and statistics lie where inference looks for them; lanes that raise or give NaN begin anew."""
    steps, acts = step_layout(EVERYTHING, 3), act_layout(EVERYTHING, 3)

    def act(tick: int) -> str:
        frames = acts.allocate()
        aim, _, jump, weapons = acts.views(frames)
        aim[:, 1], jump[:], weapons[:, 1] = 0.25, 1 + tick % 3, tick % 2
        return " ".join(bytes(frame).hex() for frame in frames)

    forbidden = " ".join(bytes(frame).hex() for frame in acts.allocate())  # jumps begin at 1
    lines = vectors(built, "rows", "\n".join([forbidden, "00", *map(act, range(1, 13))]))
    first, *refusals, last = lines[0], *lines[1:3], lines[-1]
    assert refusals == ["refused: an action outside its space", "refused: an ACT frame of 1 bytes"]
    assert last.startswith("refused: environments failed 20 times")
    assert len(lines) == 15

    FIRST, LIFE_LOST, ENDED = Flags.FIRST, Flags.LIFE_LOST, Flags.TERMINATED
    expected = [  # flags, steps that the lane's environment has taken
        ([FIRST] * 3, [0, 0, 0]),
        ([0] * 3, [1, 1, 1]),
        ([LIFE_LOST] * 3, [2, 2, 2]),
        ([ENDED] * 3, [3, 3, 3]),
        ([FIRST] * 3, [3, 3, 3]),
        ([0] * 3, [4, 4, 4]),
        ([LIFE_LOST, FIRST, FIRST], [5, 0, 0]),
        ([ENDED, 0, 0], [6, 1, 1]),
        ([FIRST, LIFE_LOST, LIFE_LOST], [6, 2, 2]),
        ([0, ENDED, ENDED], [7, 3, 3]),
        ([LIFE_LOST, FIRST, FIRST], [8, 3, 3]),
        ([ENDED, 0, 0], [9, 4, 4]),
    ]
    scores = {3: [100, 101, 102], 7: [100], 9: [103, 104], 11: [100]}
    for tick, (line, (flags, counts)) in enumerate(zip([first, *lines[3:-1]], expected, strict=True)):
        frames = frames_of(line)
        camera, _, _, weapon, _, _, speed, mask, reward, seen = steps.views(frames[: len(steps.frame_bytes)])
        assert seen.tolist() == flags, tick
        assert speed[:, 2, 1].tolist() == counts
        assert (mask == [1, 0, 1, 0, 1, 0, 1, 0, 1]).all()
        for lane in range(3):
            is_step = flags[lane] != FIRST
            assert reward[lane] == (0.25 if is_step else 0.0)
            assert weapon[lane] == (tick % 2 if is_step else 0)
            assert camera[lane].flat[-1] == (1 + tick % 3 if is_step else 0)
        statistics = [memoryview(frame).cast("f").tolist() for frame in frames[len(steps.frame_bytes) :]]
        assert statistics == ([[n for score in scores[tick] for n in (0.75, 3.0, score)]] if tick in scores else [])


def test_a_leaf_used_otherwise_than_specified_ends_the_process(built: Path) -> None:
    """Beyond its elements, by another type, by a wrong name or number; at once, and with what the leaf has."""
    right, *refused = vectors(built, "misuses", "")
    assert right == "right"
    for line, told in zip(refused, ["green", "queue", "int32", "green, queue", "2", "mask", "statistics"], strict=True):
        assert line.startswith("refused: ")
        assert told in line


# Its behaviour


@contextlib.asynccontextmanager
async def corridor(built: Path, *addresses: str, **settings: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """The service as a process; killed at the end if it still runs."""
    kept = ("SEEDBED_KEYS_GROUP",)
    variables = {name: value for name, value in os.environ.items() if name in kept or not name.startswith("SEEDBED_")}
    variables["SEEDBED_ACTOR__UPSTREAM"] = ",".join(addresses)
    words = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    process = await asyncio.create_subprocess_exec(
        built / "corridor-sanitized", *words, env=variables, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def played(test: Callable[[Reactor], Awaitable[None]]) -> None:
    """Run a test with a reactor for its sockets."""

    async def main() -> None:
        with Reactor() as reactor:
            async with asyncio.timeout(60.0):
                await test(reactor)

    asyncio.run(main())


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Exit status and what it said."""
    async with asyncio.timeout(10.0):
        _, errors = await process.communicate()
    return process.returncode, errors.decode()


@dataclass
class Lane:
    """The corridor again, plainly: what a lane's next row must be."""

    cell: int
    exit: int
    length: int = 0
    total: float = 0.0

    def step(self, action: int) -> tuple[float, int]:
        """Reward and flags."""
        self.cell = max(0, min(10, self.cell + (1 if action else -1)))
        self.length += 1
        is_out = self.cell == self.exit
        reward = (1.0 if is_out else 0.0) - 0.01
        self.total += reward
        flags = Flags.TERMINATED if is_out else Flags.TRUNCATED if self.length == 50 else 0
        return reward, int(flags)


def test_rows_follow_the_corridor_and_next_step_autoreset(built: Path) -> None:
    """300 ticks of random actions: every row is what a plain model says; statistics tell of the lanes that ended."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=1, actor__lanes=9):
            step, payload = await inference.begin()
            layout = step_layout(inference.hello.spec, 9)
            rng = random.Random(1)
            lanes: list[Lane | None] = [None] * 9
            actions = [0] * 9
            num_ended = num_truncated = 0
            for seq in range(300):
                assert step.seq == seq
                observation, reward, flags = layout.views(payload[:1])
                statistics = []
                for i, lane in enumerate(lanes):
                    cell, side = round((observation[i, 0] + 1) * 5), observation[i, 1]
                    if lane is None:
                        assert (reward[i], flags[i]) == (0.0, Flags.FIRST)
                        assert 3 <= cell <= 7
                        lanes[i] = Lane(cell, 0 if side < 0 else 10)
                        continue
                    expected, ends = lane.step(actions[i])
                    assert (cell, flags[i]) == (lane.cell, ends)
                    assert reward[i] == pytest.approx(expected)
                    assert side == (-1 if lane.exit == 0 else 1)
                    if ends:
                        statistics += [lane.total, lane.length]
                        num_ended += 1
                        num_truncated += ends == Flags.TRUNCATED
                        lanes[i] = None
                assert step.bits == (1 if statistics else 0)
                assert len(payload) == 1 + step.bits
                if statistics:
                    values = memoryview(payload[1]).cast("f").tolist()
                    assert values == pytest.approx(statistics)
                actions = [rng.randrange(2) for _ in range(9)]
                inference.act(step, actions)
                step, payload = await inference.take_step()
            assert num_ended > num_truncated > 0

    played(test)


@pytest.mark.parametrize(
    ("given", "lanes"), [({}, [1]), ({"actor__groups": 2, "actor__lanes": 3}, [3, 3]), ({"actor__groups": 2}, [1, 1])]
)
def test_who_plays_has_one_lane_unless_more_are_asked_for(built: Path, given: dict[str, int], lanes: list[int]) -> None:
    """A person needs no more; a policy that is served may play any number."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__mode="play", **given):
            hellos = [await inference.take_hello() for _ in lanes]
            assert [(hello.mode, hello.lanes) for hello in hellos] == [("play", count) for count in lanes]
            assert {hello.group for hello in hellos} == set(range(len(lanes)))

    played(test)


def test_a_seed_decides_the_episodes(built: Path) -> None:
    """ACT(reset): all rows are `first`; the same seed plays the same, whatever was played before; lanes differ."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=1, actor__lanes=16):
            step, _ = await inference.begin()
            played = {}
            for number, seed in enumerate((7, 8, 7)):
                inference.act(step, [9] * 16, reset_seed=seed)  # actions that no lane would take
                rows = []
                for tick in range(60):
                    step, payload = await inference.take_step()
                    rows.append(payload)
                    inference.act(step, [tick * 7 % 3 // 2] * 16)
                step, _ = await inference.take_step()
                played[number] = rows
            assert played[0] == played[2] != played[1]
            assert len({bytes(played[0][0][0][8 * i : 8 * i + 8]) for i in range(16)}) > 3

    played(test)


def test_a_step_is_sent_again_only_when_a_pong_shows_it_missing(built: Path) -> None:
    """Queued or held: patience. Missing, or answered without the ACT: the same bytes again. A probe says nothing."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)

        def pong(sent_ms: int, last_seq: int, state: RequestState) -> None:
            report = Report(session=5, last_seq=last_seq, state=state, age_ms=1)
            inference.send(Pong(sent_ms=sent_ms, server_epoch=1, work_age_ms=0, sessions=(report,)))

        async with corridor(built, inference.address, actor__groups=1, actor__lanes=4):
            first = await inference.begin()
            inference.act(first[0], [1] * 4)
            outstanding = await inference.take_step()
            await inference.take_ping()
            for state in (RequestState.QUEUED, RequestState.HELD_NO_CREDIT, RequestState.HELD_NO_EVALUATION):
                ping = await inference.take_ping()
                pong(0, 0, RequestState.UNKNOWN)
                pong(ping.sent_ms, 1, state)
                await inference.take_ping()
            for last_seq, state in ((0, RequestState.ANSWERED), (1, RequestState.ANSWERED)):
                ping = await inference.take_ping()
                pong(ping.sent_ms, last_seq, state)
                assert await inference.take_step() == outstanding
                pong(ping.sent_ms, last_seq, state)  # asked for before the last sending
                await inference.take_ping()
            inference.act(outstanding[0], [1] * 4)
            inference.act(outstanding[0], [0] * 4)
            step, _ = await inference.take_step()
            assert step.seq == 2
            await inference.take_ping()

    played(test)


@pytest.mark.parametrize("reason", ["challenge", "not listed", "draining", "another_run"])
def test_a_lost_session_is_asked_for_again_and_nothing_is_reset(built: Path, reason: str) -> None:
    """Resumed: the same STEP. New: the same rows as seq 0. Only another run begins new episodes."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=1, actor__lanes=4):
            step, _ = await inference.begin()
            for _ in range(5):
                inference.act(step, [1] * 4)
                step, payload = await inference.take_step()
            before = inference.hello
            if reason == "challenge":
                inference.send_frames([encode(MESSAGES["challenge"])])  # of a session that is not ours
                await inference.take_ping()
                inference.send_frames([bytes.fromhex("93060501")])
            elif reason == "not listed":
                await inference.take_ping()
                ping = await inference.take_ping()
                inference.send(Pong(sent_ms=ping.sent_ms, server_epoch=2, work_age_ms=0))
            else:
                inference.send(Bye(session=0, reason=reason))
            hello = await inference.take_hello()
            assert (hello.incarnation, hello.group, hello.spec) == (before.incarnation, before.group, before.spec)
            assert hello.nonce != before.nonce
            assert hello.run_id == ("" if reason == "another_run" else "run-a")
            inference.send(inference.welcome(nonce=before.nonce))  # of the HELLO before: ignored
            if reason == "challenge":
                inference.send(inference.welcome(resumed=True, next_seq=5))
                assert await inference.take_step() == (step, payload)
                return
            inference.send(inference.welcome(session=6, run_id="run-b" if reason == "another_run" else "run-a"))
            again, rows = await inference.take_step()
            assert (again.session, again.seq) == (6, 0)
            flags = step_layout(hello.spec, 4).views(rows[:1])[-1]
            assert (rows == payload) is (reason != "another_run")
            assert all(flags == Flags.FIRST) is (reason == "another_run")

    played(test)


def test_a_session_that_counts_otherwise_is_left(built: Path) -> None:
    """WELCOME expects a STEP that was never sent: BYE(moved), and HELLO for a new session."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=1, actor__lanes=4):
            await inference.take_hello()
            inference.send(inference.welcome(resumed=True, next_seq=40))
            message, _ = await inference.take()
            assert message == Bye(session=5, reason="moved")
            await inference.take_hello()
            inference.send(inference.welcome(session=6))
            step, _ = await inference.take_step()
            assert (step.session, step.seq) == (6, 0)

    played(test)


def test_hello_is_repeated_until_it_is_answered(built: Path) -> None:
    """With the same nonce while no answer came, and after ERROR(starting); several groups greet on one connection."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=2, actor__lanes=4):
            hellos = [await inference.take_hello() for _ in range(4)]
            assert [hello.group for hello in hellos] == [0, 1, 0, 1]
            assert hellos[0].nonce == hellos[2].nonce != hellos[1].nonce
            assert len({hello.incarnation for hello in hellos}) == 1
            inference.send(replace(MESSAGES["error"], nonce=hellos[0].nonce))
            for group in (0, 1):  # each in its own time, so which one comes first is open
                while (again := await inference.take_hello()).group != group:
                    assert again == hellos[1 - group]
                assert again == hellos[group]
            inference.send(inference.welcome(nonce=hellos[0].nonce))
            step, _ = await inference.take_step()
            assert step.seq == 0

    played(test)


REFUSALS: dict[str, tuple[Callable[[InferenceByHand], Message], str]] = {
    "a specification that does not fit": (
        lambda inference: answering(inference, MESSAGES["reject"]),
        "inference refused group 0, spec: setting frame_skip: ours 4, theirs 2; set frame_skip",
    ),
    "a protocol that it does not speak": (lambda inference: inference.welcome(protocol=2), "chose protocol 2"),
    "a learner": (lambda inference: inference.welcome(role="learner"), "calls itself learner"),
}


def answering(inference: InferenceByHand, message: Message) -> Message:
    """The message with the nonce of the last HELLO."""
    return replace(message, nonce=inference.hello.nonce)


@pytest.mark.parametrize("case", REFUSALS)
def test_what_will_never_work_ends_it_with_78(built: Path, case: str) -> None:
    """With the cause, so that no supervisor starts it again and again."""
    answer, text = REFUSALS[case]

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=1) as process:
            await inference.take_hello()
            inference.send(answer(inference))
            status, said = await ended(process)
            assert status == REFUSED
            assert text in said

    played(test)


def test_messages_that_break_the_protocol_change_nothing(built: Path) -> None:
    """Wrong sizes, actions outside the space, too many frames, noise: dropped; a good ACT is still taken."""

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor)
        async with corridor(built, inference.address, actor__groups=1, actor__lanes=4):
            step, _ = await inference.begin()
            act = encode(Act(session=5, seq=0, policy_version=1))
            (good,) = act_layout(inference.hello.spec, 4).frame_bytes
            for payload in ([], [b""], [b"\0" * (good - 1)], [b"\0" * good] * 2, [b"\x07" * good], [b"\0" * good] * 40):
                inference.send_frames([act, *payload])
            for frames in hostile_messages(300, seed=2):
                inference.send_frames(frames)
            await inference.take_ping()
            inference.act(step, [1] * 4)
            step, _ = await inference.take_step()
            assert step.seq == 1

    played(test)


def test_the_end_of_the_run_and_sigterm_end_it_with_success(built: Path) -> None:
    """BYE(run_finished): 0. SIGTERM: a BYE for every session, and 0."""

    async def test(reactor: Reactor) -> None:
        double = InferenceDouble(reactor)
        async with corridor(built, double.address, actor__groups=2, actor__lanes=4) as process:
            await double.until(lambda: len(double.firsts) > 20)
            assert {hello.mode for hello in double.hellos} == {"train"}
            double.say_bye("run_finished")
            assert (await ended(process))[0] == 0
        double.byes.clear()
        async with corridor(built, double.address, actor__mode="eval") as process:
            await double.until(lambda: bool(double.firsts) and double.hellos[-1].mode == "eval")
            assert (double.hellos[-1].lanes, double.hellos[-1].capabilities) == (20, ("reset",))
            await double.until(lambda: "env_busy" in double.load)
            process.send_signal(signal.SIGTERM)
            assert (await ended(process))[0] == 0
            await double.until(lambda: bool(double.byes))
            assert not [session for session in double.table.sessions.values() if session.hello.mode == "eval"]

    played(test)


def test_it_goes_on_where_it_was_when_inference_is_killed(built: Path) -> None:
    """Another life under the same address: no episode is cut short."""

    async def test(reactor: Reactor) -> None:
        with Reactor() as first_life:
            first = InferenceDouble(first_life)
            process = corridor(built, first.address, actor__groups=2, actor__lanes=1)
            await process.__aenter__()
            await first.until(lambda: len(first.firsts) > 20)
        second = InferenceDouble(reactor, first.address, epoch=2)
        try:
            await second.until(lambda: len(second.firsts) > 20)
            assert len(second.hellos) == 2
        finally:
            await process.__aexit__(None, None, None)

    played(test)


def test_groups_go_to_another_address_when_one_drains(built: Path) -> None:
    """They are spread at first; those that are sent away go on at the other service."""

    async def test(reactor: Reactor) -> None:
        doubles = [InferenceDouble(reactor, epoch=epoch) for epoch in (1, 2)]
        async with corridor(built, *(double.address for double in doubles), actor__groups=2, actor__lanes=2):
            for double in doubles:
                await double.until(lambda double=double: len(double.firsts) > 5)
            leaving, staying = doubles
            leaving.say_bye("draining")
            leaving.table.drain()
            await staying.until(lambda: len(staying.table.sessions) == 2)

    played(test)


def test_a_person_plays_it(built: Path) -> None:
    """Without pictures; an episode of steps to the right ends at the exit, and the next begins."""
    manifest = ServiceManifest(
        name="corridor_cpp", description="", command=[str(built / "corridor-sanitized")], env_id="Corridor-v1"
    )
    options = CheckOptions(mode="play", groups=1, lanes=1, seed=3)
    with Visit(ServiceFolder(folder=FOLDER, manifest=manifest), options) as visit:
        game = PersonsGame(group_of(visit), options.seed)
        key = "right" if game.scene.observation[0][0, 1] > 0 else "left"
        assert game.scene.picture is None
        for _ in range(12):
            game.press(key)
        assert game.returns[0] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("actor.lanes=0", "give a whole number from 1 to 65536"),
        ("actor.lane=3", "unknown setting; known: actor.upstream"),
        ("lanes", "give words as actor.lanes=64"),
        ("actor.mode=rest", "give train, eval or play"),
        ("actor.upstream=localhost:5555", "give addresses as tcp://host:port"),
        ("actor.upstream=tcp://127.0.0.1:x", "cannot be dialled"),
        ("actor.upstream=tcp://192.0.2.1:5555", "there are no keys"),
        ("runtime.keys=no/such/folder", "seedbed keys init keys"),
    ],
)
def test_a_wrong_setting_ends_it_at_once(built: Path, word: str, text: str) -> None:
    """Status 78, with the setting and what to give."""
    ended = subprocess.run(
        [built / "corridor-sanitized", word], capture_output=True, text=True, timeout=20, check=False
    )
    assert ended.returncode == REFUSED
    assert word.split("=")[0] in ended.stderr
    assert text in ended.stderr


def test_links_with_keys(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds its key in a folder that holds all roles, and in its own; one that others may read is refused."""
    folder = tmp_path / "keys"
    Keyring(folder).init()

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor, keys=folder)
        for keys in (folder, folder / "environment" / "default"):
            async with corridor(built, inference.address, actor__groups=1, runtime__keys=keys):
                assert (await inference.begin())[0].seq == 0
        secret = folder / "environment" / "default" / "client.key"
        secret.chmod(0o640)  # as the keys of a deployment in containers are
        async with corridor(built, inference.address, runtime__keys=folder) as process:
            assert (await ended(process))[0] == REFUSED
        monkeypatch.setenv("SEEDBED_KEYS_GROUP", str(secret.stat().st_gid))
        async with corridor(built, inference.address, actor__groups=1, runtime__keys=folder):
            assert (await inference.begin())[0].seq == 0
        secret.chmod(0o644)
        async with corridor(built, inference.address, runtime__keys=folder) as process:
            status, said = await ended(process)
            assert status == REFUSED
            assert f"chmod 600 {secret}" in said

    played(test)


def test_a_replaced_key_is_read_without_a_restart(built: Path, tmp_path: Path) -> None:
    """A key that was revoked is refused until the one that replaces it has come to the folder."""
    folder, own, status_file = tmp_path / "keys", tmp_path / "own", tmp_path / "status"
    ring = Keyring(folder)
    ring.init()
    shutil.copytree(folder / "environment" / "default", own)
    ring.revoke("environment:default")

    async def test(reactor: Reactor) -> None:
        inference = InferenceByHand(reactor, keys=folder)
        words = {"actor__groups": 1, "runtime__keys": own, "runtime__status_file": status_file}
        async with corridor(built, inference.address, **words):
            wait_until(status_file.is_file, "it has read its keys")
            ring.new(Role.ENVIRONMENT, "default")
            shutil.copytree(folder / "environment" / "default", own, dirs_exist_ok=True)
            assert (await inference.begin())[0].seq == 0

    played(test)


# Training


def kill_when_it_acts(status_file: Path) -> None:
    """Kill -9 for an inference service that has begun to act."""

    def has_acted() -> bool:
        address = read_status(status_file).get("metrics")
        page = read_page(address) if address else None
        return (page or {}).get("seedbed_acted_steps_total", 0) > 1000

    wait_until(has_acted, "inference acts")
    os.kill(read_status(status_file)["pid"], signal.SIGKILL)


@pytest.mark.learning
def test_it_trains_an_agent_though_inference_is_killed(built: Path, tmp_path: Path) -> None:
    """`seedbed train` starts its processes too: mean return 0.9 in the last evaluation, and none of them died."""
    run_dir, service = tmp_path / "run", tmp_path / "service"
    service.mkdir()
    command = json.dumps([str(built / "corridor-sanitized")])
    (service / "service.toml").write_text(
        f'name = "corridor"\ndescription = "sanitized"\ncommand = {command}\nenv_id = "Corridor-v1"\n'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    with (tmp_path / "said").open("wb") as output:
        trainer = subprocess.Popen(
            [
                sys.executable, "-m", "seedbed.services.tools.cli.app", "train", str(FOLDER), "--run-dir", str(run_dir),
                f"env.service={service}", "run.steps=80_000", "run.until_return=2",
            ],
            env=environment, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            kill_when_it_acts(run_dir / "services" / "inference-0.json")
            assert trainer.wait(90) == 0, (tmp_path / "said").read_text()
        finally:
            trainer.kill()
            trainer.wait()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["finished"], summary["reason"]) == (True, "steps")
    assert summary["eval_return_mean"] >= 0.9
    lines = [json.loads(line) for line in (run_dir / "logs" / "launcher.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines if line["event"] == "service_died"] == ["inference-0"]
    assert living(tmp_path) == []
