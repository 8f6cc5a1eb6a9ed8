"""The metrics of an actor."""

from seedbed.shared.figures.declare import counter, gauge, histogram

STEPS = counter("actor_steps", "Environment steps: valid transitions of all lanes (agent steps).")
EPISODES = counter("actor_episodes", "Finished episodes.")
ABORTED = counter("actor_aborted", "Episodes that a rebuilt lane cut short.")
REBUILDS = counter(
    "actor_rebuilds", "Lanes rebuilt after they raised or gave values outside their space.",
    loss="lanes rebuilt after a failure",
)  # fmt: skip
TICKS = counter("actor_ticks", "Ticks of all groups.")
BUSY_SECONDS = counter("actor_busy_seconds", "Time that environments ran, seconds.")
WAIT_SECONDS = counter("actor_wait_seconds", "Time that groups waited for their actions, seconds, summed over groups.")
REFUSED_MESSAGES = counter(
    "actor_refused_messages", "Messages that broke the protocol.", loss="messages that broke the protocol"
)
RESENT = counter("actor_resent", "STEPs sent again.", loss="steps sent again")
SESSIONS = counter("actor_sessions", "Sessions begun.")
MOVES = counter("actor_moves", "Groups moved to another inference service.")
LANES = gauge("actor_lanes", "Environment copies.")
WAITING_GROUPS = gauge("actor_waiting_groups", "Groups that wait for their actions now.")
TICK_SECONDS = histogram("actor_tick_seconds", "One tick of a group in the environment thread.")
