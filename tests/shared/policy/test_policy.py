"""The policy's shapes, state and heads."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.acting import MODE
from seedbed.shared.policy.config import PolicyConfig, Precision
from seedbed.shared.policy.cores import FrameStacks
from seedbed.shared.policy.observations import ObservationEncoder, to_patches
from seedbed.shared.policy.policy import Policy, PolicyOutput
from seedbed.shared.protocol.recording import Per, RecordField
from seedbed.shared.protocol.spaces import encode_text, space_from_gymnasium
from tests.support.policy_cases import CASES, VECTOR, RandomActor, make_policy
from tests.support.specs import make_spec


def test_state_fields_are_stacks_lstm_and_previous_action() -> None:
    """What travels with an unroll, in order; nothing for a policy without memory."""
    assert make_policy("mlp").state_fields == ()
    policy = make_policy("composite")
    assert policy.state_fields == (
        RecordField("state/stack/camera", "uint8", (2, 3, 20, 22), Per.LANE),
        RecordField("state/lstm_h", "float32", (7,), Per.LANE),
        RecordField("state/lstm_c", "float32", (7,), Per.LANE),
        RecordField("state/previous_action", "float32", (policy.distribution.encoded_size,), Per.LANE),
    )
    for item, part in zip(policy.state_fields, policy.initial_state(3), strict=True):
        assert part.shape == (3, *item.shape)
        assert not part.any()


def test_an_untrained_policy_is_nearly_uniform() -> None:
    """Head gain .01: close to 1/n for every action; values are not all alike; biases zero."""
    spec, config = CASES["mlp"]()
    torch.manual_seed(1)
    policy = Policy(spec, config)
    output = policy([torch.randn(1, 64, 4)], torch.zeros(1, 64), torch.zeros(1, 64, dtype=torch.bool), None, ())
    assert (output.params.softmax(-1) - 0.5).abs().max() < 0.02
    assert output.value.std() > 0.03
    assert not policy.head.bias.any()
    assert policy.head.weight[-1].norm().item() == pytest.approx(1, abs=1e-5)


def test_the_memory_sees_previous_rewards_clipped() -> None:
    """To plus and minus one, whatever the environment's scale; none across the start of an episode."""
    policy = Policy(make_spec(VECTOR, spaces.Discrete(2)), PolicyConfig(hidden=(8,), lstm=4))
    observation = torch.randn(1, 1, *VECTOR.shape)

    def value(reward: float, first: bool = False) -> float:
        output = policy([observation], torch.tensor([[reward]]), torch.tensor([[first]]), None, policy.initial_state(1))
        return output.value.item()

    assert value(1.0) == value(7.0) != value(0.5)
    assert value(-1.0) == value(-30.0) != value(1.0)
    assert value(1.0, first=True) == value(0.0, first=True)


