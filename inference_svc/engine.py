"""Runs the policy in the compute thread: one forward pass for all queued lanes, with policy state in tables.

All work of a batch is given to the device without waiting for it, and then waited for once. On a GPU batches are padded
to a few sizes, whose passes are captured graphs (`padded_passes`).

Tensor suffixes: N lanes of a batch, A raw-action columns, M mask columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from seedbed.inference_svc.padded_passes import ActingPolicy, Capture, CudaGraphs, Outputs, PaddedPasses, Padding, Pass
from seedbed.inference_svc.unrolls import LatestRow, UnrollWriter
from seedbed.shared.policy.acting import MODE, ActingRule, Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.precision import allow_tf32
from seedbed.shared.policy.transfers import on_own_stream, record_event, to_device
from seedbed.shared.policy.weights import FlatParameters, Manifest, acting_parameters, policy_from_manifest
from seedbed.shared.protocol.layout import Array, Layout
from seedbed.shared.protocol.recording import ACTION, RecordSpec

NOISE_TICKS = 32  # ticks whose sampling noise is drawn in one go


@dataclass(slots=True, eq=False)
class LaneBlock:
    """The lanes of one group as the engine sees them: slots, rows and sampling noise. Kept in the `Group`."""

    start: int  # first slot
    count: int
    seed: int
    rows: UnrollWriter | LatestRow
    act_layout: Layout
    greedy: bool
    uses_frozen_weights: bool  # acts with the weights of an evaluation
    task: str = ""  # that the group plays
    tick: int = -1  # number of the newest rows; the sampling noise depends on it
    noise_block: int = -1
    noise: tuple[Array, ...] = ()
    slots: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with its weights, its acting rule, and what is recorded of its steps."""

    policy: Policy
    parameters: FlatParameters
    manifest: Manifest
    rule: ActingRule
    record: RecordSpec
    wanted: frozenset[str]  # names of the fields that the rule is to record


