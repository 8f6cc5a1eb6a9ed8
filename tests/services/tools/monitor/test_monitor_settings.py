"""A run's settings on the page: flat, without secrets, and which of them set a run apart; its logs likewise."""

import json
import os

import pytest

from seedbed.services.tools.monitor.logs import MAX_LINES, read_logs
from seedbed.services.tools.monitor.settings import HIDDEN, MAX_CHARACTERS, differences, flatten, hide_secrets


def test_settings_are_flat_and_without_secrets():
    """Sections of one process stay out, and values whose name says what they are; names that resemble these stay."""
    found = flatten(
        {
            "run": {"seed": 3, "until": ""},
            "env": {"kwargs": {"api_key": "k", "token": "t", "nested": {"db_password": 1}, "keyboard": "qwerty"}},
            "policy": {"hidden": [64, 64], "network_kwargs": {}},
            "tasks": {"short": {"weight": 2.0, "env": {"kwargs": {"url": "https://me:pass@host/?auth=x&level=3"}}}},
            "monitor": {"token": "secret"},
            "runtime": {"keys": "/keys"},
        }
    )
    assert found == {
        "run.seed": "3", "run.until": '""', "env.kwargs.api_key": HIDDEN, "env.kwargs.token": HIDDEN,
        "env.kwargs.nested.db_password": HIDDEN, "env.kwargs.keyboard": "qwerty", "policy.hidden": "[64, 64]",
        "policy.network_kwargs": "{}", "tasks.short.weight": "2.0",
        "tasks.short.env.kwargs.url": f"https://{HIDDEN}@host/?auth={HIDDEN}&level=3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token=abc next", f"token={HIDDEN} next"),
        ('{"password": "a b", "x": 1}', f'{{"password": {HIDDEN}, "x": 1}}'),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {HIDDEN}"),
        ("Authorization: Basic dXNl", f"Authorization: Basic {HIDDEN}"),
        ("auth: Bearer abc, level 3", f"auth: Bearer {HIDDEN}, level 3"),
        ("WANDB_API_KEY=abc", f"WANDB_API_KEY={HIDDEN}"),
        ('accessToken = "a b" and more', f"accessToken = {HIDDEN} and more"),
        (r'{"token": "a\"b", "x": 1}', f'{{"token": {HIDDEN}, "x": 1}}'),
        ('a line that ends within token="a b', f"a line that ends within token={HIDDEN}"),
        ("postgres://u:p/w@host/db", f"postgres://{HIDDEN}@host/db"),
        ("https://host:80/a then b@c", "https://host:80/a then b@c"),
        ("12 tokens per second, key left=0", "12 tokens per second, key left=0"),
        ("the key error: KeyError 'x'", "the key error: KeyError 'x'"),
    ],
)
def test_what_looks_like_a_secret_in_a_text_is_hidden(text, shown):
    """And nothing else."""
    assert hide_secrets(text) == shown


def test_a_secret_is_hidden_before_its_text_is_cut(tmp_path):
    """A setting that is too long for the page, and a line of a log; a name in camelCase is a name too."""
    long = "x" * (MAX_CHARACTERS - 10) + ' token="SECRET SECRET"'
    assert flatten({"env": {"kwargs": {"text": long, "accessToken": "SECRET"}}}) == {
        "env.kwargs.text": (long[: MAX_CHARACTERS - 3] + HIDDEN)[:MAX_CHARACTERS] + "…",
        "env.kwargs.accessToken": HIDDEN,
    }
    write_log(tmp_path, "actor-0.stderr", ["x" * 984 + ' token="SECRET SECRET"'])
    assert "SECRET" not in read_logs(tmp_path)[0].text


def test_a_run_is_set_apart_by_what_most_of_its_like_have_otherwise():
    """The odd one out by its value, of two different ones both; what one does not have sets nobody apart."""
    usual = {"algorithm.learning_rate": "0.1", "run.dir": "a", "run.seed": "1", "policy.network": "mlp"}
    odd = usual | {"algorithm.learning_rate": "0.2", "run.dir": "b"}
    older = {key: value for key, value in usual.items() if key != "policy.network"}
    assert differences([usual, odd, usual, older]) == [{}, {"algorithm.learning_rate": "0.2"}, {}, {}]
    assert differences([usual, usual | {"run.seed": "2"}]) == [{"run.seed": "1"}, {"run.seed": "2"}]
    assert differences([usual]) == [{}]


def write_log(run, name, lines):
    (run / "logs").mkdir(parents=True, exist_ok=True)
    (run / "logs" / name).write_text("".join(f"{line}\n" for line in lines))


def log_line(second, level="info", **figures):
    stamp = f"2026-01-01T00:00:{second:02}Z"
    return json.dumps({**figures, "event": "said", "level": level, "timestamp": stamp, "name": "s", "incarnation": "1"})


def test_the_lines_of_all_services_come_by_time_and_from_a_level_on(tmp_path):
    """A line that is none of the log's, as of a traceback, counts as a warning; secrets are hidden."""
    write_log(tmp_path, "learner.jsonl", [log_line(1), log_line(3, "error", token="abc"), "", "no JSON"])
    write_log(tmp_path, "actor-0.jsonl", [log_line(2, "debug", steps=5)])
    write_log(tmp_path, "learner.stderr", ["ValueError: it broke"])
    every = read_logs(tmp_path, level="debug")
    assert [line.text for line in every[:3]] == ["said", "said  steps=5", f"said  token={HIDDEN}"]
    assert {line.text for line in every[3:]} == {"no JSON", "ValueError: it broke"}
    assert [line.level for line in read_logs(tmp_path, level="error")] == ["error"]
    assert read_logs(tmp_path / "absent") == []


def test_a_log_that_leads_elsewhere_or_is_endless_is_bounded(tmp_path):
    """Links and pipes are passed over; of a long file its end is read."""
    (tmp_path / "secret.jsonl").write_text(log_line(1) + "\n")
    write_log(tmp_path, "long.jsonl", [log_line(n % 60, number=n) for n in range(5 * MAX_LINES)])
    (tmp_path / "logs" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    os.mkfifo(tmp_path / "logs" / "pipe.jsonl")
    lines = read_logs(tmp_path)
    assert len(lines) == MAX_LINES
    assert {line.service for line in lines} == {"s"}
    assert any(line.text.endswith(f"number={5 * MAX_LINES - 1}") for line in lines)
