"""The memory of a policy between rows: an LSTM and a frame stack, both reset at `first` rows.

Inference calls them with one row, the learner with a whole unroll; both get the same values.

Shape suffixes: T rows, B lanes, N = T·B, H units, K frames of a stack, F frames, * the shape of one frame.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seedbed.shared.policy.networks import tanh_

FORGET_BIAS = 1.0  # so that an untrained LSTM remembers


class Lstm(nn.Module):
    """An LSTM over rows whose state is zeroed before each `first` row. float32 throughout.

    Gates lie in the order input, forget, output, candidate, so that one sigmoid serves the first three.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_input = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hidden = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        with torch.no_grad():
            for weight in (self.weight_input, self.weight_hidden):
                for gate in weight.chunk(4):
                    nn.init.orthogonal_(gate)
            self.bias[hidden_size : 2 * hidden_size] = FORGET_BIAS

    def forward(
        self, input_TBF: Tensor, keep_TB1: Tensor, hidden_BH: Tensor, cell_BH: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs [T, B, H] and the state (hidden, cell) after row T; `keep` is 0 at `first` rows, else 1."""
        size = self.hidden_size
        inputs = F.linear(input_TBF, self.weight_input, self.bias)  # all rows at once; the recurrent part needs a loop
        weight = self.weight_hidden.t()
        squash = torch.tanh if torch.is_grad_enabled() else lambda x: tanh_(x.clone())  # with a gradient no faster
        outputs = []
        for gates, keep in zip(inputs.unbind(0), keep_TB1.unbind(0), strict=True):
            summed = torch.addmm(gates, hidden_BH * keep, weight)
            enter, forget, leave = summed[:, : 3 * size].sigmoid().chunk(3, -1)
            candidate = squash(summed[:, 3 * size :])
            cell_BH = torch.addcmul(enter * candidate, forget, cell_BH * keep)
            hidden_BH = leave * squash(cell_BH)
            outputs.append(hidden_BH)
        return torch.stack(outputs), hidden_BH, cell_BH


@dataclass(frozen=True, slots=True)
class FrameStacks:
    """Stacks of N rows over F frames, so that each frame is processed once and not once for each stack."""

    frames: Tensor  # [F, *]
    depth: int  # K
    index: Tensor | None = None  # i64 [N·K], frames of each stack, oldest first; None: all in order

    def of(self, prepared_F: Tensor) -> Tensor:
        """Arrange values of the frames, [F, ...], in stacks [N, K, ...]."""
        chosen = prepared_F if self.index is None else prepared_F.index_select(0, self.index)
        return chosen.view(-1, self.depth, *chosen.shape[1:])


class FrameHistory:
    """The frames of an unroll and those before it, and which of them a row's stack has."""

    def __init__(self, frame_TB: Tensor, first_TB: Tensor, earlier_BK: Tensor) -> None:
        """Make it from the arguments of `stack_frames`. Copies the frames."""
        rows, lanes = first_TB.shape
        depth, device = earlier_BK.shape[1], frame_TB.device
        self.depth = depth + 1  # K
        self.frames = torch.cat([earlier_BK.transpose(0, 1), frame_TB]).flatten(0, 1)
        lane_B1 = torch.arange(lanes, device=device).view(lanes, 1)
        row_T1 = torch.arange(rows, device=device).unsqueeze(1)
        # The row in which the episode of each row began; far before row 0 if that was before this unroll.
        start_TB = torch.where(first_TB, row_T1, -depth - 1).cummax(0).values
        offset_K = torch.arange(-depth, 1, device=device)
        row_TBK = torch.maximum(row_T1.unsqueeze(2) + offset_K, start_TB.unsqueeze(2)) + depth
        self.index_TBK = row_TBK * lanes + lane_B1
        earlier_index_BK = torch.arange(depth, device=device) * lanes + lane_B1
        self._before_NK = torch.cat([earlier_index_BK, self.index_TBK[:, :, 1:].flatten(0, 1)])  # of rows 0…T

    def stacks(self) -> FrameStacks:
        """Return the stacks of all rows, N = T·B."""
        return FrameStacks(self.frames, self.depth, self.index_TBK.flatten())

    def before(self, number_N: Tensor) -> Tensor:
        """Return the K-1 frames before some rows, t·B + b each; row T is the one that follows. [N, K-1, *]."""
        chosen_NK = self._before_NK.index_select(0, number_N)
        return self.frames.index_select(0, chosen_NK.flatten()).view(*chosen_NK.shape, *self.frames.shape[1:])


def stack_frames(frame_TB: Tensor, first_TB: Tensor, earlier_BK: Tensor) -> tuple[FrameStacks, Tensor]:
    """Stack each row's last K frames, oldest first; the stack of a `first` row is its own frame, repeated.

    Args:
      frame_TB: [T, B, *].
      first_TB: bool [T, B].
      earlier_BK: the K-1 frames before row 0, [B, K-1, *].
    Returns: stacks of N = T·B rows, and the K-1 frames before the row that follows the last, [B, K-1, *].
    """
    rows, lanes = first_TB.shape
    depth = earlier_BK.shape[1]
    trailing = (1,) * (frame_TB.dim() - 2)
    if rows == 1:
        newest = frame_TB[0].unsqueeze(1)
        stack = torch.cat([earlier_BK, newest], 1)
        is_traced = torch.compiler.is_compiling()  # in an export no branch may depend on values
        if frame_TB.device.type == "cpu" and not is_traced:  # torch.where on bytes takes ten times as long as the copy
            if first_TB.any():
                stack[first_TB[0]] = newest[first_TB[0]]
        else:  # reading `first` would wait for the device
            stack = torch.where(first_TB[0].view(lanes, 1, *trailing), newest, stack)
        return FrameStacks(stack.flatten(0, 1), depth + 1), stack[:, 1:]
    history = FrameHistory(frame_TB, first_TB, earlier_BK)
    return history.stacks(), history.before(torch.arange(rows * lanes, (rows + 1) * lanes, device=frame_TB.device))
