"""What `seedbed explain` decides, from numbers."""

import pytest
from rich.console import Console

from seedbed.services.tools.cli.explain import FIGURES, KNOBS, Bottleneck, Signals, diagnose, summarise
from seedbed.services.tools.cli.report import render_diagnosis
from seedbed.services.tools.monitor.verdict import read_signals
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns, inference
from seedbed.shared.figures.inference import ENV_BUSY, FORWARD, LOOP_LAG, QUEUE_WAIT

UPDATE_BUSY = columns.UPDATE_BUSY_SHARE
LANES, RESTARTS, AWAITED = (
    load.column for load in (inference.NUM_LANES, inference.NUM_ACTOR_RESTARTS, inference.NUM_AWAITED_GROUPS)
)
USUAL = {
    UPDATE_BUSY: 0.3,
    inference.BATCH_FILL.column: 64.0,
    LANES: 128.0,
    QUEUE_WAIT.column: 0.5,
    FORWARD.column: 1.0,
    LOOP_LAG.column: 0.3,
    ENV_BUSY.column: 0.6,
}


def signals(figures=None, **others) -> Signals:
    """A run in which nothing is busy: 128 lanes at 10 K steps/s, a cycle of 12.8 ms."""
    known = dict.fromkeys(FIGURES) | USUAL | (figures or {})
    return Signals(trained_steps_per_s=10_000.0, acted_steps_per_s=10_000.0, figures=known, **others)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({UPDATE_BUSY: 0.97}, Bottleneck.LEARNER),
        ({FORWARD.column: 6.0}, Bottleneck.INFERENCE),  # 156 passes/s of 6 ms: busy 94 %
        ({ENV_BUSY.column: 0.95}, Bottleneck.ENVIRONMENT),
        ({ENV_BUSY.column: 0.97, UPDATE_BUSY: 0.9}, Bottleneck.ENVIRONMENT),
        ({QUEUE_WAIT.column: 8.0}, Bottleneck.BATCH_WAIT),
        ({LOOP_LAG.column: 80.0}, Bottleneck.NETWORK),
        ({ENV_BUSY.column: 0.1}, Bottleneck.NETWORK),
        ({}, Bottleneck.ENVIRONMENT),
        ({ENV_BUSY.column: None}, Bottleneck.ENVIRONMENT),
        ({columns.MACHINE_BUSY_SHARE: 0.97}, Bottleneck.CORES),
        ({columns.MACHINE_BUSY_SHARE: 0.97, UPDATE_BUSY: 0.97}, Bottleneck.LEARNER),
    ],
)
def test_the_bottleneck_is_named(figures, expected):
    """Who is busy all the time; if nobody is, the longest part of a lane's cycle."""
    diagnosis = diagnose(signals(figures))
    assert diagnosis.bottleneck is expected
    assert diagnosis.evidence
    assert diagnosis.knobs


def test_the_cycle_is_the_time_between_two_steps_of_a_lane():
    """Lanes over steps per second."""
    assert signals().cycle_ms == pytest.approx(12.8)
    assert signals({LANES: None}).cycle_ms is None


def test_inferences_busy_share_counts_its_replicas():
    """Two replicas share the forward passes."""
    assert signals({FORWARD.column: 3.2}).inference_busy_share == pytest.approx(0.5)
    replicas = {FORWARD.column: 3.2, columns.INFERENCE_SERVICES: 2.0}
    assert signals(replicas).inference_busy_share == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (signals(dropped_share=0.1), "10.0% of the acted steps were too old"),
        (signals({columns.LAG_MAX: 60.0}, max_policy_lag=64.0), "policy lag reaches 60"),
        (signals({columns.EFFECTIVE_SAMPLE_SIZE: 0.3}), "30% of its steps"),
        (signals({columns.EXPLAINED_VARIANCE: -0.5}), "value function"),
        (signals({RESTARTS: 3.0}), "restarted 3 times"),
    ],
)
def test_what_else_is_wrong_is_remarked(found, words):
    """Not the bottleneck, but worth a look."""
    assert any(words in remark for remark in diagnose(found).remarks)


def test_groups_that_a_deterministic_run_waits_for_at_its_end_are_remarked():
    """Nothing is trained any more, so their number is in the rows after the last update."""
    row = {"seconds": "1", "trained_steps_per_s": "10", "env_steps_per_s": "10", "inference_awaited_groups": "0"}
    hung = {**row, "trained_steps_per_s": "0", "inference_awaited_groups": "2"}
    assert summarise([row] * 4, source="s").figures[AWAITED] == 0
    signals = summarise([*[row] * 4, hung], source="s")
    assert signals.figures[AWAITED] == 2
    assert "groups_awaited" in diagnose(signals).remarks[0]


def test_a_healthy_run_gets_no_remarks():
    """Nothing is invented."""
    healthy = {columns.EXPLAINED_VARIANCE: 0.9, columns.EFFECTIVE_SAMPLE_SIZE: 0.9, columns.LOG_RHO_LAG0: 1e-6}
    assert diagnose(signals({columns.LAG_MAX: 5.0, **healthy}, max_policy_lag=64.0)).remarks == ()


def test_every_bottleneck_has_knobs_that_exist():
    """A knob is a setting of some section."""
    from seedbed.actor_svc.config import ActorConfig
    from seedbed.inference_svc.config import InferenceConfig
    from seedbed.learner_svc.config import LearnerConfig
    from seedbed.shared.policy.config import PolicyConfig
    from seedbed.shared.runtime.config import EnvConfig, LaunchConfig, RuntimeConfig

    sections = {
        "actor": ActorConfig,
        "inference": InferenceConfig,
        "learner": LearnerConfig,
        "policy": PolicyConfig,
        "env": EnvConfig,
        "launch": LaunchConfig,
        "runtime": RuntimeConfig,
    }
    assert set(KNOBS) == set(Bottleneck)
    for knobs in KNOBS.values():
        for word in " ".join(knobs).replace(":", " ").replace(",", " ").replace("=", " ").split():
            section, dot, key = word.partition(".")
            if dot and section in sections:
                assert key in sections[section].model_fields, word


