"""The examples of docs/use_policy.md, as a reader would copy them."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from seedbed.services.tools.cli import runs
from seedbed.services.tools.cli.evaluate import find_checkpoint
from seedbed.services.tools.cli.export import export_policy
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.runtime.config import EnvConfig
from tests.services.tools.cli.test_evaluate import make_run

PAGE = Path(__file__).parents[2] / "docs" / "use_policy.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("policy", [PolicyConfig(), PolicyConfig(lstm=4)], ids=["plain", "lstm"])
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_plays_an_episode(tmp_path, monkeypatch, capsys, number, policy):
    """By the policy in Python, and by its graph."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = make_run(runs.RUNS / "cartpole-20260101-000000", EnvConfig(id="CartPole-v1"), policy)
    export_policy(find_checkpoint(run, "latest"), Path("policy.onnx"))
    capsys.readouterr()
    Path("example.py").write_text(EXAMPLES[number])
    runpy.run_path("example.py")
    assert float(capsys.readouterr().out.split()[-1]) >= 8.0
