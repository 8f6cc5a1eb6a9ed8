"""The update thread's work: build the policy, train on batches, hand out weights and snapshots.

All methods but `count` and `agree` run in that thread, so a snapshot is always taken between two updates.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from seedbed.learner_svc.algorithms.registry import recording_of
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.initial_weights import find_source, policy_difference, start_from, task_difference
from seedbed.learner_svc.learning.selection import CountedBatch, Counts
from seedbed.learner_svc.learning.update import Updater, UpdateResult
from seedbed.learner_svc.ranks.ranks import ALONE, Ranks
from seedbed.learner_svc.run.checkpoint import Checkpoint, Snapshot
from seedbed.learner_svc.run.folder import PRECISION
from seedbed.learner_svc.run.saved_policy import read_policy
from seedbed.learner_svc.sources.batch import Batch
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.determinism import use_deterministic_algorithms
from seedbed.shared.policy.devices import choose_device
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.precision import REQUESTS, TF32, allow_tf32, choose_precision
from seedbed.shared.policy.weights import FlatParameters, Manifest, make_manifest, policy_from_manifest
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.runtime.allocator import keep_freed_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of one job of the update thread."""

    result: UpdateResult
    version: int  # packed, after the update
    seconds: float
    weights: bytes | None  # if requested
    snapshot: Snapshot | None  # if requested


@dataclass(frozen=True, slots=True)
class ChiefPolicy:
    """What the chief tells the other learner ranks of the policy that it has built; its tensors follow."""

    manifest: str  # JSON
    step: int
    trained_steps: int

    def encode(self) -> bytes:
        """Return the bytes that are sent to every rank, JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> "ChiefPolicy":
        """Return what the chief told, from the bytes that `encode` made of it."""
        return cls(**json.loads(data))


class Trainer:
    """The policy and its updater. Owned by the update thread, but for `count` and `agree`; memory: the updater's."""

    def __init__(
        self, settings: LearnerSettings, folder: Path, crash_folder: Path | None, *, epoch: int,
        origin: EnvSpec | Checkpoint | ChiefPolicy, ranks: Ranks = ALONE,
    ) -> None:  # fmt: skip
        """Build a policy for a specification, resume from a checkpoint, or follow the chief of several ranks.

        With several ranks it returns once all have the chief's policy and the state of its updater.

        Raises: ConfigError or CheckpointError if checkpoint and configuration do not fit together.
        """
        if settings.runtime.threads:
            torch.set_num_threads(settings.runtime.threads)
        torch.set_flush_denormal(True)
        if settings.run.deterministic:
            use_deterministic_algorithms()
        keep_freed_memory()
        torch.manual_seed(settings.run.seed)
        self.epoch = epoch
        self.max_policy_lag = settings.learner.max_policy_lag
        checkpoint = origin if isinstance(origin, Checkpoint) else None
        chief = origin if isinstance(origin, ChiefPolicy) else None
        self.step = checkpoint.step if checkpoint else chief.step if chief else 0
        self._agreed_step = self.step  # after all updates that were agreed on; of the thread that counts
        self.trained_steps = chief.trained_steps if chief else 0
        device = choose_device(settings.learner.device)
        if isinstance(origin, Checkpoint):
            policy = _resumed(settings, origin)
        elif isinstance(origin, ChiefPolicy):
            policy = policy_from_manifest(Manifest.from_json(origin.manifest))
        else:
            policy = _built(settings, origin, device, folder)
        policy.to(device)
        allow_tf32(policy.precision.tf32)
        self.policy = policy
        self.parameters = FlatParameters(policy)
        recording = recording_of(settings.algorithm, settings.learner.unroll_length)
        self.record = recording.make_record(policy.spec, policy.state_fields)
        self.manifest = make_manifest(policy, recording)
        passes, minibatches = settings.passes
        self.updater = Updater(
            policy, self.parameters, settings.algorithm, passes=passes, minibatches=minibatches,
            seed=settings.run.seed, run_steps=settings.run.steps,
            tasks=settings.tasks, epoch_start_step=self.step, crash_folder=crash_folder, ranks=ranks,
        )  # fmt: skip
        if checkpoint:
            self.updater.load_state(checkpoint.arrays, checkpoint.meta["updater"])
            self.trained_steps = checkpoint.meta["run"]["counters"]["trained_steps"]
        elif chief is None and settings.learner.init_from is not None:
            start_from(self.updater, find_source(settings.learner.init_from))
        if ranks.is_chief and not ranks.is_alone:
            ranks.tell(ChiefPolicy(self.manifest.to_json(), self.step, self.trained_steps).encode())
        ranks.copy_from_chief(self.updater.tensors())

    @property
    def version(self) -> int:
        """The packed version of the present weights."""
        return pack_version(self.epoch, self.step)

    def count(self, batch: Batch, *, task_B: Array | None = None, fresh_B: Array | None = None) -> CountedBatch:
        """Decide what of a batch is trained on next, after all that are agreed on. `fresh_B`: lanes that are new.

        With several ranks it runs in the rounds' thread, while another batch may be trained on; so does `agree`.
        """
        return self.updater.selector.count(
            batch, step=self._agreed_step, max_policy_lag=self.max_policy_lag,
            version_now=pack_version(self.epoch, self._agreed_step), task_B=task_B, fresh_B=fresh_B,
        )  # fmt: skip

    def agree(self, counted: CountedBatch, told: Sequence[Array]) -> Counts:
        """Note that a batch will be trained on, and return its counts with those of the other ranks' batches.

        `told`: the numbers of every rank's batch, f64 [N] each.
        """
        counts = Counts.of(counted, told)
        self._agreed_step += counts.num_trained > 0
        return counts

    def train(
        self, counted: CountedBatch, counts: Counts, *, wants_weights: bool, wants_snapshot: bool,
        weight_B: Array | None = None, begun: Callable[[], None] = lambda: None,
    ) -> Trained:  # fmt: skip
        """Train on a batch that was agreed on. `counts`, `weight_B` and `begun` are `Updater.train`'s.

        Raises: NumericsError if the loss is not finite; the batch has been saved.
        """
        started = time.perf_counter()
        result = self.updater.train(
            counted, counts, step=self.step, trained_steps=self.trained_steps, weight_B=weight_B, begun=begun
        )
        self.step += result.applied
        self.trained_steps += result.valid_steps
        return Trained(
            result=result,
            version=self.version,
            weights=self.parameters.export() if wants_weights and result.applied else None,
            snapshot=self.snapshot() if wants_snapshot else None,
            seconds=counted.seconds + time.perf_counter() - started,
        )

    def weights(self) -> tuple[int, bytes]:
        """Return the present weights: (packed version, flat buffer to publish)."""
        return self.version, self.parameters.export()

    def snapshot(self) -> Snapshot:
        """Return everything of this thread that an exact resume needs."""
        arrays, meta = self.updater.state()
        return Snapshot(
            version=self.version, step=self.step, trained_steps=self.trained_steps, arrays=arrays,
            meta={"updater": meta, "manifest": self.manifest.to_json()},
        )  # fmt: skip


