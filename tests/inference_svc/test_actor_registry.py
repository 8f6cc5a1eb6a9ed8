"""Who steps environments: counted by name and life."""

from seedbed.inference_svc.actor_registry import MAX_ACTORS, MAX_LIVES, MISSED_S, ActorRegistry


def test_restarts_are_lives_beyond_the_first_of_a_name():
    """The same life may introduce itself as often as it likes."""
    actors = ActorRegistry()
    for name, incarnation in (("a", 1), ("a", 1), ("a", 2), ("b", 3)):
        actors.register(name, incarnation, is_start=True)
    assert actors.num_restarts == 1


def test_a_life_whose_groups_are_at_two_replicas_counts_once():
    """Where its first group begins; its other groups, and groups that move in later, count nowhere."""
    here, there = ActorRegistry(), ActorRegistry()
    here.register("a", 1, is_start=True)
    there.register("a", 1, is_start=False)
    here.register("a", 2, is_start=False)
    there.register("a", 2, is_start=True)
    assert (here.num_restarts, there.num_restarts) == (0, 1)
    here.register("a", 2, is_start=False)  # group 0 has moved, and names its run
    assert (here.num_restarts, there.num_restarts) == (0, 1)


def test_made_up_names_and_lives_do_not_fill_the_memory():
    """A peer that says HELLO for ever costs no more than the limits."""
    actors = ActorRegistry()
    for number in range(MAX_ACTORS + 50):
        actors.register(f"actor-{number}", number, is_start=True)
        actors.register("actor-0", number, is_start=True)
    assert actors.num_restarts == MAX_LIVES - 1
    for number in range(MAX_ACTORS + 50):
        actors.mark_lost(f"actor-{number}", 0.0)
    assert len(actors.lanes([])) == MAX_ACTORS


def test_a_lost_actor_is_missed_until_it_comes_back_or_long_enough():
    """With no lanes; one that leaves with a BYE is not missed."""
    actors = ActorRegistry()
    for name in ("cut", "left"):
        actors.register(name, 1, is_start=True)
    actors.mark_lost("cut", 0.0)
    assert actors.lanes([]) == {"cut": 0.0}
    actors.register("cut", 2, is_start=True)
    assert actors.lanes([]) == {}
    actors.mark_lost("cut", 1.0)
    actors.forget_lost(MISSED_S)
    assert actors.lanes([]) == {"cut": 0.0}
    actors.forget_lost(MISSED_S + 1.0)
    assert actors.lanes([]) == {}
