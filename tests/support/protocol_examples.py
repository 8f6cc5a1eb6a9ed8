"""Records and specifications with every feature of the protocol, for golden vectors, properties and fuzzing."""

from dataclasses import replace

import gymnasium
import numpy as np

from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Credit,
    Episodes,
    Error,
    Evaluation,
    Get,
    Hello,
    Look,
    Message,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    Report,
    RequestState,
    RunState,
    SessionReport,
    Step,
    StepBits,
    TaskEnv,
    Unroll,
    Weights,
    Welcome,
    pack_version,
)
from seedbed.shared.protocol.recording import Per, RecordField
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import space_from_gymnasium

CARTPOLE = EnvSpec(
    env_id="CartPole-v1",
    settings=(("max_episode_steps", "500"),),
    observation=space_from_gymnasium(
        gymnasium.spaces.Box(
            np.array([-4.8, -np.inf, -0.41887903, -np.inf], np.float32),
            np.array([4.8, np.inf, 0.41887903, np.inf], np.float32),
        )
    ),
    action=space_from_gymnasium(gymnasium.spaces.Discrete(2)),
)

EVERYTHING = EnvSpec(
    env_id="tests:everything",
    settings=(("frame_skip", "4"), ("kwargs", '{"größe": "9×9"}')),
    observation=space_from_gymnasium(
        gymnasium.spaces.Dict(
            {
                "camera": gymnasium.spaces.Box(0, 255, (3, 150, 150), np.uint8),
                "goal": gymnasium.spaces.Text(5, min_length=0, charset="abcäø"),
                "height/map": gymnasium.spaces.Box(0, 255, (3, 5), np.uint8),
                "inner": gymnasium.spaces.Tuple(
                    (
                        gymnasium.spaces.Discrete(5, start=-2),
                        gymnasium.spaces.MultiBinary((2, 3)),
                        gymnasium.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
                    )
                ),
                "speed": gymnasium.spaces.Box(
                    np.tile(np.float64([-1, -2.5]), (3, 1)), np.float64(np.inf), (3, 2), np.float64
                ),
            }
        ),
        image="CHW",
    ),
    action=space_from_gymnasium(
        gymnasium.spaces.Dict(
            {
                "aim": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
                "buttons": gymnasium.spaces.MultiBinary(3),
                "jump": gymnasium.spaces.Discrete(3, start=1),
                "weapons": gymnasium.spaces.MultiDiscrete([4, 2]),
            }
        )
    ),
    mask_size=9,
    statistics=("return", "length", "score"),
)

STATE_FIELDS = (
    RecordField("state/lstm_h", "float32", (4,), Per.LANE),
    RecordField("state/stack", "uint8", (1, 3), Per.LANE),
)

