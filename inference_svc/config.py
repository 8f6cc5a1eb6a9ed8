"""The settings of an inference service: the section [inference]."""

from typing import Annotated, Literal

from pydantic import Field

from seedbed.shared.protocol.segment import MAX_SEGMENT_BYTES
from seedbed.shared.runtime.config import RuntimeConfig, Section

OutOfBounds = Literal["count", "clip", "reject"]


class InferenceConfig(Section):
    """The section [inference]: addresses, limits, and when to launch a batch."""

    bind: str = Field("tcp://127.0.0.1:5555", description="address that environments dial; port 0 picks a free one")
    upstream: list[str] = Field(
        ["tcp://127.0.0.1:5556"],
        min_length=1,
        description="learner's address, or several: the one that answers is used",
    )
    name: str = Field(
        "", description="label at the learner, which counts a name's further lives as restarts; empty: inference-<host>"
    )
    device: str = Field("auto", description="'auto' (CUDA where there is one, see `gpu`), 'cpu', 'cuda' or 'cuda:1'")
    gpu: int = Field(
        0,
        ge=0,
        description="number of the GPU that device 'auto' or 'cuda' means; beyond the last it begins again at 0; "
        "`seedbed train` gives each inference service the next one after those of the learner ranks",
    )
    max_lanes: int = Field(65536, ge=1, description="lanes over all groups; a HELLO beyond is refused for now")
    idle_deadline_ms: float = Field(
        0.5, ge=0, description="how long an idle device waits for more groups before it runs a small batch, ms"
    )
    lockstep_groups: int = Field(
        0,
        ge=0,
        description="deterministic mode: so many training groups, and no others, act together; `seedbed train` sets it "
        "with run.deterministic, and the learner refuses a service where only one of the two is set; 0: off",
    )
    inline_ms: float = Field(
        1.0, ge=0, description="on a CPU, batches shorter than this run in the network loop, not in a thread; 0: none"
    )
    padding: Literal["auto", "off", "padded", "graphs"] = Field(
        "auto",
        description="graphs: batches are padded to `padded_sizes`, each size a captured CUDA graph; padded: without "
        "graphs; off: batches as they come; auto: graphs on CUDA, else off",
    )
    padded_sizes: list[Annotated[int, Field(ge=8, le=65536, multiple_of=8)]] = Field(
        [8, 16, 32, 64, 128, 256, 512, 1024, 2048],
        min_length=1,
        description="sizes that batches are padded to, lanes; a larger batch takes several passes of the largest size",
    )
    out_of_bounds: OutOfBounds = Field(
        "count",
        description="observations outside their Box: 'count' them only, 'clip' them too, or 'reject' the environment",
    )
    max_frame_bytes: int = Field(64 * 1024 * 1024, ge=4096, description="largest frame that is accepted, bytes")
    shared_memory_bytes: int = Field(
        32 * 1024 * 1024,
        ge=0,
        le=MAX_SEGMENT_BYTES,
        description="most of /dev/shm that unrolls and weights take between here and a learner on this machine, bytes, "
        "for each learner rank and task; 0: they go over the socket, as they do to other machines",
    )
    beat_s: float = Field(1.0, gt=0, description="environments PING this often, s")
    lease_s: float = Field(10.0, gt=0, description="a connected but silent group is freed after this, s")
    max_compute_s: float = Field(30.0, gt=0, description="a forward pass longer than this ends the process, s")
    drain_s: float = Field(8.0, ge=0, description="on shutdown, how long unrolls may take to be acknowledged, s")
    farewell_s: float = Field(
        20.0,
        ge=0,
        description="how long a finished run waits for its environments to leave, s; the learner waits longer",
    )
    finished_s: float = Field(
        0.0,
        ge=0,
        description="after the run's end, how long, at most, environments that come late are told, s",
    )


class InferenceSettings(Section):
    """All sections that an inference service reads."""

    inference: InferenceConfig = InferenceConfig()
    runtime: RuntimeConfig = RuntimeConfig()
