"""The columns of metrics.csv, without those of a custom algorithm and of an environment's own statistics."""

from seedbed.shared.figures import inference
from seedbed.shared.figures.declare import Column

# The run so far, over all restarts
SECONDS = Column("seconds", "s", "time of training, without the final evaluation, for which training is held")
EPOCH = Column("epoch", "", "how many learners the run has had")
UPDATES = Column("updates", "", "of the network")
TRAINED_STEPS = Column("trained_steps", "steps", "valid transitions trained on")
ENV_STEPS = Column("env_steps", "steps", "transitions acted for training")
EPISODES = Column("episodes", "", "finished in training")
RETURN_MEAN = Column("return_mean", "reward", "of the last 100 training episodes, as the environment gives rewards")
LENGTH_MEAN = Column("length_mean", "steps", "of the last 100 training episodes")

# Since the previous row
ENV_STEPS_PER_S = Column("env_steps_per_s", "1/s", "acted for training")
TRAINED_STEPS_PER_S = Column("trained_steps_per_s", "1/s", "trained on")
UPDATES_PER_S = Column("updates_per_s", "1/s", "of the network")
UPDATE_BUSY_SHARE = Column("update_busy_share", "0…1", "of the time, how much the update thread worked")
BATCH_WAIT = Column("batch_wait_ms", "ms", "that the update thread waited for each batch")

# Over all restarts again
DROPPED_STEPS = Column(
    "dropped_steps", "steps", "too old to be trained on (`learner.max_policy_lag`), or acted by weights that were lost"
)
LOST_EPOCH_STEPS = Column("lost_epoch_steps", "steps", "those of them acted by weights that were lost with a learner")
ABORTED_EPISODES = Column("aborted_episodes", "", "cut short because their environment was built again")

# Means over the updates since the previous row
LOSS = Column("loss", "", "[algorithms.md](algorithms.md) has the definitions")
POLICY_LOSS = Column("policy_loss", "", "the part of it that is the policy's")
VALUE_LOSS = Column("value_loss", "", "in units of the value head")
GRAD_NORM = Column("grad_norm", "", "before the clip")
LEARNING_RATE = Column("learning_rate", "", "as it is now")
ENTROPY_COST = Column("entropy_cost", "", "as it is now")
ENTROPY = Column("entropy", "nats", "of the policy")
RHO_CLIPPED_SHARE = Column("rho_clipped_share", "0…1", "rows whose ratio is over `rho_clip`")
KL_STEP = Column("kl_step", "nats", "with `appo`: KL between the policy before the batch and in its passes")
POLICY_CLIPPED_SHARE = Column("policy_clipped_share", "0…1", "with `appo`: rows whose ratio is beyond the clip")
EFFECTIVE_SAMPLE_SIZE = Column("effective_sample_size", "0…1", "(mean ω)²/mean ω²: 1 on-policy")
KL = Column("kl", "nats", "estimate of KL(behaviour‖policy), from the actions taken")
LOG_RHO_MEAN_ABS = Column("log_rho_mean_abs", "", "mean \\|log π − log μ\\|")
LOG_RHO_LAG0 = Column(
    "log_rho_mean_abs_lag0", "",
    "the same over rows acted by the very weights the update starts from, where it is 0 up to rounding",
)  # fmt: skip
VALUE_TARGET_MEAN = Column("value_target_mean", "", "of trained rows")
VALUE_ERROR_MEAN = Column("value_error_mean", "", "of trained rows")
ADVANTAGE_RMS = Column("advantage_rms", "", "of trained rows")
EXPLAINED_VARIANCE = Column("explained_variance", "≤ 1", "1 − Var(v − V)/Var(v)")
Q_MEAN = Column("q_mean", "", "with `r2d2`: Q of the actions taken, as the network speaks it")
Q_TARGET_MEAN = Column("q_target_mean", "", "with `r2d2`: their targets")
TD_ERROR_MEAN = Column("td_error_mean", "", "with `r2d2`: mean \\|target − Q\\|")
TD_ERROR_MAX = Column("td_error_max", "", "with `r2d2`: the largest of a batch")
UPDATE_TIME = Column("update_ms", "ms", "of one update")
LAG_MEAN = Column("lag_mean", "updates", "between acting and learning, of trained rows")
LAG_MAX = Column("lag_max", "updates", "the largest of all of them")
VALID_SHARE = Column("valid_share", "0…1", "of a batch's rows, how many are transitions")
DROPPED_SHARE = Column("dropped_share", "0…1", "of these, how many were dropped")

# Of a replay
REPLAY_SEQUENCES = Column("replay_sequences", "", "sequences that a replay has")
REPLAY_BYTES = Column("replay_bytes", "bytes", "that they occupy")
REPLAY_AGE = Column("replay_age", "sequences", "that came after a sequence, mean over those that are kept")
REPLAY_RATIO = Column("replay_ratio", "", "sequences trained on for each that came since training began")
REPLAY_PRIORITY_MEAN = Column("replay_priority_mean", "", "of the sequences that are kept")
REPLAY_PRIORITY_MAX = Column("replay_priority_max", "", "the largest of them")

# Loads of inference services
INFERENCE_SERVICES = Column("inference_services", "", "inference services that are in")
INFERENCE_RESTARTS = Column("inference_restarts", "", "lives of inference services beyond the first")
LEARNER_LOOP_LAG = Column("learner_loop_lag_ms", "ms", "how late a timer of the learner's loop was")
DUPLICATE_UNROLLS = Column("duplicate_unrolls", "", "UNROLLs that came twice, and were applied once")
LOST_UNROLLS = Column("lost_unrolls", "", "UNROLLs whose updates were lost with a learner")

# Of the evaluation that ended since the previous row
EVAL_RETURN_MEAN = Column("eval_return_mean", "reward", "of the evaluation that ended since the row before")
EVAL_RETURN_STD = Column("eval_return_std", "reward", "its standard deviation over episodes")
EVAL_RETURN_MEDIAN = Column("eval_return_median", "reward", "its median")
EVAL_RETURN_MIN = Column("eval_return_min", "reward", "its worst episode")
EVAL_RETURN_MAX = Column("eval_return_max", "reward", "its best episode")
EVAL_LENGTH_MEAN = Column("eval_length_mean", "steps", "of its episodes")
EVAL_EPISODES = Column("eval_episodes", "", "how many they were")
EVAL_VERSION = Column(
    "eval_version", "", "the policy that was evaluated: epoch × 2⁴⁰ + update, in `summary.json` `epoch:update`"
)
EVAL_NORMALISED_MEAN = Column("eval_normalised_mean", "", "[over tasks](tasks.md) that have scores")
EVAL_NORMALISED_MEDIAN = Column("eval_normalised_median", "", "the same, their median")
EVAL_NORMALISED_CAPPED_MEAN = Column("eval_normalised_capped_mean", "", "the same, each at most 1")

TASK_COLUMNS = (  # columns that only tasks have, besides their own ones of some columns above
    SHARE := Column("share", "0…1", "of the batches' lanes"),
    EVAL_NORMALISED := Column("eval_normalised", "", "of the last evaluation, between random and human score"),
)
COLUMNS = (
    *(value for value in tuple(globals().values()) if isinstance(value, Column) and value not in TASK_COLUMNS),
    *(load.column for load in inference.LOADS),
)
