"""Batches: what flags mean for transitions, and arrays that are taken without a copy."""

import numpy as np
import pytest
import torch

from seedbed.learner_svc.sources.batch import Batch, discounts, first_rows, present_rows, valid_transitions
from seedbed.learner_svc.sources.source import allocate
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import Flags
from tests.support.experience import make_batch, make_policy, make_spec

TERMINATED, TRUNCATED, FIRST = Flags.TERMINATED, Flags.TRUNCATED, Flags.FIRST
LIFE_LOST, ABSENT = Flags.LIFE_LOST, Flags.ABSENT


def rows(*flags):
    """One lane's flags, u8 [T+1, 1]."""
    return np.array(flags, np.uint8)[:, None]


@pytest.mark.parametrize(
    ("flags", "valid"),
    [
        (rows(0, 0, 0), [1, 1]),
        (rows(FIRST, 0, 0), [1, 1]),
        (rows(0, TERMINATED, FIRST), [1, 0]),
        (rows(TRUNCATED, FIRST, 0), [0, 1]),
        (rows(0, FIRST, FIRST), [0, 0]),
        (rows(0, LIFE_LOST, 0), [1, 1]),
        (rows(0, ABSENT, 0), [0, 0]),
    ],
)
def test_a_transition_is_a_step_unless_it_leads_into_a_reset_row(flags, valid):
    """The action at a reset row is real; the one before it is not, and none beside an absent agent."""
    assert valid_transitions(flags)[:, 0].tolist() == [bool(v) for v in valid]


def test_termination_and_lost_lives_cut_the_discount_and_truncation_does_not():
    """discount_t looks at the row that the transition leads to."""
    flags = torch.from_numpy(rows(TERMINATED, TRUNCATED, LIFE_LOST, TERMINATED | TRUNCATED, 0))
    assert discounts(flags, 0.9)[:, 0].tolist() == pytest.approx([0.9, 0, 0, 0.9])
    assert discounts(flags, 0.9).dtype == torch.float32


def test_first_rows_are_those_with_the_flag():
    """Row 0 is not special."""
    assert first_rows(torch.from_numpy(rows(0, FIRST, FIRST | ABSENT)))[:, 0].tolist() == [False, True, True]


def test_rows_without_an_agent_are_told_apart_only_where_there_are_any():
    """The usual batch costs no mask."""
    assert present_rows(rows(0, FIRST, 0)) is None
    found = present_rows(rows(ABSENT, 0, ABSENT))
    assert found is not None
    assert found[:, 0].tolist() == [True, False]


def test_a_batch_lies_on_the_memory_of_the_arrays_in_wire_order():
    """The order is that of an unroll; nothing is copied."""
    spec = make_spec(masked=True)
    policy, _ = make_policy(spec, lstm=4)
    record = RecordSpec(spec, 5, state=policy.state_fields)
    arrays, names = allocate(record, 3), [item.name for item in record.fields]
    batch = Batch.from_arrays(record, arrays)
    arrays[names.index("reward")][5, 2] = 4.0
    arrays[names.index("mask")][0, 0, 1] = 1
    assert batch.reward[5, 2] == 4.0
    assert batch.mask is not None
    assert batch.mask[0, 0, 1] == 1
    assert (batch.num_transitions, batch.num_lanes) == (5, 3)
    assert [tuple(x.shape[1:]) for x in batch.state] == [item.shape for item in policy.state_fields]


def test_a_batch_whose_shapes_disagree_is_refused_by_name():
    """A field of other lanes or times is a fault of ours, found before training on it."""
    batch = make_batch(make_policy()[0])
    with pytest.raises(ValueError, match="action is"):
        Batch(batch.record, batch.tensors | {"action": batch.action[:-1]})
    with pytest.raises(ValueError, match="log_prob is"):
        Batch(batch.record, batch.tensors | {"log_prob": batch.log_prob[:, 1:]})
    with pytest.raises(ValueError, match="flags is None"):
        Batch(batch.record, {name: tensor for name, tensor in batch.tensors.items() if name != "flags"})


def test_a_batch_on_its_device_is_itself():
    """No copy on the CPU."""
    batch = make_batch(make_policy()[0])
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.parametrize("memory", [{}, {"stack": 3}])
def test_transitions_as_lanes_keep_what_came_before_and_after_them(memory):
    """Two rows each, in any order, and the frames that a policy has seen before them."""
    policy = make_policy(**memory)[0]
    batch = make_batch(policy, rows=9, lanes=3)
    chosen = [(2, 1), (0, 0), (7, 2), (4, 1)]
    states = policy.row_states(batch.observation, first_rows(batch.flags), batch.state)
    apart = batch.transitions(torch.tensor([3 * t + lane for t, lane in chosen]), states)
    assert (apart.num_transitions, apart.num_lanes) == (1, 4)

    def outputs(batch):
        return policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state).params

    whole, found = outputs(batch), outputs(apart)
    for index, (t, lane) in enumerate(chosen):
        assert torch.equal(apart.reward[:, index], batch.reward[t : t + 2, lane])
        assert torch.equal(apart.observation[0][:, index], batch.observation[0][t : t + 2, lane])
        assert torch.equal(apart.action[0, index], batch.action[t, lane])
        torch.testing.assert_close(found[:, index], whole[t : t + 2, lane])


def test_the_states_between_rows_of_a_recurrent_policy_are_not_known():
    """Only a forward pass over the rows before has them."""
    policy = make_policy(lstm=8)[0]
    batch = make_batch(policy)
    with pytest.raises(ValueError, match="recurrent"):
        policy.row_states(batch.observation, first_rows(batch.flags), batch.state)