CREDIT = Credit(
    session=1,
    epoch=2,
    granted_through=128,
    acked_through=41,
    episodes_acked_through=3,
    state=RunState.TRAINING,
    trained_steps=1_000_000,
)
MESSAGES: dict[str, Message] = {
    "hello": Hello(
        library_version="0.1.0",
        actor="actor-0",
        incarnation=0xFEDCBA9876543210,
        group=1,
        lanes=64,
        nonce=0x0123456789ABCDEF,
        mode="train",
        spec=CARTPOLE,
        capabilities=("reset",),
    ),
    "hello_everything": Hello(
        library="simulator-ü",
        library_version="2",
        actor="",
        incarnation=1,
        group=0,
        lanes=1,
        nonce=0,
        mode="eval",
        run_id="pong-20250101-120000",
        spec=EVERYTHING,
        seeding="lane",
        capabilities=("render", "reset"),
        max_stall_s=60.5,
    ),
    "hello_task": Hello(
        library_version="0.1.0",
        actor="actor-pong-0",
        incarnation=3,
        group=0,
        lanes=8,
        nonce=4,
        mode="train",
        spec=CARTPOLE,
        task="pong",
    ),
    "welcome": Welcome(
        nonce=0x0123456789ABCDEF,
        session=0x1122334455667788,
        server_epoch=0x8000000000000001,
        protocol=1,
        run_id="run-1",
        capabilities=("reset",),
        beat_s=1.0,
        lease_s=10.0,
        seed=123456789,
        resumed=True,
        next_seq=7,
    ),
    "reject": Reject(
        nonce=5, code="spec", retryable=False, message="setting frame_skip: ours 4, theirs 2", hint="set frame_skip"
    ),
    "step": Step(session=0x1122334455667788, seq=7),
    "step_statistics": Step(session=1, seq=65536, bits=StepBits.STATISTICS | StepBits.RENDER),
    "act": Act(session=0x1122334455667788, seq=7, policy_version=pack_version(2, 1000)),
    "act_picture": Act(session=1, seq=8, policy_version=pack_version(2, 1000), bits=ActBits.PICTURE),
    "act_reset": Act(session=1, seq=0, policy_version=0, bits=ActBits.RESET, reset_seed=10_000),
    "challenge": Challenge(session=3, server_epoch=9),
    "ping": Ping(sent_ms=1_700_000_000_000, load=(("tick_age_ms", 12.5), ("env_steps_s", 1e6))),
    "pong": Pong(
        sent_ms=1_700_000_000_000,
        server_epoch=9,
        work_age_ms=3,
        sessions=(
            SessionReport(session=3, last_seq=-1, state=RequestState.UNKNOWN, age_ms=0),
            SessionReport(session=4, last_seq=300, state=RequestState.ANSWERED, age_ms=70000),
        ),
    ),
    "pong_turns_away": Pong(sent_ms=5, server_epoch=9, work_age_ms=0, turns_away=True),
    "bye": Bye(session=0, reason="run_finished"),
    "error": Error(
        code="starting", scope="connection", session=0, nonce=5, retryable=True, message="no policy yet", hint=""
    ),
    "producer_hello": ProducerHello(library_version="0.1.0", name="inference-0", incarnation=17, nonce=18),
    "producer_hello_spec": ProducerHello(
        library_version="0.1.0",
        name="inference-0",
        incarnation=17,
        nonce=18,
        run_id="run-1",
        spec=CARTPOLE,
        oldest_seq=40,
        oldest_episodes_seq=2,
    ),
    "producer_hello_task": ProducerHello(
        library_version="0.1.0", name="inference-0", incarnation=17, nonce=19, spec=CARTPOLE, task="pong"
    ),
    "producer_hello_segment": ProducerHello(
        library_version="0.1.0",
        name="inference-0",
        incarnation=17,
        nonce=20,
        segment=0x0123456789ABCDEF,
        segment_bytes=33_554_432,
    ),
    "producer_hello_lockstep": ProducerHello(
        library_version="0.1.0", name="inference-0", incarnation=17, nonce=21, is_lockstep=True
    ),
    "producer_welcome_tasks": ProducerWelcome(
        nonce=18,
        session=2,
        epoch=2,
        protocol=1,
        run_id="run-1",
        run_seed=1,
        spec_digest="",
        beat_s=1.0,
        lease_s=10.0,
        unroll_length=32,
        next_seq=0,
        next_episodes_seq=0,
        state=RunState.STARTING,
        tasks=(
            TaskEnv(name="pong", env_id="ALE/Pong-v5", settings=(("frame_skip", "4"), ("kwargs", "{}"))),
            TaskEnv(name="breakout", env_id="ALE/Breakout-v5"),
        ),
    ),
    "producer_welcome": ProducerWelcome(
        nonce=18,
        session=1,
        epoch=2,
        protocol=1,
        run_id="run-1",
        run_seed=1,
        spec_digest=CARTPOLE.digest(),
        beat_s=1.0,
        lease_s=10.0,
        unroll_length=32,
        next_seq=41,
        next_episodes_seq=3,
        state=RunState.TRAINING,
    ),
    "unroll": Unroll(session=1, seq=41, lanes=64, actor="actor-0/fedcba98", group=7, first_lane=128, start=640),
    "unroll_segment": Unroll(
        session=1, seq=42, lanes=64, actor="actor-0", group=7, segment=0x0123456789ABCDEF, offset=8192, length=4096
    ),
    "episodes": Episodes(session=1, seq=3, mode="train", evaluation=0, count=2, aborted=1, acted_steps=4096),
    "credit": CREDIT,
    "credit_received": replace(CREDIT, received_through=43),
    "credit_evaluation": Credit(
        session=1,
        epoch=2,
        granted_through=128,
        acked_through=41,
        episodes_acked_through=3,
        state=RunState.FINISHING,
        trained_steps=1_000_000,
        evaluation=Evaluation(id=1, version=pack_version(2, 1000), episodes=100, seed=10_000, greedy=True),
    ),
    "get": Get(session=1, have_version=0, have_manifest=""),
    "get_exact": Get(session=1, have_version=9, have_manifest="m", exact=7),
    "get_segment": Get(
        session=1, have_version=9, have_manifest="m", segment=0x0123456789ABCDEF, offset=32_768_000, length=524_296
    ),
    "weights": Weights(session=1, version=pack_version(2, 1), manifest_digest="0123456789abcdef", manifest='{"a":1}'),
    "weights_segment": Weights(
        session=1, version=pack_version(2, 2), manifest_digest="0123456789abcdef", segment=0x0123456789ABCDEF
    ),
    "not_modified": NotModified(session=1, version=pack_version(2, 1)),
    "look": Look(wants_page=True, wants_picture=False, have_picture=3),
    "report": Report(
        incarnation=0xFEDCBA9876543,
        service="inference",
        name="inference-0",
        run_id="run-1",
        picture=4,
        picture_version=pack_version(2, 1000),
        picture_age_ms=250,
    ),
}
