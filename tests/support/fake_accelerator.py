"""An accelerator without hardware: tensors on the device `meta`, and a record of what moves between it and the host.

Tensors there have no values, so whatever needs one has to fetch it, and is noted. Operations that mix tensors of both
sides raise, as does a shape that depends on values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
aten = torch.ops.aten
NUMBERS = {torch.bool: False, torch.float32: 0.0, torch.float64: 0.0}


class FakeAccelerator(TorchDispatchMode):
    """Notes transfers while it is entered.

    Attributes:
      waits: operations for which a real accelerator would have to finish all of its work.
      num_sent, num_fetched: copies to the device and from it that nobody waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.num_sent = self.num_fetched = 0
        self._constants: list[_Constants] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports the compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        target = _target(func, args, kwargs)
        if target is not None and _side(args[0]) != _side_of(target):
            is_fetch = args[0].is_meta
            self._note(func, is_fetch=is_fetch, is_waited_for=not (kwargs.get("non_blocking") or True in args[2:]))
            return torch.empty_like(args[0], device=target, dtype=kwargs.get("dtype")).zero_()
        if func is aten.copy_.default and _side(args[0]) != _side(args[1]):
            target, is_fetch = args[0], args[1].is_meta
            self._note(func, is_fetch=is_fetch, is_waited_for=not any(args[2:]) and not kwargs.get("non_blocking"))
            return target.zero_() if is_fetch else target
        if func in (aten._local_scalar_dense.default, aten.item.default) and args[0].is_meta:
            self.waits.append(str(func))
            return NUMBERS.get(args[0].dtype, 0)
        if func is aten._fused_adam_.default:  # which `meta` does not have
            return None
        # A number in a tensor of the host is an argument of the operation, except that `where` sends it to the device.
        is_number_sent = func is aten.where.self
        sides = {
            _side(x)
            for x in tree_leaves((args, kwargs))
            if isinstance(x, Tensor) and (x.dim() or x.is_meta or is_number_sent)
        }
        if len(sides) > 1:
            raise AssertionError(f"{func} mixes tensors of the host and of the device")
        return func(*args, **kwargs)

    def __enter__(self) -> "FakeAccelerator":
        self._constants.append(_Constants(self.waits))
        self._constants[-1].__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._constants.pop().__exit__(*error)

    def _note(self, func: Any, *, is_fetch: bool, is_waited_for: bool) -> None:
        if is_waited_for:
            self.waits.append(str(func))
        elif is_fetch:
            self.num_fetched += 1
        else:
            self.num_sent += 1


class _Constants(TorchFunctionMode):
    """Notes tensors of the device that are made of numbers of the host, which a device waits for as well."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and _side_of(kwargs.get("device") or "cpu"):
            self._waits.append(func.__name__)
        return func(*args, **kwargs)


def _target(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | str | None:
    """Return the device that a tensor is to be converted for; None if this is no conversion to a device."""
    if func is aten.to.device:  # as it arrives in inference mode
        device: torch.device = args[1]
        return device
    return kwargs.get("device") if func in (aten._to_copy.default, aten.to.dtype_layout) else None


def _side(tensor: Tensor) -> bool:
    return tensor.is_meta


def _side_of(device: torch.device | str) -> bool:
    return torch.device(device).type == "meta"
