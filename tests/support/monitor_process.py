"""A monitor in a process of its own."""

import os
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

from services.monitor.config import TOKEN_VARIABLE


@contextmanager
def running(runs, *words, token="", exit_code=0):
    """A monitor on an ephemeral port; what it printed, and (host, port). It ends with `exit_code`."""
    environment = {**os.environ, TOKEN_VARIABLE: token}
    command = [sys.executable, "-m", "services.monitor", f"monitor.runs={runs}", "monitor.port=0", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            said = process.stdout.readline()
            assert said, process.stderr.read()
            address = urlsplit(next(word for word in said.split() if word.startswith("http://")))
            yield said, (address.hostname, address.port)
        finally:
            process.terminate()
            rest, errors = process.communicate(timeout=20)
        assert process.returncode == exit_code, errors
        assert rest == ""
        assert "Traceback" not in errors
