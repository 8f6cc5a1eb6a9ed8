"""The policy that a checkpoint holds, for whoever trains on, starts from it, serves or evaluates it."""

from dataclasses import dataclass, field

from seedbed.learner_svc.run.checkpoint import Checkpoint
from seedbed.shared.errors import CheckpointError, RemoteWireError
from seedbed.shared.policy.acting import ActingRule, Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import Manifest, policy_from_manifest
from seedbed.shared.protocol.layout import Array


@dataclass(frozen=True)
class SavedPolicy:
    """Built on the CPU, in the precision and layout of its weights, which are still beside it."""

    policy: Policy
    manifest: Manifest
    flat: Array = field(repr=False)  # f32 [num_elements]

    @property
    def rule(self) -> ActingRule:
        """How it acted when it was trained. Raises: ConfigError, RemoteWireError."""
        return Recording.from_json(self.manifest.extra).make_rule()


def read_policy(checkpoint: Checkpoint) -> SavedPolicy:
    """The policy of a checkpoint of this version, or of another that laid weights out alike.

    Raises: CheckpointError saying what cannot be read, and what to do.
    """
    try:
        text, flat = checkpoint.meta["manifest"], checkpoint.arrays["policy.flat"]
        manifest = Manifest.from_json(text)
        policy = policy_from_manifest(manifest)
    except KeyError as error:
        raise CheckpointError(f"{checkpoint.path}: holds no policy: it lacks {error}") from error
    except RemoteWireError as error:
        raise CheckpointError(
            f"{checkpoint.path}: this version of seedbed cannot read its policy: {error}. Start a new run, or use the"
            " version that wrote it (versions.json in its run folder names that)"
        ) from error
    if flat.size != manifest.num_elements:
        raise CheckpointError(f"{checkpoint.path}: {flat.size} weights where its policy has {manifest.num_elements}")
    return SavedPolicy(policy, manifest, flat)
