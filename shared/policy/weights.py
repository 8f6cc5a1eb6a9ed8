"""A policy's weights as one flat float32 buffer, and the manifest from which the policy is built.

Parameters become strided views of the flat tensor (channels_last strides included), their gradients of a second one:
optimiser, clip, publishing and loading each touch a single tensor. Order: trained parameters, then buffers (the
observation statistics), each at a multiple of ALIGNMENT elements; the padding is zero and stays so.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from seedbed.shared.errors import ConfigError, LocalWireError, RemoteWireError
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.config import DTYPES, PolicyConfig, Precision
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.scaling import bounds_matter
from seedbed.shared.protocol.rows import EnvSpec, spec_from_wire, spec_to_wire

ALIGNMENT = 16  # elements: one cache line
MANIFEST_FORMAT = 2
AUTOCAST_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # whose weights autocast converts at each use


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of one tensor in the flat buffer; all numbers in elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def view(self, flat: Tensor) -> Tensor:
        """Return the tensor as a view of the flat buffer's memory."""
        return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)


@dataclass(frozen=True)
class Plan:
    """The places of all tensors of a module in the flat buffer."""

    places: tuple[TensorPlace, ...]
    num_trained: int  # elements of the leading section that the optimiser owns
    num_elements: int


def plan_layout(module: nn.Module) -> Plan:
    """Return the plan of a module's parameters and persistent buffers, in their present memory formats.

    Raises: LocalWireError if one of them is not float32.
    """
    parameters = dict(module.named_parameters())
    tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
    buffers = {name: tensor for name, tensor in tensors.items() if name not in parameters}
    places: list[TensorPlace] = []
    offset = 0

    def place(named: Mapping[str, Tensor]) -> None:
        nonlocal offset
        for name, tensor in named.items():
            if tensor.dtype != torch.float32:
                raise LocalWireError(f"weight {name} is {tensor.dtype}: the flat buffer can hold float32 only")
            places.append(TensorPlace(name, tuple(tensor.shape), _dense_strides(tensor), offset))
            offset += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT

    place(parameters)
    num_trained = offset
    place(buffers)
    return Plan(tuple(places), num_trained, offset)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return strides without gaps: channels_last if the tensor is only that, else contiguous."""
    is_last = tensor.dim() == 4 and not tensor.is_contiguous()
    order = (1, 3, 2, 0) if is_last else range(tensor.dim() - 1, -1, -1)  # axes, the fastest first
    strides, step = [0] * tensor.dim(), 1
    for axis in order:
        strides[axis] = step
        step *= tensor.shape[axis]
    return tuple(strides)


class FlatParameters:
    """The memory of a module's weights. Used by the thread that runs the module.

    `flat` f32 [num_elements] is published; `trained` is its leading section and `grad` the gradient of that.
    Moving or converting the module afterwards breaks the views. Memory: the weights and, if `grad` is used, once more.
    """

    def __init__(self, module: nn.Module) -> None:
        self.plan = plan_layout(module)
        tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
        device = next(iter(tensors.values())).device
        self.flat = torch.zeros(self.plan.num_elements, device=device)
        self.trained = self.flat[: self.plan.num_trained]
        self.grad = torch.zeros(self.plan.num_trained, device=device)
        self._tensors = tensors
        self._casts: list[tuple[Tensor, Tensor]] = []  # (low-precision copy, the view that it is made from)
        for place in self.plan.places:
            tensor = tensors[place.name]
            view = place.view(self.flat)
            view.copy_(tensor.detach())
            tensor.data = view
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                tensor.grad = place.view(self.grad)
        self._staging = self.flat
        if device.type != "cpu":
            self._staging = torch.zeros(self.plan.num_elements, pin_memory=device.type == "cuda")
        self._host = self._staging.numpy()

    def cast_(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Keep the layers of this part that autocast would convert at each use in `dtype`; `load_` converts them.

        The part can then no longer be trained. Other parameters, such as those of norms, stay in float32, as they do
        under autocast.
        """
        for layer in module.modules():
            if isinstance(layer, AUTOCAST_LAYERS):
                for parameter in layer.parameters(recurse=False):
                    self._cast_(parameter, dtype)

    def _cast_(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        name = next(name for name, tensor in self._tensors.items() if tensor is parameter)
        view = next(place for place in self.plan.places if place.name == name).view(self.flat)
        parameter.requires_grad_(False)
        parameter.grad = None
        parameter.data = view.to(dtype)
        self._casts.append((parameter.data, view))

    def export(self) -> bytes:
        """Return a copy of the flat buffer as little-endian float32 bytes."""
        if self._staging is not self.flat:
            self._staging.copy_(self.flat)
        return self._host.tobytes()

    @torch.no_grad()
    def load_(self, buffer: bytes | bytearray | memoryview) -> None:
        """Load all weights from a flat buffer. Raises: RemoteWireError if it has another size."""
        size = len(buffer) if not isinstance(buffer, memoryview) else buffer.nbytes
        if size != 4 * self.plan.num_elements:
            raise RemoteWireError("weights", f"weights of {size} bytes, the manifest says {4 * self.plan.num_elements}")
        if self.flat.is_cuda:
            torch.cuda.current_stream(self.flat.device).synchronize()  # an earlier copy may still read from it
        np.copyto(self._host, np.frombuffer(buffer, "<f4"))
        if self._staging is not self.flat:
            self.flat.copy_(self._staging, non_blocking=True)
        for target, source in self._casts:
            target.copy_(source)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return named views of any tensor laid out like `flat` or `trained`, such as a moment of the optimiser."""
        return {
            place.name: place.view(flat) for place in self.plan.places if place.offset < flat.numel()
        }  # fmt: skip


@dataclass(frozen=True)
class Manifest:
    """All that is needed to build the policy of some weights; JSON, sent once per learner epoch. Immutable."""

    places: tuple[TensorPlace, ...]
    num_elements: int
    body: dict[str, Any]  # "spec", "policy", "precision", "extra", "tasks" if it tells any apart: JSON values

    @property
    def num_bytes(self) -> int:
        """Size of the flat buffer, bytes."""
        return 4 * self.num_elements

    @property
    def extra(self) -> dict[str, Any]:
        """The learner's additions: a `Recording` as JSON values."""
        found: dict[str, Any] = self.body.get("extra", {})
        return found

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that are equal for the same policy in the same layout."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The manifest as JSON, the same text for the same manifest."""
        tensors = [[p.name, list(p.shape), list(p.strides), p.offset] for p in self.places]
        whole = {"format": MANIFEST_FORMAT, "num_elements": self.num_elements, "tensors": tensors, **self.body}
        return json.dumps(whole, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read a manifest from JSON. Raises: RemoteWireError if it is none, or a tensor lies outside the buffer."""
        try:
            whole = json.loads(text)
            if (number := whole.pop("format")) != MANIFEST_FORMAT:
                raise ValueError(f"it has format {number}, and this version of seedbed reads {MANIFEST_FORMAT}")
            size = whole.pop("num_elements")
            places = tuple(_read_place(item, size) for item in whole.pop("tensors"))
            return cls(places, size, whole)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RemoteWireError("manifest", f"not a weight manifest: {error}") from error


def _read_place(item: Any, num_elements: int) -> TensorPlace:
    name, shape, strides, offset = item
    numbers = [num_elements, offset, *shape, *strides]
    if type(name) is not str or any(type(n) is not int or not 0 <= n < 1 << 48 for n in numbers):
        raise ValueError("the shape, strides or offset of a tensor are invalid")
    if len(shape) != len(strides) or offset + math.prod(shape) > num_elements:
        raise ValueError(f"tensor {name[:64]!r} does not lie within the buffer")
    return TensorPlace(name, tuple(shape), tuple(strides), offset)


def make_manifest(policy: Policy, recording: Recording) -> Manifest:
    """Return the manifest of a policy in its present precision, with what inference is to record of it.

    Call `Policy.use` first. Newer settings are omitted at the value that older versions imply, so that these can read
    the manifest.
    """
    plan = plan_layout(policy)
    config = policy.config.model_dump(mode="json")
    absent = _meant_by_absence(policy.spec)
    body = {
        "spec": _to_json(spec_to_wire(policy.spec)),
        "policy": {name: value for name, value in config.items() if name not in absent or value != absent[name]},
        "precision": _stated(policy.precision),
        "extra": recording.to_json(),
    }
    if policy.tasks:
        body["tasks"] = list(policy.tasks)
    return Manifest(plan.places, plan.num_elements, body)


def _stated(precision: Precision) -> dict[str, Any]:
    """Return a precision as JSON values; TF32 only where it is used, so that older versions can read the others."""
    stated = {"dtype": precision.dtype, "channels_last": precision.channels_last}
    return stated | {"tf32": True} if precision.tf32 else stated


def policy_from_manifest(manifest: Manifest) -> Policy:
    """Make an untrained policy of this manifest, on the CPU; load it through `FlatParameters` or `acting_parameters`.

    Raises: RemoteWireError if the manifest contradicts itself or this library would lay the weights out otherwise.
    """
    try:
        spec = spec_from_wire(_from_json(manifest.body["spec"]))
        config = PolicyConfig.model_validate({**_meant_by_absence(spec), **manifest.body["policy"]})
        tasks = tuple(map(str, manifest.body.get("tasks", ())))
        stated = manifest.body["precision"]
        precision = Precision(
            dtype=stated["dtype"], channels_last=stated["channels_last"] is True, tf32=stated.get("tf32") is True
        )
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise RemoteWireError("manifest", f"not a weight manifest: {error}") from error
    if precision.dtype not in DTYPES:
        raise RemoteWireError("manifest", f"precision {precision.dtype!r} is unknown")
    try:
        policy = Policy(spec, config, tasks)
    except ConfigError as error:
        raise RemoteWireError("manifest", f"the policy cannot be built here: {error}") from error
    policy.use(precision)
    if plan_layout(policy).places != manifest.places:
        raise RemoteWireError("manifest", "weights have another layout here than at the learner: install one version")
    return policy


def _meant_by_absence(spec: EnvSpec) -> dict[str, Any]:
    """Return the [policy] settings that an older manifest may lack, with the values that it implies."""
    scales = not bounds_matter(spec.observation)
    return {
        "scale_observation": scales, "value_network": "shared", "grid_codes": 0, "std": "shared",
        "value_heads": "shared", "task_input": False,
    }  # fmt: skip


def acting_parameters(policy: Policy) -> FlatParameters:
    """Return the flat weights of a policy that only acts: its torsos' layers are in their compute dtype."""
    parameters = FlatParameters(policy)
    dtype: torch.dtype = getattr(torch, policy.precision.dtype)
    if dtype != torch.float32:
        for torso in (policy.torso, policy.value_torso):
            if torso is not None:
                parameters.cast_(torso, dtype)
    return parameters


def _to_json(value: Any) -> Any:
    """Convert nested lists with bytes to JSON values."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_to_json(item) for item in value] if isinstance(value, list | tuple) else value


def _from_json(value: Any) -> Any:
    """Convert JSON values of `_to_json` back."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_from_json(item) for item in value] if isinstance(value, list) else value
