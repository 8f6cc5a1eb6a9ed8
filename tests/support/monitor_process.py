"""A monitor in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from seedbed.services.tools.monitor.config import TOKEN_VARIABLE


@contextmanager
def running(runs, *words, token="", exit_code=0):
    """A monitor on an ephemeral port; what it printed, and (host, port). It ends with `exit_code`."""
    environment = {**os.environ, TOKEN_VARIABLE: token}
    command = [sys.executable, "-m", "seedbed.services.tools.monitor", f"monitor.runs={runs}", "monitor.port=0", *words]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [*command, f"runtime.status_file={folder}/status.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment,
        ) as process,
    ):  # fmt: skip
        try:
            said = process.stdout.readline()
            assert said, process.stderr.read()
            address = urlsplit(json.loads(Path(folder, "status.json").read_text())["endpoint"])
            yield said, (address.hostname, address.port)
        finally:
            process.terminate()
            rest, errors = process.communicate(timeout=20)
        assert process.returncode == exit_code, errors
        assert rest == ""
        assert "Traceback" not in errors
