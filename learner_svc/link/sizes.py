"""Checks from a specification whether unrolls and batches of an environment fit into messages and memory."""

from math import prod

from seedbed.learner_svc.config import LearnerConfig
from seedbed.shared.protocol.compatibility import Incompatibility
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import EnvSpec

MAX_SHARE = 0.5  # of the available memory that batches may take
FLOAT_BYTES = 4  # an update reads observations as float32


def check_size(
    spec: EnvSpec, config: LearnerConfig, available_bytes: int | None, *, minibatches: int = 1, overlap: int = 0
) -> Incompatibility | None:
    """Return why unrolls or batches of this environment are too large; None if they fit.

    Args:
      available_bytes: memory that the learner may still take; None: unknown, so that only messages are checked.
      minibatches: in so many parts a batch is trained on.
      overlap: transitions that an unroll stores beyond `learner.unroll_length`.
    """
    record = RecordSpec(spec, config.unroll_length, overlap)
    unroll = record.layout(1).num_bytes
    if unroll > config.max_frame_bytes:
        return Incompatibility(
            "spec",
            f"an unroll of one lane has {_size(unroll)}, learner.max_frame_bytes is {_size(config.max_frame_bytes)}",
            "make the observations smaller, lower learner.unroll_length, or raise learner.max_frame_bytes",
        )
    elements = sum(prod(leaf.wire_shape) for leaf in spec.observation.leaves())
    floats = config.batch * record.num_rows * elements * FLOAT_BYTES // minibatches
    needed = config.buffers * config.batch * unroll + floats
    if available_bytes is None or needed <= MAX_SHARE * available_bytes:
        return None
    return Incompatibility(
        "spec",
        f"batches of {config.batch} unrolls would take {_size(needed)}, and {_size(available_bytes)} are left",
        "make the observations smaller, or lower learner.batch or learner.unroll_length",
    )


def _size(count: int) -> str:
    """Return a number of bytes as text, in MiB from one MiB on."""
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count:,} bytes"
