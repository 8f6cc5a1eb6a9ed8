"""What `seedbed explain` decides, from numbers."""

import pytest
from rich.console import Console

from seedbed.services.tools.cli.explain import KNOBS, Bottleneck, Signals, diagnose, read_signals, summarise
from seedbed.services.tools.cli.report import render_diagnosis
from seedbed.shared.errors import ConfigError


def signals(**figures) -> Signals:
    """A run in which nothing is busy: 128 lanes at 10 K steps/s, a cycle of 12.8 ms."""
    usual = {
        "trained_steps_per_s": 10_000.0,
        "acted_steps_per_s": 10_000.0,
        "update_busy_share": 0.3,
        "batch_wait_ms": 5.0,
        "batch_fill": 64.0,
        "lanes": 128.0,
        "queue_wait_ms": 0.5,
        "forward_ms": 1.0,
        "inference_lag_ms": 0.3,
        "env_busy_share": 0.6,
        "cores": 16,
    }
    return Signals(**(usual | figures))


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"update_busy_share": 0.97}, Bottleneck.LEARNER),
        ({"forward_ms": 6.0}, Bottleneck.INFERENCE),  # 156 passes/s of 6 ms: busy 94 %
        ({"env_busy_share": 0.95}, Bottleneck.ENVIRONMENT),
        ({"env_busy_share": 0.97, "update_busy_share": 0.9}, Bottleneck.ENVIRONMENT),
        ({"queue_wait_ms": 8.0}, Bottleneck.BATCH_WAIT),
        ({"inference_lag_ms": 80.0}, Bottleneck.NETWORK),
        ({"env_busy_share": 0.1}, Bottleneck.NETWORK),
        ({}, Bottleneck.ENVIRONMENT),
        ({"env_busy_share": None}, Bottleneck.ENVIRONMENT),
        ({"update_busy_share": 0.7, "forward_ms": 4.0, "env_busy_share": 0.6, "cores": 2}, Bottleneck.CORES),
    ],
)
def test_the_bottleneck_is_named(figures, expected):
    """Who is busy all the time; if nobody is, the longest part of a lane's cycle."""
    diagnosis = diagnose(signals(**figures))
    assert diagnosis.bottleneck is expected
    assert diagnosis.evidence
    assert diagnosis.knobs


def test_the_cycle_is_the_time_between_two_steps_of_a_lane():
    """Lanes over steps per second."""
    assert signals().cycle_ms == pytest.approx(12.8)
    assert signals(lanes=None).cycle_ms is None


def test_inferences_busy_share_counts_its_replicas():
    """Two replicas share the forward passes."""
    assert signals(forward_ms=3.2).inference_busy_share == pytest.approx(0.5)
    assert signals(forward_ms=3.2, inference_services=2.0).inference_busy_share == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"dropped_share": 0.1}, "10.0% of the acted steps were too old"),
        ({"lag_max": 60.0, "max_policy_lag": 64.0}, "policy lag reaches 60"),
        ({"remarked": {"effective_sample_size": 0.3}}, "30% of its steps"),
        ({"remarked": {"explained_variance": -0.5}}, "value function"),
        ({"actor_restarts": 3.0}, "restarted 3 times"),
    ],
)
def test_what_else_is_wrong_is_remarked(figures, words):
    """Not the bottleneck, but worth a look."""
    assert any(words in remark for remark in diagnose(signals(**figures)).remarks)


def test_groups_that_a_deterministic_run_waits_for_at_its_end_are_remarked():
    """Nothing is trained any more, so their number is in the rows after the last update."""
    row = {"seconds": "1", "trained_steps_per_s": "10", "env_steps_per_s": "10", "inference_awaited_groups": "0"}
    hung = {**row, "trained_steps_per_s": "0", "inference_awaited_groups": "2"}
    assert summarise([row] * 4, source="s").awaited_groups == 0
    signals = summarise([*[row] * 4, hung], source="s")
    assert signals.awaited_groups == 2
    assert "groups_awaited" in diagnose(signals).remarks[0]


def test_a_healthy_run_gets_no_remarks():
    """Nothing is invented."""
    healthy = {"explained_variance": 0.9, "effective_sample_size": 0.9, "log_rho_mean_abs_lag0": 1e-6}
    assert diagnose(signals(lag_max=5.0, max_policy_lag=64.0, remarked=healthy)).remarks == ()


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
    found = read_signals(tmp_path, max_policy_lag=8.0, cores=2)
    assert found.trained_steps_per_s == pytest.approx(150.0)
    assert found.update_busy_share == pytest.approx(0.5)
    assert found.lanes == 128
    assert found.lag_max == 4.0
    assert found.dropped_share == pytest.approx(40 / 360)
    assert found.env_busy_share is None


def test_waits_of_learner_ranks_name_the_slowest():
    """Of the ranks that trained last: a resumed run may have fewer than before."""
    row = {"seconds": "1", "trained_steps_per_s": "100", "rank_batch_wait_share/2": "", "rank_ranks_wait_share/2": ""}
    waits = {"0": ("0.1", "0.5"), "1": ("0.6", "0.02")}
    for rank, (batch, ranks) in waits.items():
        row |= {f"rank_batch_wait_share/{rank}": batch, f"rank_ranks_wait_share/{rank}": ranks}
        row[f"rank_lanes_per_s/{rank}"] = "64"
    found = summarise([row] * 6, source="rows")
    shares = [(rank.name, rank.batch_wait_share, rank.ranks_wait_share) for rank in found.ranks]
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
    assert found.update_busy_share is None


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
    assert found.update_busy_share == pytest.approx(1 / 3, rel=0.2)


def test_the_report_names_bottleneck_knobs_and_remarks(capsys):
    """All that was decided is shown."""
    found = signals(update_busy_share=0.97, actor_restarts=2.0)
    diagnosis = diagnose(found)
    Console(width=100).print(render_diagnosis("small", found, diagnosis))
    text = capsys.readouterr().out
    assert "learner" in text
    assert "97%" in text
    assert all(knob.split(":")[0] in text for knob in diagnosis.knobs)
    assert "restarted 2 times" in text
