"""Inference's decisions, driven by messages and numbers for time."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.learner_events import FormerWeightsReceived
from seedbed.inference_svc.serving import ServedStatistics
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Error,
    Evaluation,
    Get,
    Ping,
    Pong,
    ProducerHello,
    Reject,
    RequestState,
    Step,
    StepBits,
    TaskEnv,
    Unroll,
    Weights,
    Welcome,
    pack_version,
)
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import Flags, step_layout
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.server_driver import SPEC, ServerDriver, T, hello, rows
from tests.support.unroll_link import credit, producer_welcome


@pytest.fixture
def driver() -> ServerDriver:
    return ServerDriver()


def test_before_weights_environments_wait_and_their_specification_goes_up(driver: ServerDriver) -> None:
    """HELLO before there is a policy is answered ERROR(starting, retryable), and the learner is told the spaces."""
    driver.tell(hello())
    error = driver.last()
    assert isinstance(error, Error)
    assert (error.code, error.retryable, error.nonce) == ("starting", True, 5)
    assert driver.link.spec == SPEC


def test_a_specification_that_the_learner_refused_is_rejected_before_there_is_a_policy(driver: ServerDriver) -> None:
    """The environment hears the learner's words, and the next environment's specification goes up."""
    driver.tell(hello())
    learner_says = Reject(nonce=0, code="spec", retryable=False, message="setting x: ours 1, theirs 2", hint="")
    driver.link.spec = None
    driver.link.refused[SPEC] = learner_says
    driver.tell(hello())
    reject = driver.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("spec", False)
    assert "setting x: ours 1, theirs 2" in reject.message
    assert "config.toml" in reject.hint
    other = replace(SPEC, env_id="other")
    driver.tell(replace(hello(group=1), spec=other))
    assert isinstance(driver.last(), Error)
    assert driver.link.spec == other
    assert driver.counters.hellos_refused == {"starting": 2, "spec": 1}


@pytest.mark.parametrize("name", ["episode/success", "normalised"])
def test_a_statistic_that_no_table_can_hold_is_rejected_by_name(driver: ServerDriver, name: str) -> None:
    """Before the learner hears of the environment: its name has other characters, or is one of the run's own."""
    spec = replace(SPEC, statistics=(*SPEC.statistics, name))
    driver.tell(replace(hello(), spec=spec))
    reject = driver.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("spec", False)
    assert repr(name) in reject.message
    assert driver.link.spec is None


def test_another_version_is_rejected_before_there_is_a_policy(driver: ServerDriver) -> None:
    """Nothing else that it says is trusted, its specification neither."""
    driver.tell(replace(hello(), protocol_min=7, protocol_max=7))
    reject = driver.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("protocol", False)
    assert driver.link.spec is None


def test_why_each_group_ended_is_counted(driver: ServerDriver) -> None:
    """By reason: what it said itself, silence, a closed connection, broken messages."""
    driver.serve()
    sessions = [driver.hello(group, route=b"%d" % group).session for group in range(4)]
    driver.tell(Bye(session=sessions[0], reason="stopped"), route=b"0")
    driver.tell(Bye(session=sessions[1], reason="any text that a peer likes"), route=b"1")
    for _ in range(5):
        driver.tell(Step(session=sessions[2], seq=0, bits=0), [b"short"], route=b"2")
    driver.gone.add(b"3")
    driver.server.probe(1.5)
    driver.perform()
    driver.server.beat(4.0, drained=True, stalled_until=0.0)
    assert driver.counters.groups_ended == {"stopped": 1, "bye": 1, "broken_messages": 1, "closed": 1}
    assert (driver.server.num_sessions, driver.server.used_slots) == (0, 0)


def test_who_keeps_sending_garbage_is_told_a_few_times_only(driver: ServerDriver) -> None:
    """Ten answers for a connection; the others are counted."""
    for _ in range(30):
        driver.server.receive(b"r", [b"garbage"], 0.0)
    assert len(driver.sent) == 10
    assert driver.counters.refused_messages == 30


def test_observations_out_of_bounds_may_be_clipped(driver: ServerDriver) -> None:
    """What is written for the policy lies within the bounds, and the rows are counted."""
    driver.server.config = InferenceConfig(max_lanes=64, out_of_bounds="clip")
    driver.serve()
    session = driver.hello().session
    for seq in range(3):  # an observation is its seq
        driver.step(session, seq)
        writer = driver.answer()[0].lanes.rows
    assert isinstance(writer, UnrollWriter)
    assert [float(row.max()) for row in writer.chunks[0].inputs[0][:3]] == [0, 1, 1]
    assert driver.counters.out_of_bounds == 2


def test_other_spaces_are_rejected_by_name(driver: ServerDriver) -> None:
    """A group with other spaces than the policy's is told which leaf differs, and for good."""
    driver.serve()
    other = replace(SPEC, observation=space_from_gymnasium(gymnasium.spaces.Box(-1, 1, (3,), np.float32)))
    driver.tell(replace(hello(), spec=other))
    reject = driver.last()
    assert isinstance(reject, Reject)
    assert not reject.retryable
    assert "float32[2]" in reject.message
    assert "float32[3]" in reject.message


def test_replicas_of_a_run_give_different_seeds() -> None:
    """The first group of each plays its own episodes with its own sampling noise."""
    seeds = set()
    for replica in (1, 2, 1):
        driver = ServerDriver()
        driver.serve(replica=replica)
        seeds.add(driver.hello().seed)
    assert len(seeds) == 2


