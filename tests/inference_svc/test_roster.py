"""Who steps environments: counted by name and life."""

from seedbed.inference_svc.roster import MAX_ACTORS, MAX_LIVES, MISSED_S, Roster


def test_restarts_are_lives_beyond_the_first_of_a_name():
    """The same life may introduce itself as often as it likes."""
    roster = Roster()
    for name, incarnation in (("a", 1), ("a", 1), ("a", 2), ("b", 3)):
        roster.met(name, incarnation, is_start=True)
    assert roster.num_restarts == 1


def test_a_life_whose_groups_are_at_two_replicas_counts_once():
    """Where its first group begins; its other groups, and groups that move in later, count nowhere."""
    here, there = Roster(), Roster()
    here.met("a", 1, is_start=True)
    there.met("a", 1, is_start=False)
    here.met("a", 2, is_start=False)
    there.met("a", 2, is_start=True)
    assert (here.num_restarts, there.num_restarts) == (0, 1)
    here.met("a", 2, is_start=False)  # group 0 has moved, and names its run
    assert (here.num_restarts, there.num_restarts) == (0, 1)


def test_made_up_names_and_lives_do_not_fill_the_memory():
    """A peer that says HELLO for ever costs no more than the limits."""
    roster = Roster()
    for number in range(MAX_ACTORS + 50):
        roster.met(f"actor-{number}", number, is_start=True)
        roster.met("actor-0", number, is_start=True)
    assert roster.num_restarts == MAX_LIVES - 1
    for number in range(MAX_ACTORS + 50):
        roster.lost(f"actor-{number}", 0.0)
    assert len(roster.lanes([])) == MAX_ACTORS


def test_a_lost_actor_is_missed_until_it_comes_back_or_long_enough():
    """With no lanes; one that leaves with a BYE is not missed."""
    roster = Roster()
    for name in ("cut", "left"):
        roster.met(name, 1, is_start=True)
    roster.lost("cut", 0.0)
    assert roster.lanes([]) == {"cut": 0.0}
    roster.met("cut", 2, is_start=True)
    assert roster.lanes([]) == {}
    roster.lost("cut", 1.0)
    roster.forget(MISSED_S)
    assert roster.lanes([]) == {"cut": 0.0}
    roster.forget(MISSED_S + 1.0)
    assert roster.lanes([]) == {}
