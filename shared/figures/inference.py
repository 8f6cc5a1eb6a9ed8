"""The metrics of an inference service, and the loads that it sends to the learner."""

from seedbed.shared.figures.declare import Column, Combine, Load, Quotient, counter, gauge, histogram

ACTED_STEPS = counter("acted_steps", "Training transitions acted (agent steps).")
EVAL_STEPS = counter("eval_steps", "Evaluation transitions acted (agent steps).")
REQUESTS = counter("requests", "STEP messages accepted.")
BATCHES = counter("batches", "Forward passes.")
BATCH_FILL = Quotient(
    counter("batch_lanes", "Lanes of all forward passes."), BATCHES,
    Column("inference_batch_fill", "lanes", "of a forward pass"),
)  # fmt: skip
QUEUE_WAIT = Quotient(
    counter("queue_wait_seconds", "Time that groups waited for their batch, summed."),
    counter("queue_waits", "Groups that waited for a batch."),
    Column("inference_queue_wait_ms", "ms", "a group's wait for its batch"), 1e3,
)  # fmt: skip
FORWARD = Quotient(
    counter("compute_seconds", "Time in the compute thread."), BATCHES,
    Column("inference_forward_ms", "ms", "one batch in the compute thread"), 1e3,
)  # fmt: skip
HELD_NO_CREDIT = counter("held_no_credit", "Times that a group was held for the learner.")
REFUSED_MESSAGES = counter(
    "refused_messages", "Messages that broke the protocol.", loss="messages that broke the protocol"
)
DROPPED_MESSAGES = counter(
    "dropped_messages", "Messages dropped unread: their senders had wasted too much time.",
    loss="messages dropped unread: their senders had wasted too much time",
)  # fmt: skip
LOST_GROUPS = counter("lost_groups", "Groups whose lease ended.", loss="groups whose lease ended")
OUT_OF_BOUNDS = counter("out_of_bounds", "Rows with observations outside their bounds.")
UNROLLS_ACKED = counter("unrolls_acked", "UNROLLs that the learner acknowledged.")
UNROLLS_SHARED = counter("unrolls_shared", "UNROLLs sent through shared memory; all others go over the socket.")
WEIGHTS_SHARED = counter("weights_shared", "Weights received through shared memory; all others come over the socket.")
UNROLLS_RESENT = counter("unrolls_resent", "UNROLLs sent again.", loss="unrolls sent again")
DISCARDED_LANES = counter(
    "discarded_lanes", "Lane-unrolls that fit the learner no more.", loss="lane-unrolls that fit the learner no more"
)
PICTURES = counter("pictures", "Pictures of evaluations that came.")
ACTOR_RESTARTS = counter("actor_restarts", "Actor process lives beyond the first.")
SESSIONS = gauge("sessions", "Groups that are in.")
LANES = gauge("lanes", "Lanes of these groups: slots in use.")
UNACKED_LANES = gauge("unacked_lanes", "Lane-unrolls kept until acknowledged.")
AWAITED_GROUPS = gauge(
    "awaited_groups", "In deterministic mode, training groups that have kept all others waiting for some seconds."
)
EVAL_PLAYED = gauge("eval_played", "Episodes played of the evaluation under way.")
EVAL_ASKED = gauge("eval_asked", "Episodes of the evaluation under way; 0: none is.")
POLICY_EPOCH = gauge("policy_epoch", "Learner epoch of the weights that act.")
POLICY_STEP = gauge("policy_step", "Update number of the weights that act.")
LEARNER_CONNECTED = gauge("learner_connected", "1 while there is a session at the learner.")
GROUPS_ENDED = counter("groups_ended", "Groups whose session ended.", "reason")
DROPPED_STEPS = counter(
    "dropped_steps", "Steps of unrolls that were cut off: why their group ended.", "reason",
    loss="steps of unrolls cut off as their group ended",
)  # fmt: skip
HELLOS_REFUSED = counter("hellos_refused", "HELLOs that were not served.", "code")
ENVIRONMENT_RESTARTS = counter("environment_restarts", "Lives of an actor beyond the first.", "actor")
ENVIRONMENT_LANES = gauge("environment_lanes", "Lanes of an actor; 0: it was lost.", "actor")
TASK_LANES = gauge("task_lanes", "Training lanes of a task.", "task")
FORWARD_SECONDS = histogram("forward_seconds", "One batch in the compute thread.")

SERVED_EPISODES = counter("served_episodes", "Episodes played with the served policy.")
SERVED_RETURN = gauge("served_return_mean", "Mean return of the newest 1000 of them.")

MEANS = tuple((Load(item.column, Combine.MEAN), item) for item in (BATCH_FILL, QUEUE_WAIT, FORWARD))
LOOP_LAG = Load(Column("inference_loop_lag_ms", "ms", "how late a timer of the service's loop was"), Combine.MEAN)
NUM_SESSIONS = Load(Column("inference_sessions", "", "groups that are in"), Combine.SUM)
NUM_LANES = Load(Column("inference_lanes", "", "environments that are in"), Combine.SUM)
NUM_AWAITED_GROUPS = Load(
    Column(
        "inference_awaited_groups", "",
        "in [deterministic mode](reproducible_runs.md), groups that have kept all others waiting for some seconds",
    ), Combine.SUM,
)  # fmt: skip
NUM_ACTOR_RESTARTS = Load(
    Column("inference_actor_restarts", "", "lives of actors beyond the first, as inference saw them"), Combine.SUM
)
ENV_BUSY = Load(
    Column("inference_env_busy_share", "0…1", "of the time, how much training actors stepped environments"),
    Combine.MEAN,
)
LOADS = (
    NUM_SESSIONS, NUM_LANES, NUM_AWAITED_GROUPS, NUM_ACTOR_RESTARTS, *(load for load, _ in MEANS), LOOP_LAG, ENV_BUSY,
)  # fmt: skip