def _built(settings: LearnerSettings, spec: EnvSpec, device: torch.device, folder: Path) -> Policy:
    policy = Policy(spec, settings.built_policy, tuple(settings.tasks))
    learner = settings.learner
    rows = (learner.unroll_length + 1) * -(-learner.batch // settings.passes[1])
    cache = folder / PRECISION
    policy.use(
        choose_precision(
            policy, rows=rows, requested=learner.precision, device=device, cache=cache,
            measures=not settings.run.deterministic,
        )
    )  # fmt: skip
    return policy


def _resumed(settings: LearnerSettings, checkpoint: Checkpoint) -> Policy:
    """Build the checkpoint's policy, in the precision and layout of its flat buffer."""
    policy = read_policy(checkpoint).policy
    if policy.spec.env_id != settings.policy_env_id:
        raise ConfigError(
            f"{checkpoint.path} is of {policy.spec.env_id}, env.id is {settings.policy_env_id}: set it back"
        )
    if difference := policy_difference(settings.built_policy, policy.config):
        raise ConfigError(f"{checkpoint.path}: {difference}: set it as there, or start a new run")
    if difference := task_difference(tuple(settings.tasks), policy.tasks):
        raise ConfigError(f"{checkpoint.path}: {difference}: set them as there, or start a new run")
    wanted = REQUESTS.get(settings.learner.precision, settings.learner.precision)
    if wanted not in (None, policy.precision.dtype):
        raise ConfigError(
            f"{checkpoint.path} trains in {policy.precision.dtype}, and learner.precision is "
            f"{settings.learner.precision!r}: set it back or to 'auto', or start a new run with --init-from"
        )
    if wanted is not None:
        policy.use(replace(policy.precision, tf32=settings.learner.precision == TF32))
    return policy