def test_a_step_is_acted_on_once_and_a_resend_gets_the_cached_act(driver: ServerDriver) -> None:
    """The repeated STEP reaches no batch; after the answer it gets the same ACT again."""
    driver.serve()
    session = driver.hello().session
    driver.step(session, 0)
    driver.step(session, 0)
    assert len(driver.batches) == 1
    driver.answer()
    first = driver.last()
    assert isinstance(first, Act)
    driver.step(session, 0)
    assert driver.last() == first
    assert not driver.batches


def test_groups_that_arrive_while_the_device_is_busy_share_the_next_batch(driver: ServerDriver) -> None:
    """Accumulate while busy: two groups queue behind a running batch and leave together."""
    driver.serve()
    sessions = [driver.hello(group).session for group in range(3)]
    for session in sessions:
        driver.step(session, 0)
    assert [len(groups) for groups in driver.batches] == [1]
    driver.answer()
    assert [len(groups) for groups in driver.batches] == [2]


def held_for_credit(driver: ServerDriver) -> int:
    """The session of a group that has a complete unroll, for which there is no credit."""
    driver.serve(lanes=0)
    session = driver.hello().session
    for seq in range(T):
        driver.step(session, seq)
        driver.answer()
    driver.step(session, T)
    return session


def test_without_credit_a_group_is_held_before_its_forward_pass_and_goes_on_with_it(driver: ServerDriver) -> None:
    """A complete unroll that cannot leave holds its group; PONG says why; CREDIT lets it go on."""
    session = held_for_credit(driver)
    assert not driver.batches
    assert driver.state_of(session) == RequestState.HELD_NO_CREDIT
    driver.grant(100)
    driver.server.launch(0.0)
    assert len(driver.batches) == 1
    assert driver.link.outbox.unacked_lanes == 2


def test_a_group_that_ends_while_it_is_held_is_held_no_more(driver: ServerDriver) -> None:
    """Its unroll is dropped and counted, and not sent when there is credit."""
    session = held_for_credit(driver)
    assert driver.learner_sessions.num_held == 1
    driver.tell(Bye(session=session, reason="moved"))
    assert driver.learner_sessions.num_held == 0
    assert driver.counters.dropped_steps == {"moved": 2 * T}
    driver.grant(100)
    assert driver.link.outbox.unacked_lanes == 0


def test_evaluation_groups_wait_for_a_round_then_reset_and_play_their_quota(driver: ServerDriver) -> None:
    """Between rounds they are held; a round starts with a seeded reset and ends when every lane has its episodes."""
    driver.serve()
    session = driver.hello(mode="eval").session
    driver.step(session, 0, (Flags.FIRST, Flags.FIRST))
    assert driver.state_of(session) == RequestState.HELD_NO_EVALUATION
    driver.grant(100, Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=42, greedy=True))
    assert driver.pins == 1
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    reset = driver.last()
    assert isinstance(reset, Act)
    assert (reset.bits, reset.reset_seed) == (1, 42)
    driver.step(session, 1, (Flags.FIRST, Flags.FIRST))
    assert driver.answer()[0].lanes.greedy
    driver.step(session, 2, (Flags.TERMINATED, Flags.TRUNCATED))
    assert not driver.batches
    outgoing = driver.link.outbox.next_outgoing()
    assert outgoing is not None
    assert (outgoing.message.mode, outgoing.message.evaluation, outgoing.message.count) == ("eval", 3, 2)


def test_an_evaluation_waits_for_the_version_it_asks_for(driver: ServerDriver) -> None:
    """Older weights are not evaluated in its name."""
    driver.serve()
    driver.hello(mode="eval")
    driver.grant(100, Evaluation(id=3, version=pack_version(1, 6), episodes=2, seed=42, greedy=True))
    assert driver.pins == 0
    driver.server.weights_changed(pack_version(1, 6), 0.0)
    assert driver.pins == 1


def test_an_evaluation_of_weights_that_were_newer_once_asks_the_learner_for_them(driver: ServerDriver) -> None:
    """Exactly these are played, by every inference service: also by one that came in mid-evaluation."""
    driver.serve()
    wanted, live = pack_version(1, 6), pack_version(1, 9)
    session = driver.hello(mode="eval").session
    driver.step(session, 0, (Flags.FIRST, Flags.FIRST))
    driver.link.receive(Weights(session=1, version=live, manifest_digest="m", manifest="{}"), [b"live"], 0.0)
    driver.server.weights_changed(live, 0.0)
    driver.link.poll(0.0)
    driver.grant(100, Evaluation(id=3, version=wanted, episodes=2, seed=42, greedy=True))
    (get,) = [decode(bytes(frames[0])) for frames in driver.link.poll(0.1)]
    assert get == Get(session=1, have_version=live, have_manifest="m", exact=wanted)
    assert driver.pins == 0
    driver.grant(100, Evaluation(id=3, version=wanted, episodes=2, seed=42, greedy=True))
    assert driver.link.poll(0.2) == []
    former = Weights(session=1, version=wanted, manifest_digest="m", manifest="")
    assert driver.link.receive(former, [b"former"], 0.3) == [FormerWeightsReceived(wanted, "m", b"former")]
    driver.server.evaluations.freezing()
    driver.server.weights_frozen(wanted, 0.3)
    assert isinstance(driver.last(), Act)


def test_wrong_frame_sizes_are_struck_and_end_only_their_own_session(driver: ServerDriver) -> None:
    """A peer that keeps sending wrong sizes loses its session and slots; the other group goes on."""
    driver.serve()
    bad, good = driver.hello(0).session, driver.hello(1, route=b"s").session
    for _ in range(20):
        driver.tell(Step(session=bad, seq=0), [b"short"])
    assert driver.counters.refused_messages >= 5
    assert driver.server.used_slots == 2
    driver.step(good, 0, route=b"s")
    assert len(driver.batches) == 1
    driver.step(bad, 0)
    assert isinstance(driver.last(), Challenge)