HEADER = (
    "seconds,trained_steps,dropped_steps,env_steps_per_s,trained_steps_per_s,update_busy_share,inference_lanes,lag_max"
)


def write_metrics(folder, rows):
    """A run's metrics.csv."""
    (folder / "metrics.csv").write_text("\n".join([HEADER, *rows]) + "\n")


def test_figures_are_means_over_the_last_half_of_training(tmp_path):
    """The start and the final evaluation say nothing about speed."""
    rows = ["0,0,0,0,0,0,128,", "1,10,0,10,10,0.1,128,1", "2,20,0,10,10,0.1,128,1"]
    rows += ["3,120,0,100,100,0.5,128,4", "4,320,40,200,200,,128,2", "5,320,40,0,0,0,20,"]
    write_metrics(tmp_path, rows)
    found = read_signals(tmp_path, max_policy_lag=8.0)
    assert found.trained_steps_per_s == pytest.approx(150.0)
    assert found.figures[UPDATE_BUSY] == pytest.approx(0.5)
    assert found.figures[LANES] == 128
    assert found.figures[columns.LAG_MAX] == 4.0
    assert found.dropped_share == pytest.approx(40 / 360)
    assert found.figures[ENV_BUSY.column] is None


def test_lines_that_are_no_rows_are_passed_over(tmp_path):
    """As a full disk, a crash or an editor leave them: bytes that are no text, endless cells, too many of them."""
    rows = [f"{second},{100 * second},0,100,100,0.5,128,4" for second in range(1, 9)]
    write_metrics(tmp_path, rows)
    whole = read_signals(tmp_path)
    broken = ["\udcff", "9" * 200_000, "9,900,0,100,100,0.5,128,4,,,"]
    text = "\n".join([HEADER, *rows[:5], *broken, *rows[5:]]) + "\n9,9"
    (tmp_path / "metrics.csv").write_text(text, errors="surrogateescape")
    assert read_signals(tmp_path) == whole


def test_waits_of_learner_ranks_name_the_slowest():
    """Of the ranks that trained last: a resumed run may have fewer than before."""
    row = {"seconds": "1", "trained_steps_per_s": "100", "rank_batch_wait_share/2": "", "rank_ranks_wait_share/2": ""}
    waits = {"0": ("0.1", "0.5"), "1": ("0.6", "0.02")}
    for rank, (batch, ranks) in waits.items():
        row |= {f"rank_batch_wait_share/{rank}": batch, f"rank_ranks_wait_share/{rank}": ranks}
        row[f"rank_lanes_per_s/{rank}"] = "64"
    found = summarise([row] * 6, source="rows")
    shares = [
        (name, rank[columns.RANK_BATCH_WAIT], rank[columns.RANK_RANKS_WAIT]) for name, rank in found.ranks.items()
    ]
    assert shares == [("0", pytest.approx(0.1), pytest.approx(0.5)), ("1", pytest.approx(0.6), pytest.approx(0.02))]
    assert any("rank 1 has no batch for 60%" in remark for remark in diagnose(found).remarks)


def test_a_run_that_is_too_young_is_told_so(tmp_path):
    """Three rows with training are the least."""
    write_metrics(tmp_path, ["1,10,0,10,10,0.1,128,1"])
    with pytest.raises(ConfigError, match="let the run go on"):
        read_signals(tmp_path)


def test_a_folder_without_metrics_is_told_so(tmp_path):
    """It may not be a run at all."""
    with pytest.raises(ConfigError, match="is this a run folder"):
        read_signals(tmp_path / "absent")


def test_broken_cells_are_left_out():
    """A half-written last row must not spoil the means."""
    row = {"trained_steps_per_s": "10", "env_steps_per_s": "x", "update_busy_share": "nan"}
    found = summarise([row] * 4, source="test")
    assert found.trained_steps_per_s == 10
    assert found.acted_steps_per_s == 10
    assert found.figures[UPDATE_BUSY] is None


def test_rates_count_the_time_between_updates_that_take_long():
    """An update every third second: two thousand steps in three seconds are not two thousand in one."""
    rows = [
        {
            "seconds": str(second),
            "trained_steps": str(2000 * (second // 3)),
            "trained_steps_per_s": "2000" if second % 3 == 0 else "0",
            "env_steps": str(700 * second),
            "env_steps_per_s": "700",
            "update_busy_share": "1" if second % 3 == 0 else "0",
        }
        for second in range(1, 40)
    ]
    found = summarise(rows, source="test")
    assert found.trained_steps_per_s == pytest.approx(2000 / 3, rel=0.15)
    assert found.acted_steps_per_s == pytest.approx(700)
    assert found.figures[UPDATE_BUSY] == pytest.approx(1 / 3, rel=0.2)


def test_the_report_names_bottleneck_knobs_and_remarks(capsys):
    """All that was decided is shown."""
    found = signals({UPDATE_BUSY: 0.97, RESTARTS: 2.0})
    diagnosis = diagnose(found)
    Console(width=100).print(render_diagnosis("small", found, diagnosis))
    text = capsys.readouterr().out
    assert "learner" in text
    assert "97%" in text
    assert all(knob.split(":")[0] in text for knob in diagnosis.knobs)
    assert "restarted 2 times" in text
