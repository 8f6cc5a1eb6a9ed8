"""The columns of metrics.csv, without those of a custom algorithm and of an environment's own statistics."""

from seedbed.shared.figures import inference
from seedbed.shared.figures.declare import Column, Plot, Remark

MAX_LOG_RHO_LAG0 = 0.1  # 0 to 1e-5 in float32, up to 0.07 with an LSTM; dropout of a tenth gives 0.16

# The run so far, over all restarts
SECONDS = Column("seconds", "s", "time of training, without the final evaluation, for which training is held")
EPOCH = Column("epoch", "", "number of learner processes that the run has had")
UPDATES = Column("updates", "", "updates of the network, one for each batch")
TRAINED_STEPS = Column("trained_steps", "steps", "valid transitions trained on")
ENV_STEPS = Column("env_steps", "steps", "transitions acted for training")
EPISODES = Column("episodes", "", "episodes finished in training")
RETURN_MEAN = Column("return_mean", "reward", "mean return of the last 100 training episodes, in raw rewards")
LENGTH_MEAN = Column("length_mean", "steps", "mean length of the last 100 training episodes")

# Since the previous row
ENV_STEPS_PER_S = Column("env_steps_per_s", "1/s", "steps acted for training")
TRAINED_STEPS_PER_S = Column("trained_steps_per_s", "1/s", "transitions trained on")
UPDATES_PER_S = Column("updates_per_s", "1/s", "updates of the network")
UPDATE_BUSY_SHARE = Column("update_busy_share", "0…1", "share of the time in which the update thread worked")
BATCH_WAIT = Column("batch_wait_ms", "ms", "how long the update thread waited for each batch")

# Over all restarts again
DROPPED_STEPS = Column(
    "dropped_steps",
    "steps",
    "transitions too old to train on (`learner.max_policy_lag`)",
)
LOST_EPOCH_STEPS = Column("lost_epoch_steps", "steps", "dropped transitions whose weights were lost with a learner")
ABORTED_EPISODES = Column("aborted_episodes", "", "episodes cut short because their environment was built again")

# Means over the updates since the previous row
LOSS = Column(
    "loss", "", "the loss; [algorithms.md](algorithms.md) has the definitions", plot=Plot("Loss", "per transition")
)
POLICY_LOSS = Column("policy_loss", "", "the policy's part of the loss")
VALUE_LOSS = Column("value_loss", "", "the value's part of the loss, in units of the value head")
GRAD_NORM = Column(
    "grad_norm", "", "norm of the gradient before the clip", plot=Plot("Gradient norm", "before clipping")
)
LEARNING_RATE = Column("learning_rate", "", "the present learning rate")
ENTROPY_COST = Column("entropy_cost", "", "the present weight of the entropy bonus")
ENTROPY = Column("entropy", "nats", "mean entropy of the policy", plot=Plot("Entropy", "nats"))
RHO_CLIPPED_SHARE = Column("rho_clipped_share", "0…1", "share of rows whose ratio is over `rho_clip`")
KL_STEP = Column("kl_step", "nats", "with `appo`: KL between the policy before the batch and in its passes")
POLICY_CLIPPED_SHARE = Column("policy_clipped_share", "0…1", "with `appo`: share of rows beyond the clip")
EFFECTIVE_SAMPLE_SIZE = Column(
    "effective_sample_size", "0…1", "(mean ω)²/mean ω²: 1 on-policy",
    remark=Remark(
        least=0.5,
        text="importance weights differ so much that a batch is worth {:.0%} of its steps: the behaviour is far from "
        "the policy; lower the lag or algorithm.learning_rate",
    ),
)  # fmt: skip
KL = Column(
    "kl", "nats", "estimate of KL(behaviour‖policy), from the actions taken",
    plot=Plot("KL divergence", "nats, behaviour to target"),
)  # fmt: skip
LOG_RHO_MEAN_ABS = Column("log_rho_mean_abs", "", "mean \\|log π − log μ\\|")
LOG_RHO_LAG0 = Column(
    "log_rho_mean_abs_lag0", "",
    "the same over rows acted by the very weights the update starts from, where it is 0 up to rounding",
    plot=Plot("Disagreement", "|log ρ| at lag 0", "near 0 is right"),
    remark=Remark(
        most=MAX_LOG_RHO_LAG0,
        text="learner and inference disagree on the same weights (|log ρ| at lag 0 is {:.2g}): the network must give "
        "the same output for the same input",
    ),
)  # fmt: skip
VALUE_TARGET_MEAN = Column("value_target_mean", "", "mean value target of trained rows")
VALUE_ERROR_MEAN = Column("value_error_mean", "", "mean of target − value, of trained rows")
ADVANTAGE_RMS = Column("advantage_rms", "", "root mean square of the advantages of trained rows")
EXPLAINED_VARIANCE = Column(
    "explained_variance", "≤ 1", "1 − Var(v − V)/Var(v); in a run with several tasks the mean of those within each",
    plot=Plot("Explained variance", "share, 1 is best"),
    remark=Remark(
        least=0.0,
        text="the value function explains less than its mean would: check reward scale and learning rate",
    ),
)  # fmt: skip
VALUE_UNITS = (  # of each task where it has a value output of its own
    VALUE_UNIT_MEAN := Column(
        "value_unit_mean", "reward", "with `value_normalisation`: moving mean of the value targets, 0 of the value head"
    ),
    VALUE_UNIT_STD := Column("value_unit_std", "reward", "their moving deviation, the unit of the value head"),
)
Q_MEAN = Column("q_mean", "", "with `r2d2`: mean Q of the actions taken, in the units of the network")
Q_TARGET_MEAN = Column("q_target_mean", "", "with `r2d2`: mean target of these Q")
TD_ERROR_MEAN = Column("td_error_mean", "", "with `r2d2`: mean \\|target − Q\\|")
TD_ERROR_MAX = Column("td_error_max", "", "with `r2d2`: largest \\|target − Q\\| of a batch")
UPDATE_TIME = Column("update_ms", "ms", "duration of one update", plot=Plot("Update", "ms"))
LAG_MEAN = Column("lag_mean", "updates", "mean number of updates between acting and learning, of trained rows")
LAG_MAX = Column("lag_max", "updates", "the largest lag of a trained row")
VALID_SHARE = Column("valid_share", "0…1", "share of a batch's rows that are transitions")
DROPPED_SHARE = Column("dropped_share", "0…1", "share of the transitions that were dropped")

