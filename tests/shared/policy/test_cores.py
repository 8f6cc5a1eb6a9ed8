"""LSTM and frame stack against row-by-row references."""

import torch

from seedbed.shared.policy.cores import FORGET_BIAS, FrameHistory, Lstm, stack_frames


def reference_stack(frames: torch.Tensor, first: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
    """Each row's last K frames, by keeping a list per lane."""
    rows, lanes = first.shape
    result = []
    history = [list(earlier[lane]) for lane in range(lanes)]
    for row in range(rows):
        line = []
        for lane in range(lanes):
            frame = frames[row, lane]
            if first[row, lane]:
                history[lane] = [frame] * earlier.shape[1]
            line.append(torch.stack([*history[lane], frame]))
            history[lane] = [*history[lane], frame][1:]
        result.append(torch.stack(line))
    return torch.stack(result)


def test_stacks_repeat_the_first_frame_and_never_cross_an_episode() -> None:
    """A whole unroll gives what a list of frames per lane gives, and the right frames for the next unroll."""
    generator = torch.Generator().manual_seed(0)
    for depth in (1, 3):
        frames = torch.randint(0, 255, (9, 6, 2, 3), dtype=torch.uint8, generator=generator)
        first = torch.rand(9, 6, generator=generator) < 0.3
        earlier = torch.randint(0, 255, (6, depth, 2, 3), dtype=torch.uint8, generator=generator)
        expected = reference_stack(frames, first, earlier)
        stacks, following = stack_frames(frames, first, earlier)
        assert torch.equal(stacks.of(stacks.frames), expected.flatten(0, 1))
        assert torch.equal(following, expected[-1, :, 1:])


def test_one_row_at_a_time_equals_the_whole() -> None:
    """Acting's short way through `stack_frames` is the learner's long way."""
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(6, 4, 5, generator=generator)
    first = torch.rand(6, 4, generator=generator) < 0.4
    earlier = torch.randn(4, 3, 5, generator=generator)
    stacks, last = stack_frames(frames, first, earlier)
    whole = stacks.of(stacks.frames).view(6, 4, 4, 5)
    for row in range(6):
        stacks, earlier = stack_frames(frames[row : row + 1], first[row : row + 1], earlier)
        assert torch.equal(stacks.of(stacks.frames), whole[row])
    assert torch.equal(earlier, last)


def test_the_frames_before_a_row_are_those_that_its_stack_begins_with() -> None:
    """Unless it begins an episode, whose stack has no earlier frame."""
    generator = torch.Generator().manual_seed(2)
    frames = torch.randn(6, 4, 5, generator=generator)
    first = torch.rand(6, 4, generator=generator) < 0.3
    earlier = torch.randn(4, 3, 5, generator=generator)
    history = FrameHistory(frames, first, earlier)
    number = torch.randperm(24, generator=generator)
    number = number[~first.flatten()[number]]
    stacks = history.stacks().of(history.frames)
    assert torch.equal(history.before(number), stacks[number, :-1])


def test_the_lstm_is_torchs() -> None:
    """With gates reordered, outputs and gradients equal torch.nn.LSTMCell's, state zeroed at `first`."""
    torch.manual_seed(0)
    core, cell = Lstm(5, 4), torch.nn.LSTMCell(5, 4)
    with torch.no_grad():
        for mine, theirs in ((core.weight_input, cell.weight_ih), (core.weight_hidden, cell.weight_hh)):
            enter, forget, leave, candidate = mine.chunk(4)
            theirs.copy_(torch.cat([enter, forget, candidate, leave]))
        cell.bias_hh.zero_()
        enter, forget, leave, candidate = core.bias.chunk(4)
        cell.bias_ih.copy_(torch.cat([enter, forget, candidate, leave]))
    inputs, first = torch.randn(7, 3, 5), torch.rand(7, 3) < 0.3
    hidden, state = torch.randn(3, 4), torch.randn(3, 4)
    keep = (~first).float().unsqueeze(-1)
    outputs, last_hidden, last_state = core(inputs, keep, hidden, state)
    for row in range(7):
        hidden, state = cell(inputs[row], (hidden * keep[row], state * keep[row]))
        torch.testing.assert_close(outputs[row], hidden)
    torch.testing.assert_close((last_hidden, last_state), (hidden, state))


def test_the_lstm_starts_out_remembering() -> None:
    """Forget gates begin open, every gate's matrix orthogonal."""
    core = Lstm(8, 8)
    assert core.bias[8:16].tolist() == [FORGET_BIAS] * 8
    assert core.bias[:8].tolist() == [0.0] * 8
    gate = core.weight_hidden[:8]
    torch.testing.assert_close(gate @ gate.t(), torch.eye(8), atol=1e-5, rtol=0)
