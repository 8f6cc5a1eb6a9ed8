"""A run's policy for programs that know nothing of seedbed: its weights by name, or one step of it as an ONNX graph.

Both are in float32, whatever precision the run acts in: that is what its checkpoints hold, and ONNX Runtime has few
bf16 operations on CPUs.

Suffixes: B lanes, A raw-action columns, P distribution parameters.
"""

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from seedbed.learner_svc.run.checkpoint import Checkpoint
from seedbed.learner_svc.run.saved_policy import read_policy
from seedbed.shared.errors import ConfigError, MissingExtraError
from seedbed.shared.policy.config import Precision
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.runtime.files import writing

OPSET = 20
EXAMPLE_LANES = 2  # one would be taken for a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written, by the names that its reader needs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class PolicyStep(nn.Module):
    """One tick of a policy: the most likely action, and what whoever wants to sample needs.

    Inputs: each observation leaf [B, ...] in its wire dtype, reward f32 [B] and first bool [B] of the same row, the
    mask u8 [B, M] if the actions have one, and the state's parts, zeros before the first row.
    Outputs: action f32 [B, A], parameters of the distribution f32 [B, P], value f32 [B], and the next state's parts.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.num_leaves, self.has_mask = len(policy.spec.observation.leaves()), bool(policy.spec.mask_size)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One step: the inputs and outputs that the class describes."""
        policy, leaves, rest = self.policy, inputs[: self.num_leaves], list(inputs[self.num_leaves :])
        reward, first = rest.pop(0), rest.pop(0)
        mask = rest.pop(0) if self.has_mask else None
        rows = tuple(leaf.unsqueeze(0) for leaf in leaves)
        output = policy(rows, reward.unsqueeze(0), first.unsqueeze(0), None, tuple(rest))
        params = output.params[0]
        action = policy.distribution.mode(params, mask)
        return action, params, output.value[0], *policy.remember(output.state, action)

    def examples(self) -> tuple[Tensor, ...]:
        """Inputs of the right shapes and dtypes, by which the policy is traced."""
        spec, lanes = self.policy.spec, EXAMPLE_LANES
        leaves = [
            torch.zeros((lanes, *leaf.wire_shape), dtype=getattr(torch, str(leaf.wire_dtype)))
            for leaf in spec.observation.leaves()
        ]
        mask = [torch.ones((lanes, spec.mask_size), dtype=torch.uint8)] if self.has_mask else []
        first = torch.ones(lanes, dtype=torch.bool)
        return *leaves, torch.zeros(lanes), first, *mask, *self.policy.initial_state(lanes)

    @property
    def names(self) -> Exported:
        """Return the names of inputs and outputs, in their order."""
        paths = [leaf.path for leaf in self.policy.spec.observation.leaves()]
        leaves = [f"observation/{path}" if path else "observation" for path in paths]
        state = [field.name for field in self.policy.state_fields]
        return Exported(
            inputs=(*leaves, "reward", "first", *(["mask"] if self.has_mask else []), *state),
            outputs=("action", "parameters", "value", *(f"next_{name}" for name in state)),
        )


def export_policy(checkpoint: Checkpoint, file: Path) -> Exported:
    """Write a checkpoint's policy; the file's suffix decides how: .safetensors or .onnx.

    Raises: ConfigError for another suffix, CheckpointError, MissingExtraError, StorageError.
    """
    writers: dict[str, Callable[[Policy, str, Path], Exported]] = {".safetensors": _weights, ".onnx": _graph}
    write = writers.get(file.suffix)
    if write is None:
        raise ConfigError(f"{file}: the suffix says what is written: .safetensors (weights) or .onnx (one step)")
    with writing(file):  # found out before the work
        file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        exported = write(_in_float32(checkpoint), str(checkpoint.meta["manifest"]), draft)
        with writing(file):
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return exported


def _in_float32(checkpoint: Checkpoint) -> Policy:
    saved = read_policy(checkpoint)
    FlatParameters(saved.policy).load_(saved.flat.tobytes())
    saved.policy.use(Precision())
    return saved.policy.eval()


def _weights(policy: Policy, manifest: str, file: Path) -> Exported:
    """Write the tensors by name; specification and configuration go with them, as JSON."""
    tensors = {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    with writing(file):
        save_file(tensors, file, metadata={"seedbed": manifest})
    return Exported(inputs=(), outputs=tuple(tensors))


def _graph(policy: Policy, manifest: str, file: Path) -> Exported:
    for module in ("onnx", "onnxscript"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, "export")
    step = PolicyStep(policy).eval()
    names, examples, lanes = step.names, step.examples(), torch.export.Dim("lanes")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the exporter says of itself
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            step, examples, dynamo=True, opset_version=OPSET, verbose=False,
            input_names=names.inputs, output_names=names.outputs,
            dynamic_shapes=(tuple({0: lanes} for _ in examples),),
        )  # fmt: skip
    assert program is not None
    program.model.metadata_props["seedbed"] = manifest
    with writing(file):
        program.save(file)
    return names