def test_values_that_would_break_the_loss_are_refused(driver: ServerDriver) -> None:
    """NaN in an observation or reward reaches no batch: it would poison the lanes of others through the loss."""
    driver.serve()
    session = driver.hello().session
    for place in (0, 1):
        layout = step_layout(SPEC, 2)
        frames = layout.allocate()
        layout.views(frames)[place].fill(np.nan)
        driver.tell(Step(session=session, seq=0), [bytes(frame) for frame in frames])
    assert driver.counters.refused_messages == 2
    assert not driver.batches
    driver.step(session, 0)
    assert len(driver.batches) == 1


def test_statistics_of_the_wrong_size_are_refused_before_the_step_counts(driver: ServerDriver) -> None:
    """The STEP is not taken, so that its sender can send it again as it should be."""
    driver.serve()
    session = driver.hello().session
    payload = [*rows(0, (Flags.TERMINATED, 0)), b"\0" * 4]
    driver.tell(Step(session=session, seq=0, bits=int(StepBits.STATISTICS)), payload)
    assert (driver.counters.refused_messages, len(driver.batches)) == (1, 0)
    driver.step(session, 0, (Flags.TERMINATED, 0))
    assert len(driver.batches) == 1


def test_statistics_that_are_not_finite_are_refused(driver: ServerDriver) -> None:
    """They would spoil the run's mean return. (A figure of the environment's own may be NaN: not known.)"""
    driver.serve()
    session = driver.hello().session
    payload = [*rows(0, (Flags.TERMINATED, 0)), np.array([np.nan, 1], np.float32).tobytes()]
    driver.tell(Step(session=session, seq=0, bits=int(StepBits.STATISTICS)), payload)
    assert (driver.counters.refused_messages, len(driver.batches)) == (1, 0)


def test_garbage_is_counted_and_changes_nothing(driver: ServerDriver) -> None:
    """Headers that are no messages, and messages that are not for inference, are refused."""
    driver.serve()
    for header in (b"", b"\xc1", b"\x00" * 5000, encode(Pong(sent_ms=0, server_epoch=1, work_age_ms=0))):
        driver.server.receive(b"x", [header], 0.0)
    assert driver.counters.refused_messages == 4
    assert driver.server.num_sessions == 0


def test_a_silent_group_is_freed_after_its_lease_and_a_closed_one_sooner(driver: ServerDriver) -> None:
    """Leases free the slots: ten seconds when connected, three when the connection is closed."""
    driver.serve()
    driver.hello(0)
    driver.hello(1, route=b"s")
    driver.gone.add(b"s")
    driver.server.probe(1.5)
    driver.perform()
    driver.server.beat(3.5, drained=True, stalled_until=0.0)
    assert driver.server.used_slots == 2
    driver.server.beat(9.0, drained=True, stalled_until=0.0)
    assert driver.server.used_slots == 2
    driver.server.beat(10.5, drained=True, stalled_until=0.0)
    assert (driver.server.used_slots, driver.counters.lost_groups) == (0, 2)


def test_slots_of_a_group_that_left_are_zeroed_for_the_next(driver: ServerDriver) -> None:
    """BYE frees the slots; a new group in the same slots starts with zero policy state."""
    driver.serve()
    session = driver.hello(0).session
    driver.tell(Bye(session=session, reason="stopped"))
    assert driver.server.used_slots == 0
    driver.hello(1)
    assert [(lanes.start, lanes.count) for lanes in driver.forgotten] == [(0, 2), (0, 2)]


def test_a_group_for_which_no_free_slots_are_in_a_row_is_told_that_there_is_no_room(driver: ServerDriver) -> None:
    """As when there are too few of them: it may come again, and is let in once there are."""
    driver.serve()
    sessions = []
    for group in range(4):
        sessions.append(driver.hello(group, lanes=16).session)
        driver.step(sessions[-1], 0, [0] * 16)
    for place in (0, 2):
        driver.tell(Bye(session=sessions[place], reason="stopped"))
    driver.tell(replace(hello(9, lanes=32), nonce=8))
    answer = driver.last()
    assert isinstance(answer, Reject)
    assert (answer.nonce, answer.code, answer.retryable) == (8, "capacity", True)
    assert (driver.server.num_sessions, driver.counters.hellos_refused) == (2, {"capacity": 1})
    driver.tell(Bye(session=sessions[1], reason="stopped"))
    driver.tell(replace(hello(9, lanes=32), nonce=8))
    assert isinstance(driver.last(), Welcome)


def test_an_answer_for_a_group_that_left_meanwhile_is_dropped(driver: ServerDriver) -> None:
    """The batch comes back to a session that is gone: nothing is sent, the others are served."""
    driver.serve()
    session = driver.hello().session
    driver.step(session, 0)
    driver.tell(Bye(session=session, reason="stopped"))
    before = len(driver.sent)
    driver.answer()
    assert len(driver.sent) == before


def test_steps_into_reset_rows_are_not_counted_as_acted(driver: ServerDriver) -> None:
    """Acted steps are valid transitions; a reset without an end is an aborted episode."""
    driver.serve()
    session = driver.hello().session
    driver.step(session, 0, (Flags.FIRST, Flags.FIRST))
    driver.answer()
    driver.step(session, 1, (0, Flags.TERMINATED))
    driver.answer()
    driver.step(session, 2, (Flags.FIRST, Flags.FIRST))
    driver.answer()
    assert driver.counters.acted_steps == 2
    driver.server.flush_episodes()
    outgoing = driver.link.outbox.next_outgoing()
    assert outgoing is not None
    assert (outgoing.message.count, outgoing.message.aborted, outgoing.message.acted_steps) == (1, 1, 2)