class Engine:
    """Runs the policy. Owned by the compute thread once started.

    Memory: state tables of `num_slots` rows, and with padding what `PaddedPasses` says.

    Args:
      padding: the sizes that batches are padded to; None: they are computed as they come.
      report: called with the reason if the policy cannot be captured as a graph.
      make_capture: makes what captures the passes of one policy, if `padding` wants them captured.
    """

    def __init__(
        self, device: torch.device, padding: Padding | None = None, *,
        report: Callable[[str], None] = lambda _reason: None, make_capture: Callable[[], Capture] = CudaGraphs,
    ) -> None:  # fmt: skip
        self.device = device
        self._is_cpu = device.type == "cpu"  # asking a device for its type takes a microsecond
        self._padding, self._report, self._make_capture = padding, report, make_capture
        self._is_captured = padding is not None and padding.is_captured  # until a policy turns out to wait
        self._on_stream = on_own_stream(device)  # which graphs need
        self._passes: dict[tuple[bool, bool, bool], PaddedPasses] = {}  # by frozen, greedy, learned
        self.replica = 0  # a number that no other inference of the run has, for acting rules
        self.version = 0
        self.frozen_version = 0
        self._live: LoadedPolicy | None = None
        self._frozen: LoadedPolicy | None = None
        self._tables: list[Tensor] = []
        self._num_slots = 0

    @property
    def policy(self) -> Policy:
        """The policy that acts now. Use it only after the first `load`."""
        return self.live.policy

    @property
    def live(self) -> LoadedPolicy:
        """The policy that acts now, with its weights. Use it only after the first `load`."""
        assert self._live is not None, "no weights yet"
        return self._live

    def load(self, version: int, manifest: Manifest | None, buffer: bytes) -> None:
        """Take new weights; None as manifest means that the policy stays the same.

        A manifest that differs builds another policy; if its state fields differ too, all policy state is dropped.
        """
        with self._on_stream:
            if manifest is not None and (self._live is None or self._live.manifest.digest != manifest.digest):
                former, self._live = self._live, self._build(manifest)
                self._frozen = None
                self._passes.clear()
                if former is None or former.policy.state_fields != self._live.policy.state_fields:
                    self._tables, self._num_slots = [], 0
            self.live.parameters.load_(buffer)
        self.version = version

    def freeze(self) -> int:
        """Freeze a copy of the live weights for an evaluation and return their version."""
        with self._on_stream:
            return self._freeze(self.version, self.live.parameters.export())

    def freeze_former(self, version: int, manifest_digest: str, buffer: bytes) -> int:
        """Freeze weights older than the live ones; return their version, or 0 if they are of another policy."""
        if self._live is None or self._live.manifest.digest != manifest_digest:
            return 0
        with self._on_stream:
            return self._freeze(version, buffer)

    def _freeze(self, version: int, buffer: bytes) -> int:
        if self._frozen is None or self._frozen.manifest.digest != self.live.manifest.digest:
            self._frozen = self._build(self.live.manifest)
            self._passes = {key: passes for key, passes in self._passes.items() if not key[0]}
        self._frozen.parameters.load_(buffer)
        self.frozen_version = version
        return version

    def _build(self, manifest: Manifest) -> LoadedPolicy:
        policy = policy_from_manifest(manifest).to(self.device).eval()
        allow_tf32(policy.precision.tf32)
        recording = Recording.from_json(manifest.extra)
        record = recording.make_record(policy.spec, policy.state_fields)
        wanted = frozenset(item.name for item in record.decided)
        rule = recording.make_rule()
        rule.replica = self.replica
        return LoadedPolicy(policy, acting_parameters(policy), manifest, rule, record, wanted)

    def reserve(self, num_slots: int) -> None:
        """Make the state tables at least this long, keeping what they hold."""
        if num_slots <= self._num_slots:
            return
        size = max(num_slots, 2 * self._num_slots)
        with self._on_stream:
            fresh = list(self.live.policy.initial_state(size + 1, self.device))  # the last row is for padding
            for old, new in zip(self._tables, fresh, strict=False):
                new[: len(old) - 1] = old[:-1]
        self._tables, self._num_slots = fresh, size
        if fresh:
            self._passes.clear()

    def forget(self, lanes: LaneBlock) -> None:
        """Set the policy state of a group to that before its first row."""
        self.reserve(lanes.start + lanes.count)
        # A group that came while another run's policy was loaded may have a task of the former run; its session ends.
        task = lanes.task if lanes.task in self.policy.tasks else ""
        with self._on_stream:
            start = self.policy.initial_state(lanes.count, self.device, task)
            for table, value in zip(self._tables, start, strict=True):
                table[lanes.start : lanes.start + lanes.count] = value

    @torch.inference_mode()
    def act(self, groups: Sequence[LaneBlock]) -> list[list[bytes]]:
        """Return ACT's payload frames for each group. All groups must agree in `uses_frozen_weights` and `greedy`."""
        loaded = self._frozen if groups[0].uses_frozen_weights else self.live
        assert loaded is not None, "evaluation groups act only once weights are frozen"
        version = self.frozen_version if groups[0].uses_frozen_weights else self.version
        is_learned = any(isinstance(group.rows, UnrollWriter) for group in groups)
        rule = MODE if groups[0].greedy else loaded.rule
        wanted = loaded.wanted if is_learned else frozenset[str]()
        with self._on_stream:
            states = self._keep_state_before(groups)
            action, recorded = self._decide(groups, ActingPolicy(loaded.policy, rule, wanted, self._tables))
            pending = [action, *recorded.values()] if is_learned else [action]
            raw_NA, *found = self._read([*pending, *(state for _, state in states)])
        if is_learned:
            _write_back(groups, {ACTION: raw_NA, **dict(zip(recorded, found, strict=False))}, version)
        for (place, _), state in zip(states, found[len(pending) - 1 :], strict=True):
            place[...] = state
        return _act_frames(groups, loaded.policy.distribution.to_env(raw_NA))

    def _decide(self, groups: Sequence[LaneBlock], acting: ActingPolicy) -> Outputs:
        """Give a batch to the device, which this does not wait for; return what it decides, still there."""
        rows, noise = _newest_rows(groups), self._noise(groups, acting)
        if self._padding is None:
            return self._run_whole(groups, rows, noise, acting)
        key = (groups[0].uses_frozen_weights, groups[0].greedy, bool(acting.wanted))
        passes = self._passes.get(key)
        if passes is None:
            capture = partial(self._captured, self._make_capture()) if self._is_captured else _as_it_is
            passes = self._passes[key] = PaddedPasses(acting, self._padding.sizes, self.device, capture)
        slots = [np.arange(group.start, group.start + group.count) for group in groups]
        columns = [*zip(*rows, strict=True), slots, *zip(*noise, strict=True)]
        return passes.run(columns, sum(group.count for group in groups))

    def _captured(self, capture: Capture, run: Pass) -> Pass:
        """Return a pass as a graph. If it cannot be one, this is reported, and from now on all passes stay as they are.

        No later policy is tried either: what a failed capture leaves behind in PyTorch's allocator may spoil the next.
        """
        if not self._is_captured:
            return run
        try:
            return capture(run)
        except RuntimeError as error:  # a network or a rule of the user's that waits for the device
            self._is_captured = False
            cause = error.__context__ or error  # what waited; the error of the capture says only that something did
            self._report(str(cause).partition("\n")[0])
            return run

    def _run_whole(
        self, groups: Sequence[LaneBlock], rows: Sequence[Sequence[Array]], noise: Sequence[Sequence[Array]],
        acting: ActingPolicy,
    ) -> Outputs:  # fmt: skip
        """Run a batch in its own size."""
        send = torch.from_numpy if self._is_cpu else partial(to_device, device=self.device)
        inputs = [send(array) for array in _joined(rows)]
        drawn = [send(array) for array in _joined(noise)]
        return acting.run(inputs, self._slots(groups) if self._tables else slice(0), drawn)

    def _read(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Return tensors as arrays: on a GPU by copies to page-locked memory and the one wait of a batch."""
        if self._is_cpu:
            return [tensor.numpy() for tensor in tensors]
        copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        copied = record_event(self.device)
        if copied is not None:
            copied.synchronize()
        return [copy.numpy() for copy in copies]

    def _slots(self, groups: Sequence[LaneBlock]) -> slice | Tensor:
        if len(groups) == 1:
            return slice(groups[0].start, groups[0].start + groups[0].count)
        for group in groups:
            if len(group.slots) != group.count:
                group.slots = torch.arange(group.start, group.start + group.count, device=self.device)
        return torch.cat([group.slots for group in groups])

    def _keep_state_before(self, groups: Sequence[LaneBlock]) -> list[tuple[Array, Tensor]]:
        """Keep the policy state before this tick for the unrolls whose row 0 is this tick.

        On a CPU it is copied into these unrolls; elsewhere the places and the states are returned.
        """
        kept: list[tuple[Array, Tensor]] = []
        for group in groups:
            if self._tables and isinstance(group.rows, UnrollWriter):
                for chunk, places in group.rows.state_places():
                    first = group.start + chunk.start
                    for place, table in zip(places, self._tables, strict=True):
                        state = table[first : first + chunk.lanes]
                        if self._is_cpu:
                            place[...] = state.numpy()
                        else:
                            kept.append((place, state.clone()))
        return kept

    def _noise(self, groups: Sequence[LaneBlock], acting: ActingPolicy) -> list[list[Array]]:
        """Return the rule's noise for the lanes of each group at its tick, which does not depend on other groups."""
        parts = []
        for group in groups:
            block, tick = divmod(group.tick, NOISE_TICKS)
            if group.noise_block != block:
                slots = range(group.start, group.start + group.count)
                group.noise = acting.rule.noise(acting.policy.distribution, group.seed, block, NOISE_TICKS, slots)
                group.noise_block = block
            parts.append([array[tick] for array in group.noise])
        return parts


def _as_it_is(run: Pass) -> Pass:
    return run


def _newest_rows(groups: Sequence[LaneBlock]) -> list[list[Array]]:
    """Return the fields of the newest row of each chunk of lanes, in the order of the groups."""
    pieces: list[list[Array]] = []
    for group in groups:
        if isinstance(group.rows, UnrollWriter):
            row = group.rows.row
            pieces += [[array[row] for array in chunk.inputs] for chunk in group.rows.chunks]
        else:
            pieces.append(group.rows.inputs)
    return pieces


def _joined(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Return each field of all parts as one writable array [N, ...]."""
    joined = [np.concatenate(field) for field in zip(*parts, strict=True)] if len(parts) > 1 else list(parts[0])
    if joined and not joined[-1].flags.writeable:  # still the memory of the message, which torch does not accept
        joined = [array.copy() for array in joined]
    return joined


def _write_back(groups: Sequence[LaneBlock], decided: Mapping[str, Array], version: int) -> None:
    """Write actions and recorded fields, by name and each [N, ...], into the unrolls."""
    base = 0
    for group in groups:
        if isinstance(group.rows, UnrollWriter):
            group.rows.decide(base, decided, version)
        base += group.count


def _act_frames(groups: Sequence[LaneBlock], leaves: Sequence[Array]) -> list[list[bytes]]:
    """Cut the batch's environment actions into each group's payload frames."""
    result, base = [], 0
    for group in groups:
        result.append(group.act_layout.pack([leaf[base : base + group.count] for leaf in leaves]))
        base += group.count
    return result
