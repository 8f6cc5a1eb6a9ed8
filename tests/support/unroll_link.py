"""Small values for tests of the unroll link: what a learner says to a producer."""

from dataclasses import replace
from typing import Any

from seedbed.shared.protocol.messages import Credit, ProducerWelcome, RunState

WELCOME = ProducerWelcome(
    nonce=0, session=1, epoch=1, protocol=1, run_id="run", run_seed=1, spec_digest="d", beat_s=1.0, lease_s=10.0,
    unroll_length=4, next_seq=0, next_episodes_seq=0, state=RunState.TRAINING,
)  # fmt: skip
CREDIT = Credit(
    session=1, epoch=1, granted_through=0, acked_through=0, episodes_acked_through=0, state=RunState.TRAINING,
    trained_steps=0,
)  # fmt: skip


def producer_welcome(**changes: Any) -> ProducerWelcome:
    """The WELCOME of a first session at the first epoch of a run, with some fields changed."""
    return replace(WELCOME, **changes)


def credit(granted: int, acked: int = 0, **changes: Any) -> Credit:
    """A CREDIT of that session, with some fields changed."""
    return replace(CREDIT, granted_through=granted, acked_through=acked, **changes)