def test_rows_that_were_never_answered_are_counted_in_the_next_session_alone(driver: ServerDriver) -> None:
    """Their sender sends them again there, with the episodes that they end: here after it was held for credit."""
    driver.serve(lanes=0)
    session = driver.hello().session
    for seq in range(T):
        driver.step(session, seq, (0, 0) if seq else (Flags.FIRST, Flags.FIRST))
        driver.answer()
    driver.step(session, T, (Flags.TERMINATED, 0))
    assert driver.state_of(session) == RequestState.HELD_NO_CREDIT
    driver.tell(Bye(session=session, reason="moved"))
    session = driver.hello().session
    driver.step(session, 0, (Flags.TERMINATED, 0))
    assert driver.counters.acted_steps == 2 * (T - 1)
    driver.answer()
    driver.server.flush_episodes()
    outgoing = driver.link.outbox.next_outgoing()
    assert outgoing is not None
    assert (outgoing.message.count, outgoing.message.acted_steps) == (1, 2 * T)
    assert driver.counters.acted_steps == 2 * T


def test_evaluation_steps_that_were_never_answered_are_counted_in_the_next_session_alone(driver: ServerDriver) -> None:
    """A group between two rounds is not answered for minutes."""
    driver.serve()
    session = driver.hello(mode="eval").session
    driver.step(session, 0)
    driver.tell(Bye(session=session, reason="moved"))
    session = driver.hello(mode="eval").session
    driver.step(session, 0)
    driver.grant(100, Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=42, greedy=True))
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    assert isinstance(driver.last(), Act)
    assert driver.counters.eval_steps == 2


def test_the_request_for_an_evaluation_reports_the_episodes_before_it(driver: ServerDriver) -> None:
    """So the summary of a run that ends within the half second between two reports counts all its episodes."""
    driver.serve()
    session = driver.hello().session
    driver.step(session, 0, (Flags.FIRST, Flags.FIRST))
    driver.answer()
    driver.step(session, 1, (0, Flags.TERMINATED))
    driver.answer()
    driver.grant(100, Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=42, greedy=True))
    outgoing = driver.link.outbox.next_outgoing()
    assert outgoing is not None
    assert (outgoing.message.mode, outgoing.message.count, outgoing.message.acted_steps) == ("train", 1, 2)


def test_another_run_challenges_every_group(driver: ServerDriver) -> None:
    """A learner with another run id means another policy: sessions end and slots come back."""
    driver.serve()
    driver.hello()
    driver.server.serve(RecordSpec(SPEC, T), "another", 2)
    assert isinstance(driver.last(), Challenge)
    assert driver.server.used_slots == 0


def test_nothing_of_a_former_run_is_sent_to_the_learner_of_another(driver: ServerDriver) -> None:
    """Groups and their complete unrolls end before there is credit; they come back once there is a policy."""
    driver.serve(lanes=0)
    session = driver.hello().session
    for seq in range(T):
        driver.step(session, seq, (0, 0) if seq else (Flags.FIRST, Flags.FIRST))
        driver.answer()
    driver.step(session, T)
    driver.server.leave_run("run")
    assert driver.state_of(session) == RequestState.HELD_NO_CREDIT, "the same run, after a restart"
    driver.server.leave_run("another")
    assert driver.last() == Challenge(session=session, server_epoch=99)
    former = replace(hello(), run_id="run")
    driver.tell(former)
    waits = driver.last()
    assert isinstance(waits, Error)
    assert (waits.code, waits.retryable) == ("starting", True)
    greeting = decode(bytes(driver.link.poll(1.0)[0][0]))
    assert isinstance(greeting, ProducerHello)
    driver.link.receive(producer_welcome(nonce=greeting.nonce, run_id="another"), [], 1.0)
    driver.grant(100)
    driver.server.flush_episodes()
    assert driver.link.outbox.next_outgoing() is None
    driver.server.serve(RecordSpec(SPEC, T), "another", 2)
    driver.tell(former)
    answer = driver.last()
    assert isinstance(answer, Welcome)
    assert (answer.run_id, answer.resumed, answer.next_seq) == ("another", False, 0)
    driver.server.flush_episodes()
    assert driver.link.outbox.next_outgoing() is None


@pytest.mark.parametrize(("run", "state"), [("run", RequestState.QUEUED), ("another", RequestState.HELD_NO_CREDIT)])
def test_credit_of_a_rank_counts_if_it_is_in_the_chiefs_run(driver: ServerDriver, run: str, state: int) -> None:
    """A rank of another run may be heard before its chief is."""
    session = held_for_credit(driver)
    driver.learner_sessions.set_ranks(2, 0.0)
    rank = driver.learner_sessions.streams[1]
    rank.connected(0.0)
    greeting = decode(bytes(rank.poll(0.0)[0][0]))
    assert isinstance(greeting, ProducerHello)
    rank.receive(producer_welcome(nonce=greeting.nonce, run_id=run), [], 0.0)
    rank.receive(credit(100), [], 0.0)
    driver.server.release_held(0.0)
    assert driver.state_of(session) == state


