"""Reads the policy of a checkpoint, to resume, start from, serve or evaluate it."""

from dataclasses import dataclass, field

from seedbed.learner_svc.run.checkpoint import Checkpoint
from seedbed.shared.errors import CheckpointError, RemoteWireError
from seedbed.shared.policy.acting import ActingRule, Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import Manifest, policy_from_manifest
from seedbed.shared.protocol.layout import Array


@dataclass(frozen=True)
class SavedPolicy:
    """A policy on the CPU, in the precision and layout of its weights, with these as a flat array."""

    policy: Policy
    manifest: Manifest
    flat: Array = field(repr=False)  # f32 [num_elements]

    @property
    def rule(self) -> ActingRule:
        """Return its acting rule in training. Raises: ConfigError, RemoteWireError."""
        return Recording.from_json(self.manifest.extra).make_rule()


def read_policy(checkpoint: Checkpoint) -> SavedPolicy:
    """Return the policy of a checkpoint of this version of seedbed, or of one with the same layout of weights.

    Raises: CheckpointError naming what cannot be read, and what to do.
    """
    try:
        text, flat = checkpoint.meta["manifest"], checkpoint.arrays["policy.flat"]
        manifest = Manifest.from_json(text)
        policy = policy_from_manifest(manifest)
    except KeyError as error:
        raise CheckpointError(f"{checkpoint.path} holds no policy: it lacks {error}") from error
    except RemoteWireError as error:
        raise CheckpointError(
            f"{checkpoint.path}: this version of seedbed cannot read its policy: {error}. Start a new run, or use the"
            " version that wrote it (versions.json in its run folder names that)"
        ) from error
    if flat.size != manifest.num_elements:
        raise CheckpointError(f"{checkpoint.path} holds {flat.size} weights, its policy has {manifest.num_elements}")
    return SavedPolicy(policy, manifest, flat)
