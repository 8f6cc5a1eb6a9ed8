"""Forward passes of a few fixed sizes: batches are padded to the next size, and a GPU runs each size as one graph.

A captured graph is a forward pass that is launched as a whole, so that a small batch does not wait for hundreds of
separate launches. It always computes the same number of lanes, at the same addresses:

| step of a pass | on a GPU |
|---|---|
| write rows, slots and noise of the lanes | into page-locked memory |
| copy them, in one piece | on the copy stream |
| gather policy state, run the policy, choose actions, scatter the new state | one graph, on the compute stream |

A batch of more lanes than the largest size takes several passes; while one is computed, the next is written and
copied. On other devices the same code runs without capture. The lanes that fill a pass up have a slot of their own,
which no group uses.

Shape suffixes: N lanes of a pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedbed.inference_svc.config import InferenceConfig
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.acting import ActingRule
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.transfers import CopyStream, Event, pinned_zeros, record_event, wait_on_device
from seedbed.shared.protocol.layout import Array, Field
from seedbed.shared.protocol.recording import step_fields
from seedbed.shared.protocol.rows import Flags

ALIGNMENT = 256  # bytes, of each field in a pass's memory
NUM_WARM_UPS = 3  # passes of a size before its graph is captured, in which libraries choose their kernels
SLOT, NOISE = "slot", "noise"

Outputs = tuple[Tensor, Mapping[str, Tensor]]  # raw actions f32 [N, A], and recorded fields by name, each [N, ...]
Pass = Callable[[], Outputs]
Capture = Callable[[Pass], Pass]  # turns a pass into one that replays it


@dataclass(frozen=True, slots=True)
class Padding:
    """The sizes that batches are padded to, ascending, in lanes; and whether passes are captured as graphs."""

    sizes: tuple[int, ...]
    is_captured: bool


def choose_padding(config: InferenceConfig, device: torch.device) -> Padding | None:
    """Return how batches are padded on a device; None if they are not.

    Raises: ConfigError for graphs on a device that has none.
    """
    wanted = config.padding
    if wanted == "auto":
        wanted = "graphs" if device.type == "cuda" else "off"
    if wanted == "graphs" and device.type != "cuda":
        raise ConfigError(
            f"inference.padding = 'graphs' needs CUDA, and inference.device is {device.type}: set it to auto or padded"
        )
    return None if wanted == "off" else Padding(tuple(sorted(set(config.padded_sizes))), wanted == "graphs")


class ActingPolicy(NamedTuple):
    """What a pass computes: a policy, its rule, which fields are recorded, and the tables with the lanes' state."""

    policy: Policy
    rule: ActingRule
    wanted: frozenset[str]
    tables: Sequence[Tensor]  # each [slots + 1, ...]; the last row is for the lanes that fill a pass up

    def run(self, inputs: Sequence[Tensor], slots: Tensor | slice, noise: Sequence[Tensor]) -> Outputs:
        """Act on rows of N lanes, the fields of a STEP, and replace the state of the lanes in the tables."""
        *observation, reward, flags = inputs
        mask = observation.pop() if self.policy.spec.mask_size else None
        state = tuple(table[slots] for table in self.tables)
        first = (flags & int(Flags.FIRST)).bool()
        acted = self.policy.act(observation, reward, first, state, self.rule, noise, mask, wanted=self.wanted)
        for table, value in zip(self.tables, acted.state, strict=True):
            table[slots] = value
        return acted.action, acted.recorded


class PaddedPasses:
    """The passes of one policy in all sizes. Owned by the compute thread.

    Memory: for each size that was used, its inputs on the host and on the device, and what its graph needs.

    Args:
      sizes: in lanes, ascending.
      capture: returns what is run for a pass after its warm-up: a graph, or the pass itself.
    """

    def __init__(self, acting: ActingPolicy, sizes: Sequence[int], device: torch.device, capture: Capture) -> None:
        self._acting, self._sizes, self._device, self._capture = acting, tuple(sizes), device, capture
        self._copies = CopyStream(device)
        self._fields = _input_fields(acting)
        self._passes: dict[tuple[int, int], _SizedPass] = {}  # by size, and which of two that alternate

    def run(self, columns: Sequence[Sequence[Array]], lanes: int) -> Outputs:
        """Give a batch to the device and return its outputs there; nothing is waited for.

        Args:
          columns: for each field of a STEP, then for the slots i64, then for the noise of the rule: arrays of rows,
            which laid end to end have `lanes` rows.
        """
        largest = self._sizes[-1]
        if lanes <= largest:
            action, recorded = self._pass(self._size_of(lanes), 0).run(columns, lanes)
            return action[:lanes], {name: values[:lanes] for name, values in recorded.items()}
        parts: list[Outputs] = []
        for number, start in enumerate(range(0, lanes, largest)):
            count = min(largest, lanes - start)
            cut = [list(_rows(column, start, count)) for column in columns]
            action, recorded = self._pass(self._size_of(count), number % 2).run(cut, count)
            # The graph of the next part but one writes its outputs to the same place.
            parts.append((action[:count].clone(), {name: x[:count].clone() for name, x in recorded.items()}))
        return torch.cat([action for action, _ in parts]), {
            name: torch.cat([recorded[name] for _, recorded in parts]) for name in parts[0][1]
        }

    def _size_of(self, lanes: int) -> int:
        return next(size for size in self._sizes if size >= lanes)

    def _pass(self, size: int, turn: int) -> "_SizedPass":
        found = self._passes.get((size, turn))
        if found is None:
            inputs = _Inputs(self._fields, size, self._device)
            found = _SizedPass(self._acting, inputs, self._device, self._copies, self._capture)
            self._passes[size, turn] = found
        return found