def test_another_runs_evaluation_is_played_although_it_has_the_number_of_a_former_one(driver: ServerDriver) -> None:
    """The learner would wait for it at the end of the run."""
    request = Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=42, greedy=True)
    driver.serve()
    for run in ("run", "another"):
        driver.server.leave_run(run)
        driver.server.serve(RecordSpec(SPEC, T), run, 1)
        session = driver.hello(mode="eval").session
        driver.step(session, 0, (Flags.FIRST, Flags.FIRST))
        driver.server.credited(credit(100, evaluation=request), 0.0)
        driver.server.weights_frozen(pack_version(1, 5), 0.0)
        assert isinstance(driver.last(), Act), run
        driver.step(session, 1, (Flags.FIRST, Flags.FIRST))
        driver.answer()
        driver.step(session, 2, (Flags.TERMINATED, Flags.TERMINATED))
        driver.server.credited(credit(100, evaluation=request), 0.0)
        assert driver.state_of(session) == RequestState.HELD_NO_EVALUATION


def test_another_unroll_length_begins_anew(driver: ServerDriver) -> None:
    """A learner restarted with another T could not use what is kept: groups start new unrolls, the old are counted."""
    driver.serve()
    session = driver.hello().session
    for seq in range(T + 1):
        driver.step(session, seq)
        driver.answer()
    assert driver.link.outbox.unacked_lanes == 2
    driver.server.serve(RecordSpec(SPEC, 2 * T), "run", 1)
    assert isinstance(driver.last(), Challenge)
    assert (driver.server.used_slots, driver.link.outbox.unacked_lanes, driver.link.discarded_lanes) == (0, 0, 2)
    assert driver.link.welcome is None


def test_the_same_policy_under_another_epoch_keeps_its_groups(driver: ServerDriver) -> None:
    """A learner that resumed serves the same shape: sessions, rows and unacknowledged unrolls stay."""
    driver.serve()
    driver.hello()
    driver.server.serve(RecordSpec(SPEC, T), "run", 1)
    assert driver.server.used_slots == 2


def test_draining_says_bye_and_refuses_newcomers(driver: ServerDriver) -> None:
    """SIGTERM: groups are told to move at once, later HELLOs are refused for now."""
    driver.serve()
    driver.hello()
    driver.server.dismiss("draining")
    assert driver.last() == Bye(session=0, reason="draining")
    driver.tell(hello(1))
    reject = driver.last()
    assert isinstance(reject, Reject)
    assert reject.retryable


def test_draining_flushes_an_unroll_that_was_held_for_credit(driver: ServerDriver) -> None:
    """It is complete: it goes out when credit comes, and none of its steps are dropped."""
    held_for_credit(driver)
    driver.server.dismiss("draining")
    assert driver.link.outbox.unacked_lanes == 2
    assert driver.server.counters.dropped_steps == {}
    driver.grant(2)
    outgoing = driver.link.outbox.next_outgoing()
    while outgoing is not None and not isinstance(outgoing.message, Unroll):
        driver.link.outbox.sent(outgoing)
        outgoing = driver.link.outbox.next_outgoing()
    assert outgoing is not None


def test_what_a_group_leaves_half_done_is_counted_by_why_it_left(driver: ServerDriver) -> None:
    """The steps of its unroll so far, for every lane."""
    driver.serve()
    for route, leave in (
        (b"stopped", lambda: driver.tell(Bye(session=0, reason="stopped"), route=b"stopped")),
        (b"drained", lambda: driver.server.dismiss("draining")),
    ):
        session = driver.hello(int(route == b"drained"), route=route).session
        for seq in range(T):
            driver.step(session, seq, route=route)
            driver.answer()
        leave()
    assert driver.server.counters.dropped_steps == {"stopped": 2 * (T - 1), "draining": 2 * (T - 1)}


def test_who_steps_environments_is_known_by_name(driver: ServerDriver) -> None:
    """Their lanes while they are in; none once they were lost."""
    driver.serve()
    driver.hello(0)
    driver.hello(1)
    name = hello().actor
    assert driver.server.lanes_by_actor() == {name: 4.0}
    driver.server.beat(1e3, drained=True, stalled_until=0.0)
    assert driver.server.lanes_by_actor() == {name: 0.0}


def test_whoever_asks_is_told_where_unrolls_begin(driver: ServerDriver) -> None:
    """In the ACT to row 0 of each unroll, and to no other group's."""
    driver.serve()
    asking, other = replace(hello(), capabilities=("reset", "boundary")), replace(hello(1), nonce=6)
    sessions = []
    for greeting in (asking, other):
        driver.tell(greeting)
        answer = driver.last()
        assert isinstance(answer, Welcome)
        sessions.append(answer.session)
    bits: dict[int, list[int]] = {session: [] for session in sessions}
    for seq in range(2 * T + 1):
        for session in sessions:
            driver.step(session, seq)
            driver.answer()
            act = driver.last()
            assert isinstance(act, Act)
            bits[session].append(act.bits)
    begins = [int(ActBits.BOUNDARY), *[0] * (T - 1)]
    assert bits == {sessions[0]: [*begins, *begins, begins[0]], sessions[1]: [0] * (2 * T + 1)}


def test_a_policy_that_is_served_alone_acts_for_players_and_refuses_trainers(driver: ServerDriver) -> None:
    """Evaluation groups act at once, all alike; their episodes are counted; training groups are told where to go."""
    driver.serve()
    driver.server.served_statistics = ServedStatistics(greedy=True)
    driver.tell(hello())
    reject = driver.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("not_training", False)
    for group, mode in enumerate(("eval", "play")):
        session = driver.hello(group, mode).session
        driver.step(session, 0)
        (acted,) = driver.answer()
        assert (acted.lanes.greedy, acted.lanes.uses_frozen_weights) == (True, False)
        driver.step(session, 1, flags=(1, 0))
        driver.answer()
    assert (driver.server.served_statistics.num_episodes, driver.server.served_statistics.return_mean) == (2, 1.0)


