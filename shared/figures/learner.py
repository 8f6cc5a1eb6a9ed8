"""The metrics of the learner."""

from seedbed.shared.figures.declare import counter, gauge, histogram

UPDATES = counter("learner_updates", "Learner updates.")
TRAINED_STEPS = counter("learner_trained_steps", "Valid transitions trained on (agent steps).")
ENV_STEPS = counter("learner_env_steps", "Training transitions acted (agent steps).")
EPISODES = counter("learner_episodes", "Finished training episodes.")
ABORTED_EPISODES = counter(
    "learner_aborted_episodes", "Training episodes that a rebuilt lane cut short.",
    loss="episodes cut short by a rebuilt lane",
)  # fmt: skip
DROPPED_STEPS = counter(
    "learner_dropped_steps", "Transitions too old to be trained on.", loss="steps too old to train on"
)
LOST_EPOCH_STEPS = counter(
    "learner_lost_epoch_steps", "Transitions of a lost learner epoch.", loss="steps of a lost learner epoch"
)
EVALUATIONS = counter("learner_evaluations", "Evaluations finished in this process.")
DUPLICATE_UNROLLS = counter(
    "learner_duplicate_unrolls", "UNROLLs that were here already.", loss="unrolls that were here already"
)
LOST_UNROLLS = counter(
    "learner_lost_unrolls", "UNROLLs whose updates were lost with an epoch.", loss="unrolls whose updates were lost"
)
REFUSED_MESSAGES = counter(
    "learner_refused_messages", "Messages that broke the protocol.", loss="messages that broke the protocol"
)
DROPPED_MESSAGES = counter(
    "learner_dropped_messages", "Messages dropped unread: their senders had wasted too much time.",
    loss="messages dropped unread: their senders had wasted too much time",
)  # fmt: skip
WRITE_FAILURES = counter("learner_write_failures", "Rows and checkpoints that the disk refused.")
STATE = gauge("learner_state", "0 starting, 1 training, 2 finishing, 3 finished.")
SECONDS = gauge("learner_seconds", "Time of training, over all restarts.")
RETURN_MEAN = gauge("learner_return_mean", "Mean return of the last 100 training episodes.")
EVAL_RETURN_MEAN = gauge("learner_eval_return_mean", "Mean return of the last evaluation.")
EVAL_NORMALISED = gauge(
    "learner_eval_normalised",
    "The same between random and human score, 0 to 1; with tasks the mean over them; NaN where these are not known.",
)
LAG_MEAN = gauge("learner_policy_lag_mean", "Updates between acting and learning.")
LAG_MAX = gauge("learner_policy_lag_max", "The most of them in the last update.")
LOG_RHO_LAG0 = gauge("learner_log_rho_lag0", "Mean |log rho| of rows acted by the weights updated.")
COLUMN = gauge("learner_column", "The newest value of a column of metrics.csv.", "column")
POLICY_STEP = gauge("learner_policy_step", "Update number of the published weights.")
POLICY_EPOCH = gauge("learner_policy_epoch", "How many learners this run has had.")
PRODUCERS = gauge("learner_producers", "Inference services that are in.")
POLICY_LAG = histogram(
    "learner_policy_lag",
    "Updates between acting and learning, of every transition that came to an update, too old ones too.",
)
STATISTIC = gauge(
    "learner_statistic", "Mean over the last 100 training episodes of a statistic of the environment's own.",
    "statistic",
)  # fmt: skip
EVAL_STATISTIC = gauge("learner_eval_statistic", "The same over the last evaluation.", "statistic")
UPDATE_SECONDS = histogram("learner_update_seconds", "One update in the update thread.")

# Of a run with several tasks

TASK_STATISTIC = gauge(
    "learner_task_statistic", "A task's mean over the last 100 training episodes.", "task", "statistic"
)
TASK_EVAL_STATISTIC = gauge(
    "learner_task_eval_statistic", "A task's mean over the last evaluation.", "task", "statistic"
)
RANK_BATCH_WAIT = counter(
    "learner_rank_batch_wait_seconds", "Time that a learner rank had no batch, with several ranks.", "rank"
)
RANK_RANKS_WAIT = counter(
    "learner_rank_ranks_wait_seconds", "Time that a learner rank had a batch and waited for other ranks.", "rank"
)
RANK_TRAINED_LANES = counter("learner_rank_trained_lanes", "Lane-unrolls that a learner rank trained on.", "rank")
TASK_TRAINED_STEPS = counter(
    "learner_task_trained_steps", "Valid transitions of a task trained on (agent steps).", "task"
)
TASK_TRAINED_LANES = counter("learner_task_trained_lanes", "Lane-unrolls of a task trained on.", "task")
TASK_ENV_STEPS = counter("learner_task_env_steps", "Training transitions of a task acted (agent steps).", "task")
TASK_EPISODES = counter("learner_task_episodes", "Finished training episodes of a task.", "task")
TASK_ABORTED_EPISODES = counter("learner_task_aborted_episodes", "Those that a rebuilt lane cut short.", "task")
TASK_WEIGHT = gauge("learner_task_weight", "A task's share of every batch, as configured.", "task")
TASK_RETURN_MEAN = gauge("learner_task_return_mean", "Mean return of a task's last 100 training episodes.", "task")
TASK_EVAL_RETURN_MEAN = gauge("learner_task_eval_return_mean", "Mean return of a task's last evaluation.", "task")
TASK_EXPLAINED_VARIANCE = gauge(
    "learner_task_explained_variance", "1 - Var(v - V)/Var(v) within a task, of its newest update.", "task"
)
TASK_VALUE_UNIT_MEAN = gauge(
    "learner_task_value_unit_mean", "Moving mean of a task's value targets, where values are normalised.", "task"
)
TASK_VALUE_UNIT_STD = gauge("learner_task_value_unit_std", "Their moving deviation.", "task")
TASK_EVAL_NORMALISED = gauge("learner_task_eval_normalised", "The same between random and human score.", "task")
