"""How unrolls travel from each inference service to the learner, from the services' logs in a run folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAYS = {"shared_memory": "shared memory", "socket": "socket (TCP)"}
FOUND, REFUSED = ("learner_found", "learner_rank_found"), "learner_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrollLink:
    """The newest way of the unrolls of an inference service to one learner rank, for some tasks alike."""

    service: str
    rank: int  # 0: the chief, or the only learner
    way: str  # a value of WAYS
    reason: str = ""  # why it is not shared memory
    tasks: tuple[str, ...] = ()  # none in a run with one environment


def read_links(run_dir: Path) -> list[UnrollLink]:
    """Return the links of all inference services whose logs are in the run folder, by service, rank and way."""
    links: list[UnrollLink] = []
    for file in sorted(run_dir.glob("logs/inference*.jsonl")):
        newest: dict[tuple[int, str], tuple[str, str]] = {}  # by rank and task
        for record in _records(file):
            key = int(record.get("stream", 0)), str(record.get("task", ""))
            if record["event"] in FOUND and record.get("unrolls_by") in WAYS:
                newest[key] = WAYS[record["unrolls_by"]], str(record.get("because", ""))
            elif record["event"] == REFUSED and record.get("code") == "segment":  # given up in mid-run
                newest[key] = WAYS["socket"], str(record.get("message", ""))
        alike: dict[tuple[int, str, str], list[str]] = {}
        for (rank, task), (way, reason) in sorted(newest.items()):
            alike.setdefault((rank, way, reason), []).extend([task] if task else [])
        links += [
            UnrollLink(service=file.stem, rank=rank, way=way, reason=reason, tasks=tuple(tasks))
            for (rank, way, reason), tasks in alike.items()
        ]
    return links


def _records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the log's records about the link with the learner; what cannot be read is left out."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"learner_' not in line:
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and record.get("event") in (*FOUND, REFUSED):
                    yield record
    except OSError:
        return