def test_everyone_hears_that_the_run_is_finished(driver: ServerDriver) -> None:
    """Also who asked to come in and was not let in, once, and who asks afterwards: nobody dials on for ever."""
    driver.tell(hello(0), route=b"early")
    assert isinstance(driver.last(), Error)
    driver.serve()
    driver.hello(1, route=b"in")
    sent = len(driver.sent)
    driver.server.dismiss("run_finished")
    bye = Bye(session=0, reason="run_finished")
    assert sorted(driver.sent[sent:], key=str) == [(b"early", bye), (b"in", bye)]
    driver.tell(hello(2), route=b"late")
    assert driver.sent[-1] == (b"late", bye)


def test_a_finished_run_waits_for_those_that_it_told(driver: ServerDriver) -> None:
    """Until they say BYE too; one whose connection broke before it heard may dial again, and is told there."""
    driver.serve()
    told, cut = driver.hello(0, route=b"told"), driver.hello(1, route=b"cut")
    driver.gone.add(b"cut")
    driver.server.dismiss("run_finished")
    driver.perform()
    goodbyes = driver.server.goodbyes
    assert goodbyes is not None
    assert set(goodbyes.waiting(0.0)) == {b"told", b"cut"}
    driver.step(told.session, 0, route=b"told")
    driver.tell(Bye(session=0, reason="stopped"), route=b"told", now=1.0)
    driver.server.probe(1.0)
    driver.perform()
    driver.tell(hello(1), route=b"again", now=2.0)
    assert driver.sent[-1] == (b"again", Bye(session=0, reason="run_finished"))
    assert goodbyes.waiting(2.9) == [b"cut", b"again"]
    assert goodbyes.waiting(4.1) == [b"again"]
    driver.tell(Bye(session=cut.session, reason="moved"), route=b"again", now=5.0)
    assert goodbyes.waiting(5.0) == [b"again"], "one group's leaving is not the connection's"
    driver.tell(Bye(session=0, reason="stopped"), route=b"again", now=5.0)
    assert goodbyes.waiting(5.0) == []


def test_a_finished_run_says_bye_again_each_second(driver: ServerDriver) -> None:
    """A full queue may have swallowed the first; once it takes messages again, the connection is there as before."""
    driver.serve()
    driver.hello(0, route=b"r")
    driver.gone.add(b"r")
    driver.server.dismiss("run_finished")
    driver.perform()
    driver.server.probe(1.0)
    driver.perform()
    driver.gone.clear()
    sent = len(driver.sent)
    driver.server.probe(2.0)
    assert driver.sent[sent:] == [(b"r", Bye(session=0, reason="run_finished"))]
    assert driver.server.goodbyes is not None
    assert driver.server.goodbyes.waiting(30.0) == [b"r"]


def test_who_was_not_let_in_and_has_gone_is_not_waited_for(driver: ServerDriver) -> None:
    """Every run would end seconds later for those who asked too early and left."""
    driver.tell(hello(0), route=b"early")
    driver.gone.add(b"early")
    driver.server.dismiss("run_finished")
    driver.perform()
    assert driver.server.goodbyes is not None
    assert driver.server.goodbyes.waiting(0.0) == []


def test_a_run_may_end_while_inference_drains(driver: ServerDriver) -> None:
    """Whoever has come back meanwhile hears that it is over."""
    driver.serve()
    driver.hello(0, route=b"r")
    driver.server.dismiss("draining")
    driver.tell(hello(0), route=b"r")
    driver.server.dismiss("run_finished")
    assert driver.sent[-1] == (b"r", Bye(session=0, reason="run_finished"))


def test_revoked_keys_lose_their_sessions_and_are_told_why(driver: ServerDriver) -> None:
    """Slots are free again, the groups hear a fatal ERROR once, and other connections go on."""
    driver.serve()
    lost, kept = driver.hello(0, route=b"r"), driver.hello(1, route=b"other")
    driver.step(lost.session, 0)
    driver.step(kept.session, 0, route=b"other")
    sent = len(driver.sent)
    assert driver.server.revoke([b"r", b"never seen"]) == 1
    ((route, error),) = driver.sent[sent:]
    assert isinstance(error, Error)
    assert (route, error.code, error.session, error.retryable) == (b"r", "revoked", lost.session, False)
    assert driver.server.used_slots == 2
    assert driver.server.revoke([b"r"]) == 0
    driver.step(kept.session, 1, route=b"other")
    assert [group.session.id for groups in driver.batches for group in groups].count(lost.session) <= 1


def test_a_foreign_key_cannot_strike_a_group_out(driver: ServerDriver) -> None:
    """Broken STEPs that name another owner's session are challenged before they are looked at."""
    driver.owners = {b"r": "environment:a", b"thief": "environment:b"}
    driver.serve()
    session = driver.hello().session
    for _ in range(10):
        driver.tell(Step(session=session, seq=0), [b"nonsense"], route=b"thief")
        assert isinstance(driver.last(), Challenge)
    driver.step(session, 0)
    assert len(driver.answer()) == 1


