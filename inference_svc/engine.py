"""Runs the policy in the compute thread: one forward pass for all queued lanes, with policy state in tables.

Tensor suffixes: N lanes of a batch, A raw-action columns, M mask columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from seedbed.inference_svc.unrolls import LatestRow, UnrollWriter
from seedbed.shared.policy.acting import MODE, ActingRule, Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, Manifest, acting_parameters, policy_from_manifest
from seedbed.shared.protocol.layout import Array, Layout
from seedbed.shared.protocol.recording import ACTION, RecordSpec
from seedbed.shared.protocol.rows import Flags

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
    """Runs the policy. Owned by the compute thread once started; memory: state tables of `num_slots` rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
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
        if manifest is not None and (self._live is None or self._live.manifest.digest != manifest.digest):
            former, self._live = self._live, self._build(manifest)
            self._frozen = None
            if former is None or former.policy.state_fields != self._live.policy.state_fields:
                self._tables, self._num_slots = [], 0
        self.live.parameters.load_(buffer)
        self.version = version

    def freeze(self) -> int:
        """Freeze a copy of the live weights for an evaluation and return their version."""
        return self._freeze(self.version, self.live.parameters.export())

    def freeze_former(self, version: int, manifest_digest: str, buffer: bytes) -> int:
        """Freeze weights older than the live ones; return their version, or 0 if they are of another policy."""
        if self._live is None or self._live.manifest.digest != manifest_digest:
            return 0
        return self._freeze(version, buffer)

    def _freeze(self, version: int, buffer: bytes) -> int:
        if self._frozen is None or self._frozen.manifest.digest != self.live.manifest.digest:
            self._frozen = self._build(self.live.manifest)
        self._frozen.parameters.load_(buffer)
        self.frozen_version = version
        return version

    def _build(self, manifest: Manifest) -> LoadedPolicy:
        policy = policy_from_manifest(manifest).to(self.device).eval()
        recording = Recording.from_json(manifest.extra)
        record = recording.make_record(policy.spec, policy.state_fields)
        wanted = frozenset(item.name for item in record.decided)
        rule = recording.make_rule()
        rule.replica = self.replica
        return LoadedPolicy(policy, acting_parameters(policy), manifest, rule, record, wanted)

    def reserve(self, num_slots: int) -> None:
        """Make the state tables at least this long, keeping what they hold."""
        if num_slots <= self._num_slots and self._tables:
            return
        size = max(num_slots, 2 * self._num_slots)
        fresh = list(self.live.policy.initial_state(size, self.device))
        for old, new in zip(self._tables, fresh, strict=False):
            new[: len(old)] = old
        self._tables, self._num_slots = fresh, size

    def forget(self, lanes: LaneBlock) -> None:
        """Set the policy state of a group to that before its first row."""
        self.reserve(lanes.start + lanes.count)
        # A group that came while another run's policy was loaded may have a task of the former run; its session ends.
        task = lanes.task if lanes.task in self.policy.tasks else ""
        start = self.policy.initial_state(lanes.count, self.device, task)
        for table, value in zip(self._tables, start, strict=True):
            table[lanes.start : lanes.start + lanes.count] = value

    @torch.inference_mode()
    def act(self, groups: Sequence[LaneBlock]) -> list[list[bytes]]:
        """Return ACT's payload frames for each group. All groups must agree in `uses_frozen_weights` and `greedy`."""
        loaded = self._frozen if groups[0].uses_frozen_weights else self.live
        assert loaded is not None, "evaluation groups act only once weights are frozen"
        policy = loaded.policy
        version = self.frozen_version if groups[0].uses_frozen_weights else self.version
        slots = self._slots(groups) if self._tables else slice(0)
        state = tuple(table[slots] for table in self._tables)
        is_learned = any(isinstance(group.rows, UnrollWriter) for group in groups)
        self._keep_state_before(groups)
        inputs = self._inputs(groups)
        *observation, reward, flags = inputs
        mask = observation.pop() if policy.spec.mask_size else None
        first = (flags & int(Flags.FIRST)).bool()
        rule = MODE if groups[0].greedy else loaded.rule
        noise = self._noise(groups, policy, rule)
        wanted = loaded.wanted if is_learned else frozenset[str]()
        acted = policy.act(observation, reward, first, state, rule, noise, mask, wanted=wanted)
        for table, value in zip(self._tables, acted.state, strict=True):
            table[slots] = value
        raw_NA = acted.action.cpu().numpy()
        if is_learned:
            recorded = {name: value.cpu().numpy() for name, value in acted.recorded.items()}
            _write_back(groups, {ACTION: raw_NA, **recorded}, version)
        return _act_frames(groups, policy.distribution.to_env(raw_NA))

    def _slots(self, groups: Sequence[LaneBlock]) -> slice | Tensor:
        if len(groups) == 1:
            return slice(groups[0].start, groups[0].start + groups[0].count)
        for group in groups:
            if len(group.slots) != group.count:
                group.slots = torch.arange(group.start, group.start + group.count, device=self.device)
        return torch.cat([group.slots for group in groups])

    def _keep_state_before(self, groups: Sequence[LaneBlock]) -> None:
        """Copy the policy state before this tick into the unrolls whose row 0 is this tick."""
        for group in groups:
            if self._tables and isinstance(group.rows, UnrollWriter):
                for chunk, places in group.rows.state_places():
                    first = group.start + chunk.start
                    for place, table in zip(places, self._tables, strict=True):
                        place[...] = table[first : first + chunk.lanes].cpu().numpy()

    def _inputs(self, groups: Sequence[LaneBlock]) -> list[Tensor]:
        """Return the newest rows of all groups, one tensor [N, ...] for each field."""
        pieces: list[list[Array]] = []
        for group in groups:
            if isinstance(group.rows, UnrollWriter):
                row = group.rows.row
                pieces += [[array[row] for array in chunk.inputs] for chunk in group.rows.chunks]
            else:
                pieces.append(group.rows.inputs)
        joined = [np.concatenate(part) for part in zip(*pieces, strict=True)] if len(pieces) > 1 else pieces[0]
        if not joined[-1].flags.writeable:  # still the memory of the message, which torch does not accept
            joined = [array.copy() for array in joined]
        tensors = [torch.from_numpy(array) for array in joined]
        if self.device.type == "cpu":
            return tensors
        return [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in tensors]

    def _noise(self, groups: Sequence[LaneBlock], policy: Policy, rule: ActingRule) -> tuple[Tensor, ...]:
        """Return the rule's noise for each lane at its tick, which does not depend on the rest of the batch."""
        parts = []
        for group in groups:
            block, tick = divmod(group.tick, NOISE_TICKS)
            if group.noise_block != block:
                slots = range(group.start, group.start + group.count)
                group.noise = rule.noise(policy.distribution, group.seed, block, NOISE_TICKS, slots)
                group.noise_block = block
            parts.append([array[tick] for array in group.noise])
        joined = parts[0] if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        return tuple(torch.from_numpy(array).to(self.device) for array in joined)


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
