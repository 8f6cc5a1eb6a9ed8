"""Several learner ranks for tests: real processes in a real process group."""

import json
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from seedbed.learner_svc.ranks.ranks import Ranks, connect
from tests.support.preloaded import ForkedProcess


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_ranks(work: Callable[..., Any], size: int, folder: Path, *arguments: Any) -> list[Any]:
    """Call `work(ranks, *arguments)`, a function of a module, in `size` processes; what each returned, through JSON."""
    port, processes = free_port(), []
    (folder / "arguments").write_text(json.dumps(arguments))
    for rank in range(size):
        variables = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        processes.append(ForkedProcess(work_as_rank, work, folder, environment=os.environ | variables))
    try:
        codes = [process.wait(120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * size
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(size)]


def work_as_rank(work: Callable[..., Any], folder: Path) -> None:
    """One rank: connect, work, and leave the result."""
    torch.set_num_threads(1)
    ranks: Ranks = connect(60.0)
    arguments: Sequence[Any] = json.loads((folder / "arguments").read_text())
    result = work(ranks, *arguments)
    (folder / f"result-{ranks.rank}").write_text(json.dumps(result))
    ranks.close()
