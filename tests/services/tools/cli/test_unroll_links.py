"""How `seedbed explain` learns from logs which way unrolls travel."""

import io
import json
from pathlib import Path

from rich.console import Console

from seedbed.services.tools.cli.explain import FIGURES, Signals, diagnose
from seedbed.services.tools.cli.report import render_diagnosis
from seedbed.services.tools.cli.unroll_links import WAYS, UnrollLink, read_links

SHARED, SOCKET = WAYS["shared_memory"], WAYS["socket"]
BY_MEMORY = {"event": "learner_found", "task": "", "unrolls_by": "shared_memory"}
BY_SOCKET = {"event": "learner_found", "task": "", "unrolls_by": "socket", "because": "another host"}


def write_log(run_dir: Path, service: str, *records: dict[str, object]) -> None:
    """A service's log with these records, and a line that was cut off."""
    (run_dir / "logs").mkdir(exist_ok=True)
    lines = [json.dumps(record) for record in ({"event": "started"}, *records)]
    (run_dir / "logs" / f"{service}.jsonl").write_text("\n".join([*lines, '{"event": "learner_found", "unr']))


def test_every_inference_service_has_its_way(tmp_path: Path) -> None:
    """With the reason where it is not shared memory; other services' logs say nothing about it."""
    write_log(tmp_path, "inference-0", BY_MEMORY)
    write_log(tmp_path, "inference-1", BY_SOCKET)
    write_log(tmp_path, "actor-0", BY_MEMORY)
    assert read_links(tmp_path) == [
        UnrollLink(service="inference-0", rank=0, way=SHARED),
        UnrollLink(service="inference-1", rank=0, way=SOCKET, reason="another host"),
    ]
    assert read_links(tmp_path / "elsewhere") == []


def test_the_newest_way_counts(tmp_path: Path) -> None:
    """After a restart of the learner, and where the segment was given up in mid-run."""
    write_log(tmp_path, "inference-0", BY_SOCKET, BY_MEMORY)
    write_log(tmp_path, "inference-1", BY_MEMORY, {"event": "learner_refused", "code": "segment", "message": "gone"})
    write_log(tmp_path, "inference-2", BY_MEMORY, {"event": "learner_refused", "code": "rank", "message": "no"})
    assert [(link.way, link.reason) for link in read_links(tmp_path)] == [(SHARED, ""), (SOCKET, "gone"), (SHARED, "")]


def test_ranks_and_tasks_are_told_apart(tmp_path: Path) -> None:
    """Tasks whose unrolls go the same way to the same rank are one link; a session for weights alone is none."""
    of_rank = {"event": "learner_rank_found", "stream": 1, "unrolls_by": "socket", "because": "another host"}
    tasks = [{**BY_MEMORY, "task": task} for task in ("easy", "hard")]
    write_log(tmp_path, "inference-0", {"event": "learner_found", "task": ""}, *tasks, {**of_rank, "task": "easy"})
    assert read_links(tmp_path) == [
        UnrollLink(service="inference-0", rank=0, way=SHARED, tasks=("easy", "hard")),
        UnrollLink(service="inference-0", rank=1, way=SOCKET, reason="another host", tasks=("easy",)),
    ]


def test_the_report_has_a_line_for_each_link() -> None:
    """Naming the service, and the rank where there are several."""
    signals = Signals(trained_steps_per_s=1.0, acted_steps_per_s=1.0, figures=dict.fromkeys(FIGURES))
    links = [
        UnrollLink(service="inference-0", rank=0, way=SHARED),
        UnrollLink(service="inference-0", rank=1, way=SOCKET, reason="another host", tasks=("easy",)),
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(render_diagnosis("run", signals, diagnose(signals), links))
    lines = console.file.getvalue().splitlines()
    assert [SHARED in line for line in lines if "inference-0 → rank 0" in line] == [True]
    assert [f"{SOCKET} (easy): another host" in line for line in lines if "inference-0 → rank 1" in line] == [True]