class TasksServerDriver(ServerDriver):
    """A server of a run with two tasks, each with its session at the learner."""

    def __init__(self) -> None:
        super().__init__()
        self.server.serve(RecordSpec(replace(SPEC, env_id="tasks"), T), "run", 1)
        self.server.weights_changed(pack_version(1, 5), 0.0)
        self.learner_sessions.connected(0.0)
        self.sessions: dict[str, int] = {}
        self.greet()

    def greet(self) -> None:
        """Answer whoever says HELLO to the learner."""
        tasks = tuple(TaskEnv(name=name, env_id="test") for name in ("pong", "tennis"))
        for frames in self.learner_sessions.poll(0.0):
            asked = decode(bytes(frames[0]))
            if isinstance(asked, ProducerHello):
                number = self.sessions[asked.task] = len(self.sessions) + 1
                welcome = producer_welcome(nonce=asked.nonce, session=number, unroll_length=T, tasks=tasks)
                self.learner_sessions.receive(welcome, [], 0.0)

    def come(self, task: str, mode: str = "train", group: int = 0) -> int:
        self.tell(replace(hello(group, mode), incarnation=hash(task) & 0xFFFF, task=task))
        answer = self.last()
        assert isinstance(answer, Welcome), answer
        self.greet()
        return answer.session

    def credit(self, task: str, through: int, evaluation: Evaluation | None = None) -> None:
        granted = credit(through, session=self.sessions[task], evaluation=evaluation)
        for name, _event in self.learner_sessions.receive(granted, [], 0.0):
            self.server.credited(granted, 0.0, task=name)
        self.server.launch(0.0)

    def unroll(self, session: int, first_seq: int = 0) -> None:
        """Play until an unroll is complete."""
        for seq in range(first_seq, first_seq + T + 1):
            self.step(session, seq, (4, 4) if seq == 0 else (0, 0))
            if self.batches:
                self.answer()


def test_a_task_without_credit_holds_only_its_own_groups() -> None:
    """The other one goes on, though it was held later."""
    driver = TasksServerDriver()
    stuck, going = driver.come("pong"), driver.come("tennis", group=1)
    driver.unroll(stuck)
    driver.unroll(going)
    assert {driver.state_of(session) for session in (stuck, going)} == {RequestState.HELD_NO_CREDIT}
    driver.credit("tennis", 10)
    assert driver.state_of(going) == RequestState.QUEUED
    assert driver.state_of(stuck) == RequestState.HELD_NO_CREDIT
    outboxes = {task: driver.learner_sessions.of(task).link.outbox for task in ("pong", "tennis")}
    assert {task: outbox.unacked_lanes for task, outbox in outboxes.items()} == {"pong": 0, "tennis": 2}


def test_episodes_and_steps_go_the_way_of_their_task() -> None:
    """Each EPISODES counts one task."""
    driver = TasksServerDriver()
    sessions = {task: driver.come(task, group=index) for index, task in enumerate(("pong", "tennis"))}
    for task, seqs in (("pong", 3), ("tennis", 2)):
        for seq in range(seqs):
            driver.step(sessions[task], seq, (4, 4) if seq == 0 else (1, 0))
            driver.answer()
    driver.server.flush_episodes()
    for task, episodes in (("pong", 2), ("tennis", 1)):
        outgoing = driver.learner_sessions.of(task).link.outbox.next_outgoing()
        assert outgoing is not None
        assert (outgoing.message.session, outgoing.message.count) == (driver.sessions[task], episodes)
    assert driver.link.outbox.is_empty


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"task": "golf"}, "task", "'golf'; this run has the tasks pong, tennis"),
        ({"task": ""}, "task", "actor.task is not set"),
        ({"task": "pong", "spec": replace(SPEC, env_id="other")}, "spec", "ours 'test', theirs 'other'"),
        (
            {"task": "pong", "spec": replace(SPEC, action=space_from_gymnasium(gymnasium.spaces.Discrete(4)))},
            "spec",
            "action space: ours",
        ),
    ],
)
def test_environments_that_do_not_fit_a_task_are_refused(changes: dict, code: str, told: str) -> None:
    """By name, with the remedy, and for good; nothing is opened for them at the learner."""
    driver = TasksServerDriver()
    driver.tell(replace(hello(), **changes))
    answer = driver.last()
    assert isinstance(answer, Reject)
    assert (answer.code, answer.retryable) == (code, False)
    assert told in answer.message
    assert answer.hint
    assert [stream.task for stream in driver.learner_sessions.all] == [""]


def test_a_task_that_differs_from_its_first_environments_is_refused() -> None:
    """What the learner does not know of, replicas of a task must agree on all the same."""
    driver = TasksServerDriver()
    driver.come("pong")
    other = replace(SPEC, settings=(("mine", "1"),))
    driver.tell(replace(hello(3), incarnation=9, task="pong", spec=other))
    answer = driver.last()
    assert isinstance(answer, Reject)
    assert "setting mine" in answer.message


def test_all_tasks_play_one_frozen_version_and_each_tells_its_own_result() -> None:
    """One that comes later plays the same version; the weights are frozen once."""
    driver = TasksServerDriver()
    request = Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=9, greedy=True)
    first = driver.come("pong", "eval")
    driver.step(first, 0, (4, 4))
    driver.credit("pong", 0, request)
    assert driver.pins == 1
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    driver.server.weights_changed(pack_version(1, 9), 0.0)
    late = driver.come("tennis", "eval", group=1)
    driver.step(late, 0, (4, 4))
    driver.credit("tennis", 0, request)
    assert driver.pins == 1
    for task, session in (("tennis", late), ("pong", first)):
        driver.step(session, 1, (4, 4))
        driver.answer()
        driver.step(session, 2, (1, 1))
        outgoing = driver.learner_sessions.of(task).link.outbox.next_outgoing()
        assert outgoing is not None
        message = outgoing.message
        assert (message.mode, message.evaluation, message.count) == ("eval", 3, 2)
        assert np.frombuffer(outgoing.frames[0], np.int64, 2).tolist() == [pack_version(1, 5)] * 2
        assert driver.state_of(session) == RequestState.HELD_NO_EVALUATION


