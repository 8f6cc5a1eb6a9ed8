"""The supervisor's rules, with numbers for time."""

import pytest

from seedbed.services.tools.cli.supervisor import Outcome, Phase, Rules, Supervisor, describe_exit

NAMES = ["learner", "inference-0", "actor-0", "actor-1"]


def make_running() -> Supervisor:
    """All four services run since time 0."""
    supervisor = Supervisor(NAMES, final="learner")
    for name in supervisor.due(0.0):
        supervisor.started(name, 0.0)
    return supervisor


def die(supervisor: Supervisor, name: str, now: float, code: int = -9) -> float:
    """Let a service die and start again at once when due; returns the back-off."""
    supervisor.exited(name, code, now)
    delay = supervisor.services[name].start_at - now
    if supervisor.outcome is None:
        assert supervisor.due(now + delay - 0.001) == []
        assert supervisor.due(now + delay) == [name]
        supervisor.started(name, now + delay)
    return delay


def test_all_services_start_at_once_in_their_order():
    """Nobody waits for another's readiness."""
    assert Supervisor(NAMES, final="learner").due(0.0) == NAMES


def test_backoff_doubles_up_to_its_limit():
    """0.2 s, 0.4 s, … and never more than 5 s, when progress keeps the run from being given up."""
    supervisor, now, delays = make_running(), 1.0, []
    for _ in range(8):
        delays.append(die(supervisor, "actor-0", now))
        now += delays[-1] + 1.0
        supervisor.progressed()
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert supervisor.services["actor-0"].restarts == 8


def test_a_healthy_life_starts_the_backoff_anew():
    """A service that lived ten seconds is restarted after the first delay again."""
    supervisor = make_running()
    die(supervisor, "learner", 1.0)
    die(supervisor, "learner", 2.0)
    assert die(supervisor, "learner", 20.0) == pytest.approx(0.2)


def test_five_deaths_without_progress_fail_the_run():
    """The fifth death of one service with no step between them is the last."""
    supervisor, now = make_running(), 1.0
    for _ in range(4):
        now += die(supervisor, "inference-0", now) + 0.5
        assert supervisor.outcome is None
    die(supervisor, "inference-0", now)
    assert supervisor.outcome is not None
    assert supervisor.outcome.exit_code == 1
    assert supervisor.outcome.service == "inference-0"
    assert "died 5 times" in supervisor.outcome.reason
    assert "SIGKILL" in supervisor.outcome.reason
    assert supervisor.due(1e9) == []


def test_progress_between_deaths_means_never_giving_up():
    """Ten deaths of each service in one run are survived when training goes on between them."""
    supervisor, now = make_running(), 0.0
    for _ in range(10):
        for name in NAMES:
            now += 10.0 + die(supervisor, name, now)
            supervisor.progressed()
    assert supervisor.outcome is None


def test_deaths_of_different_services_are_not_added_up():
    """Four deaths each do not make a fifth."""
    supervisor = make_running()
    for name in NAMES:
        now = 0.0
        for _ in range(4):
            now += die(supervisor, name, now) + 0.1
    assert supervisor.outcome is None


def test_a_refused_configuration_fails_at_once():
    """Exit 78 is not restarted."""
    supervisor = make_running()
    supervisor.exited("actor-1", 78, 1.0)
    assert supervisor.outcome == Outcome(
        exit_code=78, service="actor-1", reason="cannot go on, and a restart would not help"
    )
    assert supervisor.due(100.0) == []


def test_a_disk_that_refuses_fails_the_run_at_once():
    """Exit 74 is not restarted: the checkpoint there is better than a loop of new attempts."""
    supervisor = make_running()
    supervisor.exited("learner", 74, 1.0)
    assert supervisor.outcome == Outcome(exit_code=74, service="learner", reason="could not write its files")


def test_the_learners_clean_end_ends_the_run():
    """Exit 0 of the learner is success."""
    supervisor = make_running()
    supervisor.exited("learner", 0, 5.0)
    assert supervisor.outcome == Outcome(exit_code=0)


def test_an_early_clean_end_of_another_service_is_undone_after_a_grace():
    """An actor that was asked to leave in mid-run is started again, unless the run ends meanwhile."""
    supervisor = make_running()
    supervisor.exited("actor-0", 0, 5.0)
    assert supervisor.outcome is None
    assert supervisor.due(14.9) == []
    assert supervisor.due(15.0) == ["actor-0"]


@pytest.mark.parametrize("before", [True, False])
def test_whoever_leaves_a_finishing_run_is_not_called_back(before):
    """The order of the learner's word and the service's end does not matter."""
    supervisor = make_running()
    if before:
        supervisor.finishing(True, 4.0)
    supervisor.exited("inference-0", 0, 5.0)
    if not before:
        supervisor.finishing(True, 4.0)
    assert supervisor.due(1e6) == []
    assert supervisor.services["inference-0"].phase is Phase.LEFT
    assert supervisor.services["inference-0"].restarts == 0


def test_if_the_run_goes_on_after_all_whoever_left_is_called_back():
    """A goal was tried and not reached: then an end with status 0 is too early again, also the learner's."""
    supervisor = make_running()
    supervisor.finishing(True, 4.0)
    supervisor.exited("inference-0", 0, 5.0)
    supervisor.finishing(False, 6.0)
    assert supervisor.due(15.9) == []
    assert supervisor.due(16.0) == ["inference-0"]
    supervisor.exited("actor-0", 0, 7.0)
    assert "actor-0" in supervisor.due(17.0)
    supervisor.exited("learner", 0, 8.0, is_meant=False)
    assert supervisor.outcome is None


def test_a_death_in_a_finishing_run_is_still_restarted():
    """The final evaluation needs inference, so a kill then is a kill like any other."""
    supervisor = make_running()
    supervisor.finishing(True, 4.0)
    supervisor.exited("inference-0", -9, 5.0)
    assert supervisor.due(5.2) == ["inference-0"]


def test_deaths_after_the_outcome_change_nothing():
    """While the launcher stops everyone, nobody is restarted and the outcome stays."""
    supervisor = make_running()
    supervisor.exited("learner", 0, 5.0)
    supervisor.exited("actor-0", -15, 5.1)
    supervisor.exited("actor-1", 78, 5.1)
    assert supervisor.outcome == Outcome(exit_code=0)
    assert supervisor.due(100.0) == []


def test_the_rules_numbers_can_be_changed():
    """A launcher for tests uses shorter ones."""
    supervisor = Supervisor(["learner"], final="learner", rules=Rules(first_delay_s=0.01, max_deaths=1))
    supervisor.started("learner", 0.0)
    supervisor.exited("learner", 1, 0.1)
    assert supervisor.outcome is not None


@pytest.mark.parametrize(("code", "words"), [(3, "exit 3"), (-11, "killed by SIGSEGV"), (-200, "killed by signal 200")])
def test_exits_are_described(code, words):
    """Signals by name."""
    assert describe_exit(code) == words
