"""The action distribution of a policy: sample, mode, log-probability and entropy for every action space.

A space has three kinds of components, whatever its tree: categorical (each Discrete, each element of a MultiDiscrete),
binary (each element of a MultiBinary) and normal (each element of a Box). Parameter columns P are ordered by kind:
categorical logits, binary logits, means, log standard deviations. Columns A of the raw action stay in the
space's canonical order. The components are independent given the parameters, so log-probabilities and entropies add up.

A normal's raw action is the value before squashing or clipping; its log-probability is the Gaussian's (the Jacobian of
tanh cancels in every ratio of policies).

Shape suffixes: N rows (any leading axes where `...` is said), P parameters, A raw-action columns, M mask columns,
E encoded columns, C categorical components, K categories.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.spaces import Leaf, Space, mask_size, raw_action_size

MASKED = torch.finfo(torch.float32).min  # not -inf, because 0 · -inf is NaN
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0  # policy.initial_std lies between
MAX_ENCODED = 10.0  # bound of an unbounded action as an input
_LOG_2PI = math.log(2 * math.pi)
_KEY = (1 << 64) - 1


class _BoundedLogStd(torch.autograd.Function):
    """A clamp whose gradient is cut only where it leads further out, so that what has crossed a bound can come back."""

    @staticmethod
    def forward(ctx: Any, log_std: Tensor) -> Tensor:
        ctx.save_for_backward(log_std)
        return log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (log_std,) = ctx.saved_tensors
        leads_out = ((log_std > MAX_LOG_STD) & (grad < 0)) | ((log_std < MIN_LOG_STD) & (grad > 0))
        return grad.masked_fill(leads_out, 0.0)


def bounded_log_std(log_std: Tensor) -> Tensor:
    """Return log standard deviations [...] within their bounds, with a gradient that can lead back to these."""
    if torch.is_grad_enabled() and log_std.requires_grad:
        bounded: Tensor = _BoundedLogStd.apply(log_std)  # type: ignore[no-untyped-call]
        return bounded
    return log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)


@dataclass(frozen=True, slots=True)
class ActionEvaluation:
    """The log-probabilities and entropies of actions, each f32 [...]."""

    log_prob: Tensor
    entropy: Tensor


class ActionDistribution(nn.Module):
    """The distribution over one action space. It has no parameters; its index tables move with `.to(device)`.

    Large because one space may mix categories, normals and masks, which all methods treat together.

    Attributes: `param_size` P, `action_size` A, `encoded_size` E, `mask_size` M, `num_normals` (that many of the
    last parameters are log standard deviations).
    """

    def __init__(self, space: Space, *, squash: bool = True) -> None:
        super().__init__()
        leaves = space.leaves()
        self.action_size = raw_action_size(space)
        self.mask_size = mask_size(space)
        columns: dict[str, list[int]] = {"categorical": [], "binary": [], "normal": []}
        self._leaves: list[_EnvLeaf] = []
        start = 0
        for leaf in leaves:
            stop = start + leaf.num_elements
            columns[_KIND[leaf.kind]] += range(start, stop)
            self._leaves.append(_EnvLeaf(leaf, start, stop, squash))
            start = stop
        nvec = [n for leaf in leaves for n in leaf.nvec]
        self.num_components, self.num_categories = len(nvec), max(nvec, default=0)
        self.num_logits = sum(nvec)
        self.num_binaries, self.num_normals = len(columns["binary"]), len(columns["normal"])
        self.param_size = self.num_logits + self.num_binaries + 2 * self.num_normals
        self.encoded_size = self.num_logits + self.num_binaries + self.num_normals
        self._is_single = self.num_components == 1 and self.action_size == 1
        self._is_uniform = len(set(nvec)) <= 1
        self._columns = {kind: _contiguous(chosen) for kind, chosen in columns.items()}
        order = columns["categorical"] + columns["binary"] + columns["normal"]
        self._is_ordered = order == sorted(order)
        self._register_tables(nvec, order, columns)

    def _register_tables(self, nvec: list[int], order: list[int], columns: dict[str, list[int]]) -> None:
        """Register the index tables, which are not part of the weights."""
        widest = self.num_categories
        place = np.zeros((len(nvec), widest), np.int64)  # where each component's logits lie
        is_padding = np.ones((len(nvec), widest), bool)
        offset = 0
        for row, n in enumerate(nvec):
            place[row, :n] = range(offset, offset + n)
            is_padding[row, :n] = False
            offset += n
        squashed = np.array([flag for leaf in self._leaves if leaf.leaf.kind == "box" for flag in leaf.squashed], bool)
        tables: dict[str, Array] = {
            "_place": place.ravel(),
            "_is_padding": is_padding,
            "_component": np.repeat(np.arange(len(nvec)), nvec),
            "_category": np.array([category for n in nvec for category in range(n)], np.float32),
            "_to_canonical": np.argsort(np.array(order, np.int64)),
            "_is_squashed": squashed,
            "_nodes": _GAUSS_NODES,
            "_node_weights": _GAUSS_WEIGHTS,
        }
        tables |= {f"_{kind}": np.array(chosen, np.int64) for kind, chosen in columns.items()}
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(table)), persistent=False)
        self._has_squashed = bool(squashed.any())

    # --- acting -----------------------------------------------------------------------------------------------------

    def noise(self, seed: int, block: int, ticks: int, lanes: int) -> tuple[Array, ...]:
        """Return the noise that `sample` needs for `ticks` ticks of a group; equal arguments give equal noise.

        One f32 array [ticks, lanes, columns] for each kind of component in the space: Gumbel for each logit, logistic
        for each binary, standard normal for each normal.
        """
        generator = np.random.Generator(np.random.Philox(key=np.array([seed & _KEY, block & _KEY], np.uint64)))
        arrays: list[Array] = []
        if self.num_logits:
            gumbel = generator.standard_exponential((ticks, lanes, self.num_logits), np.float32)
            np.maximum(gumbel, np.float32(1e-20), out=gumbel)  # with 0, even a masked logit could win
            arrays.append(np.negative(np.log(gumbel, out=gumbel), out=gumbel))
        if self.num_binaries:
            uniform = generator.random((ticks, lanes, self.num_binaries)) * (1 - 2e-12) + 1e-12
            arrays.append(np.log(uniform / (1 - uniform)).astype(np.float32))
        if self.num_normals:
            arrays.append(generator.standard_normal((ticks, lanes, self.num_normals), np.float32))
        return tuple(arrays)

    def sample(self, params: Tensor, noise: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Own action f32 [N, A] for params [N, P], one tick's noise and mask u8 [N, M]."""
        if self._is_single:
            logits = params if mask is None else self._masked(params, mask)
            return (logits + noise[0]).argmax(-1, keepdim=True).float()
        return self._choose(params, mask, list(noise))

    def sample_with_log_prob(
        self, params: Tensor, noise: Sequence[Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return `sample` and the action's `log_prob` f32 [N], at half the cost of two calls."""
        if self._is_single:
            logits = params if mask is None else self._masked(params, mask)
            index = (logits + noise[0]).argmax(-1, keepdim=True)
            return index.float(), logits.log_softmax(-1).gather(-1, index).squeeze(-1)
        raw = self._choose(params, mask, list(noise))
        return raw, self.log_prob(params, raw, mask)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """The most likely raw action f32 [N, A]: greedy play."""
        if self._is_single:
            return (params if mask is None else self._masked(params, mask)).argmax(-1, keepdim=True).float()
        return self._choose(params, mask, None)

    def _choose(self, params: Tensor, mask: Tensor | None, noise: list[Tensor] | None) -> Tensor:
        """Return raw actions f32 [N, A]: sampled with the noise, or the mode if it is None."""
        parts = []
        if self.num_components:
            logits = params[..., : self.num_logits]
            if mask is not None:
                logits = self._masked(logits, mask)
            if noise is not None:
                logits = logits + noise.pop(0)
            parts.append(self._by_component(logits).argmax(-1).float())
        if self.num_binaries:
            logits = self._binary_logits(params)
            parts.append(((logits if noise is None else logits + noise.pop(0)) > 0).float())
        if self.num_normals:
            mean, log_std = self._mean_and_log_std(params)
            parts.append(mean if noise is None else torch.addcmul(mean, log_std.exp(), noise.pop(0)))
        raw = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return raw if self._is_ordered else raw.index_select(-1, self._table("_to_canonical"))

    def to_env(self, raw: Array) -> list[Array]:
        """The environment's action leaves [N, *shape] in their dtypes for raw actions f32 [N, A].

        The one place where starts are added and boxes are squashed, clipped and rounded.
        """
        return [leaf.to_env(raw) for leaf in self._leaves]

    def encode(self, raw: Tensor) -> Tensor:
        """Own actions f32 [..., A] as a network's input f32 [..., E].

        One-hot, ±1 for binaries, the squashed or clamped value for normals; zeros mean that there is no action yet.
        """
        parts = []
        if self.num_components:
            index = self._take(raw, "categorical")
            if not self._is_single:
                index = index.index_select(-1, self._table("_component"))
            parts.append((index == self._table("_category")).float())
        if self.num_binaries:
            parts.append(self._take(raw, "binary") * 2 - 1)
        if self.num_normals:
            value = self._take(raw, "normal")
            clamped = value.clamp(-MAX_ENCODED, MAX_ENCODED)
            parts.append(torch.where(self._table("_is_squashed"), value.tanh(), clamped))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    # --- learning ---------------------------------------------------------------------------------------------------

    def log_prob(self, params: Tensor, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """log pi(raw action), f32 [...], for params [..., P], raw [..., A], mask [..., M]."""
        log_p = self._log_softmax(params, mask) if self.num_components else None
        return self._log_prob(params, log_p, raw)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy f32 [...]; of a squashed normal: Gaussian H + E[log(1 - tanh² u)] (differentiable)."""
        log_p = self._log_softmax(params, mask) if self.num_components else None
        return self._entropy(params, log_p)

    def evaluate(self, params: Tensor, raw: Tensor, mask: Tensor | None = None) -> ActionEvaluation:
        """Return log-probability and entropy together, with one log-softmax for both."""
        log_p = self._log_softmax(params, mask) if self.num_components else None
        return ActionEvaluation(self._log_prob(params, log_p, raw), self._entropy(params, log_p))

    def _log_prob(self, params: Tensor, log_p: Tensor | None, raw: Tensor) -> Tensor:
        if self._is_single and log_p is not None:
            return log_p.gather(-1, raw.long()).squeeze(-1)
        parts = []
        if log_p is not None:
            index = self._take(raw, "categorical").long().unsqueeze(-1)
            parts.append(log_p.gather(-1, index).squeeze(-1).sum(-1))
        if self.num_binaries:
            logits = self._binary_logits(params)
            parts.append((self._take(raw, "binary") * logits - F.softplus(logits)).sum(-1))
        if self.num_normals:
            mean, log_std = self._mean_and_log_std(params)
            scaled = (self._take(raw, "normal") - mean) * (-log_std).exp()
            parts.append((-0.5 * scaled.square() - log_std - 0.5 * _LOG_2PI).sum(-1))
        return reduce(torch.add, parts)

    def _entropy(self, params: Tensor, log_p: Tensor | None) -> Tensor:
        parts = []
        if log_p is not None:
            each = -(log_p.exp() * log_p).sum(-1)
            parts.append(each if self._is_single else each.sum(-1))
        if self.num_binaries:
            logits = self._binary_logits(params)
            parts.append((F.softplus(logits) - logits.sigmoid() * logits).sum(-1))
        if self.num_normals:
            mean, log_std = self._mean_and_log_std(params)
            normal = log_std + 0.5 * (_LOG_2PI + 1)
            if self._has_squashed:
                normal = normal + torch.where(self._table("_is_squashed"), self._log_jacobian(mean, log_std), 0.0)
            parts.append(normal.sum(-1))
        return reduce(torch.add, parts)

    def _log_jacobian(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Return E[log(1 - tanh² u)] for u ~ N(mean, std), with an error of at most 0.013 for any mean and std.

        It equals E[-2 log cosh u], nearly -2 E|u|, whose corner a quadrature with few nodes misses if std is large. So
        most of it is computed in closed form: |u| blurred by a normal of std s is h(u, s) = E|N(u, s²)|, and
        h(u, s) - log 2 differs from log cosh u by at most 0.02, smoothly. Gauss-Hermite quadrature computes that rest.
        """
        std = log_std.exp()
        u = mean.unsqueeze(-1) + std.unsqueeze(-1) * self._table("_nodes")
        rest = _mean_absolute(u, torch.full_like(u, _BLUR)) - u - F.softplus(-2 * u)
        near = math.log(2) - _mean_absolute(mean, (std.square() + _BLUR**2).sqrt())
        return 2 * (near + (rest * self._table("_node_weights")).sum(-1))

    # --- categories -------------------------------------------------------------------------------------------------

    def components(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """The categories' logits by component, f32 [..., C, K] for params [..., P]; what is forbidden is at MASKED."""
        logits = params[..., : self.num_logits]
        return self._by_component(logits if mask is None else self._masked(logits, mask))

    def categories(self, own: Tensor) -> Tensor:
        """Which category own actions f32 [..., A] chose of each component, i64 [..., C]."""
        return self._take(own, "categorical").long()

    @property
    def is_padding(self) -> Tensor:
        """Which places of `components` belong to no category, bool [C, K]."""
        return self._table("_is_padding")

    # --- columns ----------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> Tensor:
        table: Tensor = self._buffers[name]  # type: ignore[assignment]
        return table

    def _take(self, raw: Tensor, kind: str) -> Tensor:
        """The raw-action columns of one kind of component."""
        run = self._columns[kind]
        return raw.index_select(-1, self._table(f"_{kind}")) if run is None else raw.narrow(-1, *run)

    def _masked(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Return logits [..., M] with forbidden ones at MASKED. A component with none permitted keeps all."""
        allowed = mask != 0
        if self.num_components == 1:
            none = ~allowed.any(-1, keepdim=True)
        else:
            some = (self._by_component(allowed) & ~self._table("_is_padding")).any(-1)
            none = ~some.index_select(-1, self._table("_component"))
        return logits.masked_fill(~(allowed | none), MASKED)

    def _by_component(self, columns: Tensor) -> Tensor:
        """Rearrange [..., sum of categories] to [..., C, K]; the padding is MASKED (anything, for a mask)."""
        shape = (*columns.shape[:-1], self.num_components, self.num_categories)
        if self._is_uniform:
            return columns.reshape(shape)
        gathered = columns.index_select(-1, self._table("_place")).view(shape)
        return gathered if gathered.dtype == torch.bool else gathered.masked_fill(self._table("_is_padding"), MASKED)

    def _log_softmax(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return log-probabilities of the categories, [..., K] for a single Discrete, else [..., C, K]."""
        logits = params if self._is_single else params[..., : self.num_logits]
        if mask is not None:
            logits = self._masked(logits, mask)
        return (logits if self._is_single else self._by_component(logits)).log_softmax(-1)

    def _binary_logits(self, params: Tensor) -> Tensor:
        return params.narrow(-1, self.num_logits, self.num_binaries)

    def _mean_and_log_std(self, params: Tensor) -> tuple[Tensor, Tensor]:
        start = self.num_logits + self.num_binaries
        log_std = params.narrow(-1, start + self.num_normals, self.num_normals)
        return params.narrow(-1, start, self.num_normals), bounded_log_std(log_std)


class _EnvLeaf:
    """One action leaf: its raw-action columns and their conversion to the environment's values."""

    def __init__(self, leaf: Leaf, start: int, stop: int, squash: bool) -> None:
        self.leaf, self._start, self._stop = leaf, start, stop
        self._offset: Array | int = 0
        self.squashed = np.zeros(leaf.num_elements, bool)
        if leaf.kind in ("discrete", "multi_discrete"):
            starts = np.array(leaf.starts, np.int64).reshape(leaf.shape)
            self._offset = starts if starts.any() else 0
        elif leaf.kind == "box":
            self._low = leaf.low_array().astype(np.float64).ravel()
            self._high = leaf.high_array().astype(np.float64).ravel()
            if np.dtype(leaf.dtype).kind in "iu":  # the largest 64-bit integers cannot be float64: stay below
                self._high = np.minimum(self._high, np.nextafter(float(np.iinfo(leaf.dtype).max) + 1, 0))
            bounded = np.isfinite(self._low) & np.isfinite(self._high) & (self._high - self._low < 2.0**53)
            self.squashed = bounded & squash
            with np.errstate(invalid="ignore"):
                self._half = np.where(self.squashed, (self._high - self._low) / 2, 1)
                self._middle = np.where(self.squashed, (self._high + self._low) / 2, 0)

    def to_env(self, raw: Array) -> Array:
        """Convert raw actions [N, A] to the leaf's values [N, *shape] in its dtype."""
        columns = raw[:, self._start : self._stop]
        if self.leaf.kind == "box":
            return self._to_box(columns)
        values: Array = columns.reshape(len(raw), *self.leaf.shape)
        if isinstance(self._offset, int):
            return values.astype(self.leaf.dtype)
        return (values.astype(np.int64) + self._offset).astype(self.leaf.dtype)

    def _to_box(self, columns: Array) -> Array:
        values = columns.astype(np.float64)
        if self.squashed.all():
            values = np.tanh(values) * self._half + self._middle
        elif self.squashed.any():
            values = np.where(self.squashed, np.tanh(values) * self._half + self._middle, values)
        if np.dtype(self.leaf.dtype).kind in "iu":
            values = np.rint(values)
        values = np.clip(values, self._low, self._high).reshape(len(columns), *self.leaf.shape)
        return values.astype(self.leaf.dtype)


_KIND = {"discrete": "categorical", "multi_discrete": "categorical", "multi_binary": "binary", "box": "normal"}
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(8)
_GAUSS_NODES = _NODES.astype(np.float32)
_GAUSS_WEIGHTS = (_WEIGHTS / _WEIGHTS.sum()).astype(np.float32)


_BLUR = math.log(2) * math.sqrt(math.pi / 2)  # so that the rest is 0 at 0 and far out


def _mean_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """Return E|u| for u ~ N(mean, std), the mean of the folded normal distribution."""
    scaled = mean / (std * math.sqrt(2))
    return std * math.sqrt(2 / math.pi) * (-scaled.square()).exp() + mean * scaled.erf()


def _contiguous(columns: list[int]) -> tuple[int, int] | None:
    """Return (start, length) of consecutive columns, else None."""
    is_run = bool(columns) and columns == list(range(columns[0], columns[0] + len(columns)))
    return (columns[0], len(columns)) if is_run else None