# Of a replay
REPLAY_SEQUENCES = Column("replay_sequences", "", "sequences in the replay")
REPLAY_BYTES = Column("replay_bytes", "bytes", "memory or disk that the sequences occupy")
REPLAY_AGE = Column("replay_age", "sequences", "mean age of a sequence: how many were stored after it")
REPLAY_RATIO = Column("replay_ratio", "", "sequences trained on for each one stored, since training began")
REPLAY_PRIORITY_MEAN = Column("replay_priority_mean", "", "mean priority of the sequences in the replay")
REPLAY_PRIORITY_MAX = Column("replay_priority_max", "", "largest priority of the sequences in the replay")

MACHINE_BUSY_SHARE = Column(
    "machine_busy_share", "0…1", "share of the processor time of the learner's machine that all programs used"
)

# Loads of inference services
INFERENCE_SERVICES = Column("inference_services", "", "inference services that are connected")
INFERENCE_RESTARTS = Column("inference_restarts", "", "restarts of inference services")
LEARNER_LOOP_LAG = Column("learner_loop_lag_ms", "ms", "how late a timer of the learner's loop was")
DUPLICATE_UNROLLS = Column("duplicate_unrolls", "", "UNROLLs that came twice, and were applied once")
LOST_UNROLLS = Column("lost_unrolls", "", "UNROLLs whose updates were lost with a learner")

# Of the evaluation that ended since the previous row
EVAL_RETURN_MEAN = Column("eval_return_mean", "reward", "mean return of an evaluation that has just ended")
EVAL_RETURN_STD = Column("eval_return_std", "reward", "standard deviation of the returns of its episodes")
EVAL_RETURN_MEDIAN = Column("eval_return_median", "reward", "median return of its episodes")
EVAL_RETURN_MIN = Column("eval_return_min", "reward", "return of its worst episode")
EVAL_RETURN_MAX = Column("eval_return_max", "reward", "return of its best episode")
EVAL_LENGTH_MEAN = Column("eval_length_mean", "steps", "mean length of its episodes")
EVAL_EPISODES = Column("eval_episodes", "", "number of its episodes")
EVAL_VERSION = Column(
    "eval_version", "", "the policy that was evaluated: epoch × 2⁴⁰ + update, in `summary.json` `epoch:update`"
)
EVAL_NORMALISED = Column(
    "eval_normalised",
    "",
    "[normalised score](tasks.md#normalised-scores) of the mean return: 0 random play, 1 a person",
)
EVAL_NORMALISED_MEAN = Column("eval_normalised_mean", "", "mean normalised score over [tasks](tasks.md)")
EVAL_NORMALISED_MEDIAN = Column("eval_normalised_median", "", "their median")
EVAL_NORMALISED_CAPPED_MEAN = Column("eval_normalised_capped_mean", "", "their mean, each score at most 1")

TASK_COLUMNS = (  # columns that only tasks have, besides their own ones of some columns above
    SHARE := Column("share", "0…1", "share of the lanes of all batches"),
)
RANK_COLUMNS = (  # of each learner rank, in a run with several, since the previous row
    RANK_BATCH_WAIT := Column("rank_batch_wait_share", "0…1", "share of the time in which the rank had no batch"),
    RANK_RANKS_WAIT := Column(
        "rank_ranks_wait_share", "0…1", "share of the time in which it had a batch and waited for other ranks"
    ),
    RANK_TRAINED_LANES := Column("rank_lanes_per_s", "1/s", "lane-unrolls that it trained on"),
)
COLUMNS = (
    *(
        value
        for value in tuple(globals().values())
        if isinstance(value, Column) and value not in (*TASK_COLUMNS, *RANK_COLUMNS)
    ),
    *(load.column for load in inference.LOADS),
)
