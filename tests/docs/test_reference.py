"""The site's reference has every command, setting and metric of the code, and no link of the site is broken."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from docs.generator import dashboard, reference
from seedbed.services.tools.cli.app import app
from seedbed.services.tools.cli.settings import list_settings
from seedbed.shared.figures import actor, inference, learner, monitor, service
from seedbed.shared.figures.columns import COLUMNS
from seedbed.shared.figures.declare import declared

ROOT = Path(__file__).parents[2]


def words(text: str) -> str:
    """A table's text as a reader sees it."""
    return html.unescape(text)


def test_every_setting_is_listed_with_what_it_is_for() -> None:
    """By section, each with its own introduction."""
    shown = words(reference.settings())
    for item in list_settings():
        assert f"| `{item.name}` |" in shown
        assert " ".join(item.description.split()) in shown
    assert re.findall(r"^## `\[(\w+)\]`$", shown, re.MULTILINE) == list(reference.SECTIONS)


def test_every_command_is_listed_with_its_options() -> None:
    """Those of subcommands too."""
    shown = words(reference.commands())
    waiting = [("seedbed", typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        if " " in path:
            assert f"`{path}`" in shown
        for option in (name for item in command.params for name in item.opts if name.startswith("-")):
            assert f"<code>{option}" in shown or f", {option}" in shown
        waiting += [(f"{path} {name}", inner) for name, inner in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize("name", ["actor", "inference", "learner"])
def test_metrics_have_names_kinds_and_meanings(name: str) -> None:
    """As Prometheus shows them; `tests/system/test_monitor.py` compares them with those of a real run."""
    rows = reference.TABLES[f"{name}_metrics"]().splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        metric, kind, _, meaning = row.strip("| ").split(" | ")
        assert re.fullmatch(r"`seedbed_[a-z0-9_]+`", metric)
        assert (kind == "counter") == metric.endswith("_total`")
        assert meaning


def test_every_column_is_listed_with_what_it_tells() -> None:
    """Once each."""
    rows = [row.strip("| ").split(" | ") for row in reference.TABLES["columns"]().splitlines()[2:]]
    assert [row[0].strip("`") for row in rows] == [column.name for column in COLUMNS]
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
    assert all(column.meaning for column in COLUMNS)


def test_the_dashboard_is_that_of_the_declared_metrics() -> None:
    """`python -m docs.generator.dashboard` writes it; the alert rules name no other metric either."""
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.text()
    known = {item.sample for module in (actor, inference, learner, monitor, service) for item in declared(module)}
    known |= {f"{learner.POLICY_LAG.family}_count"}
    rules = (ROOT / "compose" / "prometheus-alerts.yml").read_text(encoding="utf-8")
    named = {
        name for line in re.findall(r"expr:((?:.*\n(?=  {10}))*.*)", rules) for name in re.findall(r"seedbed_\w+", line)
    }
    assert named
    assert named <= known


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    """Strictly; and what it shows is fetched from no other host."""
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert built.returncode == 0, built.stdout + built.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<!-- generated" not in text
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?:[^"]+"', text) == []
