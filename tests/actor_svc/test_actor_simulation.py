"""Both ends of the step link over a hostile network: nothing twice, nothing out of order, and it always goes on.

The simulation asserts at every event that each observation is applied at most once per session and in order, that
actions answer the observation that they are performed for, and that resends never advance policy state.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seedbed.shared.protocol.sessions import StepVerdict
from tests.support.step_simulation import StepFaults, StepSimulation

HOSTILE = StepFaults(
    loss=0.1, double=0.1, max_delay_s=0.3, cuts_per_s=0.05, restarts_per_s=0.03, stalls_per_s=0.02, holds=0.05
)


def check_that_it_goes_on(simulation: StepSimulation) -> None:
    """With the faults over, every group steps again at full speed, in one session each."""
    simulation.calm()
    simulation.run(40.0)  # the longest stall, then a lease
    sessions = [group.num_sessions for group in simulation.groups]
    before = dict(simulation.steps)
    simulation.run(10.0)
    assert all(simulation.steps[group] > before[group] + 50 for group in before), "a group stands still"
    assert [group.num_sessions for group in simulation.groups] == sessions or simulation.fleet.num_moves > 0
    live = [session.hello.group for server in simulation.servers.values() for session in server.table.sessions.values()]
    assert sorted(live) == sorted(before), "a session was left behind that nobody uses"
    assert simulation.resets == len(before), "environments are reset once, at the start"


def test_a_quiet_network_sees_no_resend() -> None:
    """Requests held for seconds are waited for; every STEP goes up once."""
    simulation = StepSimulation(1, StepFaults(holds=0.2, max_delay_s=0.001))
    simulation.run(60.0)
    assert all(steps > 50 for steps in simulation.steps.values())
    assert simulation.resent == 0
    assert set(simulation.verdicts) == {StepVerdict.ACCEPT}


@pytest.mark.parametrize("seed", range(12))
def test_hostile_network(seed: int) -> None:
    """Loss, doubling, reordering, cuts, restarts and stalls together."""
    simulation = StepSimulation(seed, HOSTILE)
    simulation.run(60.0)
    assert simulation.resent > 0
    assert simulation.restarts + simulation.cuts > 0
    network = simulation.network
    assert min(network.lost, network.doubled, network.overtaken) > 0
    assert all(steps > 0 for steps in simulation.steps.values())
    check_that_it_goes_on(simulation)


def test_progress_under_loss_alone() -> None:
    """A lost message costs about a beat, not a session."""
    simulation = StepSimulation(3, StepFaults(loss=0.1), num_servers=1)
    simulation.run(60.0)
    assert all(steps > 60 for steps in simulation.steps.values())
    assert all(group.num_sessions <= 2 for group in simulation.groups)


def test_one_server_that_restarts_again_and_again() -> None:
    """Its groups come back to it each time, and their environments are never reset."""
    simulation = StepSimulation(4, StepFaults(restarts_per_s=0.1), num_servers=1)
    simulation.run(120.0)
    assert simulation.restarts > 3
    assert all(group.num_sessions > 3 for group in simulation.groups)
    check_that_it_goes_on(simulation)


@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.4),
    double=st.floats(0, 0.5),
    max_delay_s=st.floats(0.01, 3.0),
    cuts_per_s=st.floats(0, 0.3),
    restarts_per_s=st.floats(0, 0.2),
    stalls_per_s=st.floats(0, 0.1),
    holds=st.floats(0, 0.5),
    num_servers=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_any_network(seed: int, num_servers: int, **faults: float) -> None:
    """Whatever the rates: the invariants hold, and when the faults end it goes on."""
    simulation = StepSimulation(seed, StepFaults(**faults), num_servers=num_servers)
    simulation.run(30.0)
    check_that_it_goes_on(simulation)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_hostile_networks() -> None:
    """The same for 300 more seeds."""
    for seed in range(1000, 1300):
        simulation = StepSimulation(seed, HOSTILE)
        simulation.run(60.0)
        check_that_it_goes_on(simulation)