def test_outputs_are_float32_and_of_the_stated_shapes() -> None:
    """params [T, B, P], value [T, B], for every case."""
    for name in CASES:
        policy = make_policy(name)
        unroll = RandomActor(policy, 3).unroll(4)
        output = policy(unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
        assert output.params.shape == (5, 3, policy.distribution.param_size)
        assert output.value.shape == (5, 3)
        assert output.params.dtype == output.value.dtype == torch.float32
        assert [part.shape[1:] for part in output.state] == [item.shape for item in policy.state_fields]


@pytest.mark.parametrize("name", ["atari", "colour stack with lstm", "composite"])
def test_bf16_changes_the_torso_alone_and_little(name: str) -> None:
    """Heads, values and state stay float32; parameters move by about a percent."""
    policy = make_policy(name)
    unroll = RandomActor(policy, 3).unroll(4)
    inputs = (unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
    plain = policy(*inputs)
    policy.use(Precision(dtype="bfloat16", channels_last=True))
    rounded = policy(*inputs)
    assert rounded.params.dtype == rounded.value.dtype == torch.float32
    assert all(part.dtype == before.dtype for part, before in zip(rounded.state, plain.state, strict=True))
    scale = plain.params.abs().mean()
    assert 0 < (rounded.params - plain.params).abs().mean() < 0.05 * scale
    rounded.params.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in policy.torso.parameters())


def test_greedy_acting_takes_the_mode() -> None:
    """The most likely action, and nothing is recorded of it."""
    policy = make_policy("masked")
    obs, mask = torch.randn(6, 4), torch.ones(6, 5, dtype=torch.uint8)
    first, reward = torch.zeros(6, dtype=torch.bool), torch.zeros(6)
    acted = policy.act([obs], reward, first, (), MODE, mask=mask)
    params = policy([obs[None]], reward[None], first[None], None, ()).params[0]
    assert torch.equal(acted.action, policy.distribution.mode(params, mask))
    assert not acted.recorded


@pytest.mark.parametrize("name", ["mlp", "separate value"])
def test_the_value_head_can_be_rescaled(name: str) -> None:
    """PopArt's scale · value + shift leaves the action parameters alone."""
    policy = make_policy(name)
    inputs = ([torch.randn(1, 8, 4)], torch.zeros(1, 8), torch.zeros(1, 8, dtype=torch.bool), None, ())
    before = policy(*inputs)
    policy.rescale_value_(2.5, -1.0)
    after = policy(*inputs)
    torch.testing.assert_close(after.value, 2.5 * before.value - 1.0)
    torch.testing.assert_close(after.params, before.params)


def test_a_separate_value_network_shares_nothing_with_the_policy() -> None:
    """The value's gradient does not reach what decides the actions, nor the other way round."""
    policy = make_policy("separate value")
    output = policy([torch.randn(1, 8, 4)], torch.zeros(1, 8), torch.zeros(1, 8, dtype=torch.bool), None, ())
    output.value.sum().backward()
    assert all(p.grad is None for p in [*policy.torso.parameters(), *policy.head.parameters()])
    assert all(p.grad is not None for p in [*policy.value_torso.parameters(), *policy.value_head.parameters()])


def test_a_separate_value_network_has_no_memory() -> None:
    """So it is refused beside an LSTM, before anything is built."""
    with pytest.raises(ValidationError, match="value_network"):
        PolicyConfig(lstm=8, value_network="separate")


def test_observation_statistics_are_applied_and_clipped() -> None:
    """(x - mean) / std, at most ten standard deviations; of integers only where no bounds scale them."""
    policy = Policy(make_spec(VECTOR, spaces.Discrete(2)), PolicyConfig(normalise_observation=True))
    (normaliser,) = policy.normalisers()
    normaliser.mean.copy_(torch.tensor([1.0, 0, 0, 0]))
    normaliser.rstd.copy_(torch.tensor([2.0, 1, 1, 1]))
    _, vector = policy.encoder([torch.tensor([[2.0, 0, 99, -99]])], torch.float32, torch.contiguous_format)
    assert vector is not None
    assert vector.tolist() == [[2, 0, 10, -10]]
    assert Policy(make_spec(spaces.Box(0, 9, (3,), np.int64), spaces.Discrete(2)), policy.config).normalisers() == ()
    unbounded = make_spec(spaces.Box(-(2**63), 2**63 - 2, (3,), np.int64), spaces.Discrete(2))
    (of_integers,) = Policy(unbounded, policy.config).normalisers()
    assert of_integers.mean.shape == (3,)


@pytest.mark.parametrize("layout", ["HW", "HWC", "CHW"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_lose_their_mean_and_get_unit_deviation(layout: str, memory_format: torch.memory_format) -> None:
    """The mean of each pixel and channel, the same for every frame of a stack, and one deviation for all."""
    shape = {"HW": (20, 24), "HWC": (20, 24, 3), "CHW": (3, 20, 24)}[layout]
    space = space_from_gymnasium(spaces.Box(0, 255, shape, np.uint8), image=layout)
    encoder = ObservationEncoder(space, stack=2, normalise=True)
    frames = torch.randint(0, 256, (10, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    (plain,), _ = encoder([FrameStacks(frames, 2)], torch.float32, memory_format)
    assert plain.is_contiguous(memory_format=memory_format)
    assert (float(plain.min()), float(plain.max())) == (0.0, 1.0)  # before there are statistics
    (normaliser,) = encoder.normalisers()
    mean = torch.linspace(0, 255, normaliser.mean.numel())
    normaliser.mean.copy_(mean)
    normaliser.rstd.fill_(0.1)
    (centred,), _ = encoder([FrameStacks(frames, 2)], torch.float32, memory_format)
    wanted = FrameStacks((frames.float() - mean.view(shape)) * 0.1, 2)
    (ordered,), _ = ObservationEncoder(space, stack=2, normalise=False)([wanted], torch.float32, memory_format)
    torch.testing.assert_close(centred, ordered * 255)
    encoder.patch = 4
    (patches,), _ = encoder([FrameStacks(frames, 2)], torch.float32, memory_format)
    torch.testing.assert_close(patches, to_patches(centred, 4))


def encode(space: spaces.Space, *values: np.ndarray, image: str = "") -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Images and vector of some leaves."""
    encoder = ObservationEncoder(space_from_gymnasium(space, image=image), stack=1, normalise=False)
    leaves = [torch.from_numpy(value) for value in values]
    return encoder(leaves, torch.float32, torch.contiguous_format)


def test_discrete_observations_become_one_hot_from_their_start() -> None:
    """Discrete(3, start=2) and MultiDiscrete."""
    _, vector = encode(spaces.Discrete(3, start=2), np.array([2, 4]))
    assert vector is not None
    assert vector.tolist() == [[1, 0, 0], [0, 0, 1]]
    _, vector = encode(spaces.MultiDiscrete([2, 3]), np.array([[1, 2]]))
    assert vector is not None
    assert vector.tolist() == [[0, 1, 0, 0, 1]]


def test_images_are_scaled_and_channels_come_first() -> None:
    """uint8 images to 0…1 in [N, C, H, W] from every layout."""
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    for image, value in (("CHW", pixels), ("HWC", pixels.transpose(1, 2, 0).copy())):
        images, vector = encode(spaces.Box(0, 255, value.shape, np.uint8), value[None], image=image)
        assert vector is None
        torch.testing.assert_close(images[0][0], torch.from_numpy(pixels) / 255)
    images, _ = encode(spaces.Box(0, 255, (3, 4), np.uint8), pixels[:1])
    assert images[0].shape == (1, 1, 3, 4)


def test_codes_in_a_grid_become_one_hot_from_their_least() -> None:
    """Images and boards alike; a code beyond the last counts as the last. Other leaves stay what they are."""
    space = space_from_gymnasium(
        spaces.Dict(
            board=spaces.Box(-1, 5, (1, 2), np.int8),
            cells=spaces.Box(0, 255, (1, 1, 2), np.uint8),
            numbers=spaces.Box(0, 4, (1,), np.int8),
        ),
        image="HWC",
    )
    encoder = ObservationEncoder(space, stack=1, normalise=True, grid_codes=3)
    assert not encoder.image_shapes
    leaves = [torch.tensor([[[-1, 5]]], dtype=torch.int8), torch.tensor([[[[1, 0]]]], dtype=torch.uint8)]
    images, vector = encoder([*leaves, torch.tensor([[2]], dtype=torch.int8)], torch.float32, torch.contiguous_format)
    assert not images
    assert vector is not None
    assert vector.tolist() == [[1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0.5]]
    assert encoder.vector_size == vector.shape[1]


def test_frames_of_codes_are_stacked() -> None:
    """Where no image is left, every Box is."""
    space = space_from_gymnasium(spaces.Box(0, 2, (2, 2), np.uint8), image="HW")
    encoder = ObservationEncoder(space, stack=2, normalise=False, grid_codes=3)
    _, vector = encoder([FrameStacks(torch.zeros(2, 2, 2, dtype=torch.uint8), 2)], torch.float32, torch.channels_last)
    assert vector is not None
    assert vector.shape == (1, encoder.vector_size) == (1, 24)


@pytest.mark.parametrize("space", [spaces.Box(0, 1, (3,), np.float32), spaces.Box(0, 255, (210, 160, 3), np.uint8)])
def test_codes_are_refused_where_there_is_no_small_grid(space: spaces.Box) -> None:
    """Before a network with a million inputs is built."""
    with pytest.raises(ConfigError, match="grid_codes"):
        Policy(make_spec(space, spaces.Discrete(2), image="HWC"), PolicyConfig(grid_codes=8))


def test_text_becomes_the_shares_of_its_bytes() -> None:
    """Padding does not count, nor does an empty text."""
    space = spaces.Text(5, min_length=0, charset="ab")
    rows = encode_text(space_from_gymnasium(space).leaves()[0], ["aab", ""])
    _, vector = encode(space, rows)
    assert vector is not None
    assert vector[0, ord("a")].item() == pytest.approx(2 / 3)
    assert vector[0].sum().item() == pytest.approx(1)
    assert not vector[1].any()


def test_a_deviation_for_each_state_begins_as_the_shared_one_and_depends_on_the_observation() -> None:
    """The parameters come in the same order; a larger weight makes two observations differ in their deviation."""
    spec = make_spec(VECTOR, spaces.Box(-2, 2, (2,), np.float32))
    policy = Policy(spec, PolicyConfig(hidden=[8], std="state", initial_std=0.5))
    shared = Policy(spec, PolicyConfig(hidden=[8], initial_std=0.5))
    rows = (torch.randn(2, 3, 4),)
    inputs = rows, torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool), None, policy.initial_state(3)
    params = policy(*inputs).params
    assert params.shape == shared(*inputs).params.shape == (2, 3, 4)
    torch.testing.assert_close(params[..., 2:], torch.full((2, 3, 2), np.log(0.5)), atol=0.1, rtol=0)
    with torch.no_grad():
        policy.head.weight[2:4].normal_()
    assert policy(*inputs).params[..., 2].std() > 0.1


@pytest.mark.parametrize("std", ["shared", "state"])
@pytest.mark.parametrize(("beyond", "back"), [(2.5, 1.0), (-5.5, -1.0)])
def test_a_deviation_beyond_its_bounds_can_come_back_and_goes_no_further(std: str, beyond: float, back: float) -> None:
    """The loss that wants it back has a gradient, the one that drives it on has none."""
    space = make_spec(VECTOR, spaces.Box(-np.inf, np.inf, (1,), np.float32))
    policy = Policy(space, PolicyConfig.model_validate({"hidden": [8], "std": std}))
    parameter, place = (policy.head.bias, 1) if policy.log_std is None else (policy.log_std, 0)
    with torch.no_grad():
        parameter[place] = beyond
    inputs = (torch.zeros(1, 3, 4),), torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool), None
    slopes = []
    for sign in (back, -back):
        policy.zero_grad()
        entropy = policy.distribution.entropy(policy(*inputs, policy.initial_state(3)).params)
        (sign * entropy.mean()).backward()
        assert parameter.grad is not None
        slopes.append(parameter.grad[place].item())
    assert slopes == [pytest.approx(back), 0.0]


def task_policy(**config: object) -> Policy:
    """A small policy that may tell three tasks apart."""
    torch.manual_seed(3)
    settings = PolicyConfig.model_validate({"hidden": [8]} | config)
    return Policy(make_spec(VECTOR, spaces.Discrete(3)), settings, ("a", "b", "c"))


def of_tasks(policy: Policy, *tasks: str) -> PolicyOutput:
    """The policy's outputs for a lane of each task, which all see the same row."""
    states = [policy.initial_state(1, task=task) for task in tasks]
    state = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    obs = torch.linspace(-1, 1, 4).expand(1, len(tasks), 4)
    return policy([obs], torch.zeros(1, len(tasks)), torch.zeros(1, len(tasks), dtype=torch.bool), None, state)


@pytest.mark.parametrize("value_network", ["shared", "separate"])
def test_every_task_has_a_value_output_of_its_own(value_network: str) -> None:
    """The value is that of the lane's task, and so is its gradient; actions do not depend on the task."""
    policy = task_policy(value_heads="per_task", value_network=value_network)
    head = policy.head if value_network == "shared" else policy.value_head
    output = of_tasks(policy, "a", "c", "b", "a")
    assert len({x.item() for x in output.value[0]}) == 3
    torch.testing.assert_close(output.value[0, 0], output.value[0, 3])
    torch.testing.assert_close(output.params, output.params[:, :1].expand_as(output.params))
    output.value[0, 1].backward()
    assert [bool(row.any()) for row in head.weight.grad[-3:]] == [False, False, True]
    before = of_tasks(policy, "a", "b", "c").value
    policy.rescale_value_(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([-1.0, 0.0, 3.0]))
    wanted = before * torch.tensor([2.0, 1.0, 0.5]) + torch.tensor([-1.0, 0.0, 3.0])
    torch.testing.assert_close(of_tasks(policy, "a", "b", "c").value, wanted)
    torch.testing.assert_close(of_tasks(policy, "b").value[0, 0], before[0, 1])


def test_the_task_can_be_an_input() -> None:
    """Then actions and the only value depend on it too; no row changes a lane's task."""
    policy = task_policy(task_input=True)
    output = of_tasks(policy, "b", "a", "b")
    assert (output.params[0, 0] - output.params[0, 1]).abs().max() > 1e-3
    torch.testing.assert_close(output.params[0, 0], output.params[0, 2])
    assert abs(output.value[0, 0] - output.value[0, 1]) > 1e-2
    assert output.state[0].tolist() == [1, 0, 1]


def test_a_policy_that_does_not_tell_tasks_apart_has_none() -> None:
    """It is the same as in a run without tasks: layout, state and outputs."""
    policy = task_policy(lstm=4)
    assert (policy.tasks, policy.num_values, policy.head.out_features) == ((), 1, 4)
    assert [item.name for item in policy.state_fields] == ["state/lstm_h", "state/lstm_c", "state/previous_action"]


def test_a_lane_without_memory_keeps_its_task() -> None:
    """A blank state has zeros, except for the task; an unknown task is no state at all."""
    policy = task_policy(lstm=4, task_input=True)
    state = tuple(part + 1 for part in policy.initial_state(2, task="b"))
    task, *memory = policy.blank(state)
    assert task.tolist() == [2, 2]
    assert not any(part.any() for part in memory)
    with pytest.raises(ValueError, match="not in tuple"):
        policy.initial_state(2, task="d")


def test_a_task_that_is_none_gives_no_error_and_no_value() -> None:
    """A number from the network cannot end the learner."""
    policy = task_policy(value_heads="per_task", task_input=True)
    obs, first = torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.bool)
    assert policy([obs], torch.zeros(1, 1), first, None, (torch.tensor([77]),)).value.item() == 0


@pytest.mark.parametrize("config", [{"task_input": True}, {"value_heads": "per_task"}])
def test_without_tasks_there_is_nothing_to_tell_apart(config: dict) -> None:
    """The setting is named, with what to set instead."""
    with pytest.raises(ConfigError, match=rf"policy.{next(iter(config))} is for runs with several tasks"):
        Policy(make_spec(VECTOR, spaces.Discrete(3)), PolicyConfig.model_validate(config))