def test_a_task_that_the_learner_drops_ends_its_groups() -> None:
    """They say HELLO again, and hear why they cannot come; the others stay."""
    driver = TasksServerDriver()
    driver.come("pong")
    stays = driver.come("tennis", group=1)
    driver.server.end_task("pong")
    challenge = driver.last()
    assert isinstance(challenge, Challenge)
    assert [session.id for session in driver.server.table.sessions.values()] == [stays]
    assert driver.server.used_slots == 2


def test_a_policy_built_anew_begins_its_evaluations_again() -> None:
    """The frozen copy went with the former one."""
    driver = TasksServerDriver()
    session = driver.come("pong", "eval")
    driver.step(session, 0, (4, 4))
    driver.credit("pong", 0, Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=9, greedy=True))
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    driver.server.serve(RecordSpec(replace(SPEC, env_id="tasks"), T), "run", 1)
    driver.step(session, 1, (4, 4))
    assert driver.pins == 2
    assert driver.state_of(session) == RequestState.HELD_NO_EVALUATION


def test_no_batch_starts_while_another_policy_is_loaded(driver: ServerDriver) -> None:
    """It would run after the load, for groups of the former policy. Those that may stay act with the new one."""
    driver.serve()
    first, second = driver.hello(0).session, driver.hello(1).session
    driver.step(first, 0)
    driver.server.num_loading += 1
    driver.step(second, 0)
    driver.answer()
    driver.step(first, 1)
    assert not driver.batches
    driver.server.num_loading -= 1
    driver.server.serve(RecordSpec(SPEC, T), "run", 1)
    driver.server.launch(0.0)
    assert [group.session.id for group in driver.answer()] == [second, first]


def test_an_evaluation_group_in_the_queue_waits_for_the_new_policys_round(driver: ServerDriver) -> None:
    """There are no frozen weights to act with: its round starts again, by a reset."""
    driver.serve()
    session = driver.hello(mode="eval").session
    request = Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=42, greedy=True)
    driver.grant(100, request)
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    driver.step(session, 0, (Flags.FIRST, Flags.FIRST))
    driver.server.num_loading += 1
    driver.step(session, 1, (Flags.FIRST, Flags.FIRST))
    assert driver.state_of(session) == RequestState.QUEUED
    driver.server.num_loading -= 1
    driver.server.serve(RecordSpec(SPEC, T), "run", 1)
    driver.server.launch(0.0)
    assert not driver.batches
    assert driver.state_of(session) == RequestState.HELD_NO_EVALUATION
    driver.server.weights_changed(pack_version(1, 5), 0.0)
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    reset = driver.last()
    assert isinstance(reset, Act)
    assert (reset.seq, reset.bits) == (1, int(ActBits.RESET))


def test_groups_that_never_step_hold_nobody_up(driver: ServerDriver) -> None:
    """A batch waits a little for groups that may still come, and these never have."""
    driver.serve()
    for group in range(12):
        driver.hello(group, lanes=1)
    driver.step(driver.hello(20).session, 0)
    assert len(driver.batches) == 1


def test_groups_whose_connection_is_closed_hold_nobody_up(driver: ServerDriver) -> None:
    """A killed actor's groups stay until they are freed; meanwhile its successor's batches do not wait for them."""
    driver.serve()
    for group in range(12):
        driver.step(driver.hello(group, lanes=1, route=b"killed").session, 0, (0,), route=b"killed")
    while driver.batches:
        driver.answer()
    session = driver.hello(20).session
    driver.server.unroutable(b"killed", 0.0)
    driver.step(session, 0)
    assert len(driver.batches) == 1


def test_evaluation_groups_between_rounds_hold_nobody_up(driver: ServerDriver) -> None:
    """They may be silent for minutes."""
    driver.serve()
    for group in range(12):
        driver.step(driver.hello(group, mode="eval", lanes=1).session, 0, (0,))
    driver.step(driver.hello(20).session, 0)
    assert len(driver.batches) == 1


def test_a_policy_that_tells_tasks_apart_acts_only_for_these(driver: ServerDriver) -> None:
    """Also where it is served alone, without a learner that knows the tasks; the actor is told what to set."""
    driver.serve()
    record = driver.server.recorded
    assert record is not None
    driver.server.served_statistics = ServedStatistics(greedy=True)
    driver.server.serve(record, driver.server.table.run_id, 1, tasks=("pong", "tennis"))
    for task in ("", "golf"):
        driver.tell(replace(hello(), mode="play", task=task))
        answer = driver.last()
        assert isinstance(answer, Reject)
        assert (answer.code, answer.retryable) == ("task", False)
        assert f"{task!r} is none of pong, tennis" in answer.message
        assert "actor.task" in answer.hint
    driver.tell(replace(hello(), mode="play", task="tennis"))
    assert isinstance(driver.last(), Welcome)
    (lanes,) = driver.forgotten
    assert lanes.task == "tennis"


def test_only_connections_that_are_silent_are_asked_whether_they_are_there(driver: ServerDriver) -> None:
    """The answers to PINGs show it for the others, so that a thousand actors cost no message each a second."""
    driver.serve()
    for group, route in enumerate((b"pings", b"steps", b"silent")):
        session = driver.hello(group, lanes=1, route=route)
        if route == b"steps":
            driver.step(session.session, 0, (0,), now=1.5, route=route)
    driver.tell(Ping(sent_ms=1), route=b"pings", now=1.5)
    before = len(driver.sent)
    driver.server.probe(2.0)
    ((route, probe),) = driver.sent[before:]
    assert (route, probe) == (b"silent", Pong(sent_ms=0, server_epoch=99, work_age_ms=0))