class _SizedPass:
    """One pass of a fixed size."""

    def __init__(
        self, acting: ActingPolicy, inputs: "_Inputs", device: torch.device, copies: CopyStream,
        capture: Capture,
    ) -> None:  # fmt: skip
        self._acting, self._inputs, self._device, self._copies = acting, inputs, device, copies
        self._capture = capture
        self._run: Pass = self._compute
        self._num_runs = 0
        self._used = record_event(device)  # when the device has done with the memory of the inputs

    def run(self, columns: Sequence[Sequence[Array]], lanes: int) -> Outputs:
        """Write and copy the inputs of so many lanes, and start the pass; its outputs are overwritten by the next."""
        self._inputs.write(columns, lanes, padding_slot=len(self._acting.tables[0]) - 1 if self._acting.tables else 0)
        wait_on_device(self._inputs.send(self._copies, after=self._used), self._device)
        if self._num_runs == NUM_WARM_UPS:
            self._run = self._capture(self._compute)
        self._num_runs += 1
        outputs = self._run()
        self._used = record_event(self._device)
        return outputs

    def _compute(self) -> Outputs:
        number = self._inputs.num_step_fields
        slots, *noise = self._inputs.tensors[number:]
        return self._acting.run(self._inputs.tensors[:number], slots, noise)


class _Inputs:
    """The inputs of one pass: arrays in one piece of host memory, and tensors on its copy on the device.

    On a CPU both are the same memory.
    """

    def __init__(self, fields: Sequence[Field], size: int, device: torch.device) -> None:
        places, num_bytes = [], 0
        for item in fields:
            places.append((num_bytes, size * item.num_bytes))
            num_bytes += -(-size * item.num_bytes // ALIGNMENT) * ALIGNMENT
        memory = pinned_zeros((num_bytes,), "uint8") if device.type == "cuda" else np.zeros(num_bytes, np.uint8)
        self._host = torch.from_numpy(memory)
        self._there = self._host if device.type == "cpu" else torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.num_step_fields = [item.name for item in fields].index(SLOT)
        self.arrays: list[Array] = []
        self.tensors: list[Tensor] = []
        for item, (start, length) in zip(fields, places, strict=True):
            shape = (size, *item.shape)
            self.arrays.append(memory[start : start + length].view(item.dtype).reshape(shape))
            self.tensors.append(self._there[start : start + length].view(getattr(torch, item.dtype)).view(shape))
        self._slots, self._flags = self.arrays[self.num_step_fields], self.arrays[self.num_step_fields - 1]
        self._sent: Event = None

    def write(self, columns: Sequence[Sequence[Array]], lanes: int, *, padding_slot: int) -> None:
        """Write the rows of so many lanes. The other rows keep what they held, except for their slots and flags."""
        if self._sent is not None:
            self._sent.synchronize()  # over already, unless one batch has more than two passes
        for array, pieces in zip(self.arrays, columns, strict=True):
            np.concatenate(pieces, out=array[:lanes])
        self._slots[lanes:] = padding_slot
        self._flags[lanes:] = Flags.FIRST  # without memory their state cannot grow

    def send(self, copies: CopyStream, *, after: Event) -> Event:
        """Copy them to the device, once it has read those before, and return the event of the copy's end."""
        if self._there is not self._host:
            self._sent = copies.copy([(self._there, self._host)], after=after)
        return self._sent


class CudaGraphs:
    """Captures the passes of one policy as CUDA graphs that share memory, because they never run at the same time.

    The memory goes with the last of its graphs, so other passes need another object.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Pass) -> Pass:
        """Capture a pass on the current stream, without running it. Raises: RuntimeError if it waits for the device."""
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile.
        mode = torch.cuda.graph(
            graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
        )
        try:
            with mode:
                outputs = run()
        except RuntimeError:
            # The generator still counts for the graph, and would refuse every random number from now on.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def _input_fields(acting: ActingPolicy) -> list[Field]:
    """Return the inputs of one lane: the fields of a STEP, its slot, and the noise of the rule."""
    noise = acting.rule.noise(acting.policy.distribution, 0, 0, 1, range(1))
    return [
        *(Field(item.name, item.dtype, item.shape) for item in step_fields(acting.policy.spec)),
        Field(SLOT, "int64", ()),
        *(Field(f"{NOISE}/{index}", array.dtype.name, array.shape[2:]) for index, array in enumerate(noise)),
    ]


def _rows(pieces: Sequence[Array], start: int, count: int) -> Iterator[Array]:
    """Yield the rows `start` to `start + count` of arrays that are laid end to end."""
    for piece in pieces:
        if start >= len(piece):
            start -= len(piece)
        elif count:
            part = piece[start : start + count]
            yield part
            start, count = 0, count - len(part)
