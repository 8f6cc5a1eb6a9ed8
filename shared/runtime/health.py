"""Checks whether the service of this container is ready: exit status 0 or 1, and a line that says why.

    python -m seedbed.shared.runtime.health [--alive]

With `--alive` it checks whether a service that was ready still answers, for a supervisor that restarts hung services.
Ready means that it wrote its status file, and that the page named there answers for the same life. A service that was
refused for good leaves its cause beside; then that is what is said. Where several processes share a container, its file
names theirs, and all must be ready. Nothing but the standard library is imported: a container asks every few seconds.
"""

import contextlib
import http.client
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

CAUSE_VARIABLE = "SEEDBED_CAUSE_FILE"  # where a service leaves the error that ended it
STATUS_VARIABLE = "SEEDBED_RUNTIME__STATUS_FILE"
PARTS = "parts"  # in a status file: those of the processes that share the container
TIMEOUT_S = 3.0
MAX_PAGE_BYTES = 4 * 1024 * 1024


def check_ready(environment: Mapping[str, str]) -> str:
    """Return what keeps the service from being ready; empty if it is ready.

    Args:
      environment: variables, of which CAUSE_VARIABLE and STATUS_VARIABLE name the two files.
    """
    if cause := read_cause(environment.get(CAUSE_VARIABLE, "")):
        return cause
    file = environment.get(STATUS_VARIABLE, "")
    if not file:
        return f"{STATUS_VARIABLE} is not set: there is no status file to look at"
    return _check_status(file)


def check_alive(environment: Mapping[str, str]) -> str:
    """Return why a service that was ready no longer answers; empty if it does, is starting, or has left a cause."""
    file = environment.get(STATUS_VARIABLE, "")
    if read_cause(environment.get(CAUSE_VARIABLE, "")) or not file:
        return ""
    return _check_status(file, if_missing="")


def _check_status(file: str, *, if_missing: str = "not ready yet") -> str:
    """Return what is wrong with the service that writes this status file; empty if nothing is.

    Args:
      if_missing: what to return if there is no file yet, for the service or for one of several in this container.
    """
    try:
        status = json.loads(Path(file).read_bytes())
        if PARTS in status:
            problems = (_check_status(part, if_missing=if_missing) for part in status[PARTS])
            return next(filter(None, problems), "")
        page, expected = str(status["metrics"]), f'incarnation="{status["incarnation"]:x}"'
        served = str(status["endpoint"])
    except FileNotFoundError:
        return if_missing
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{file}: cannot be read: {error}"
    try:
        if served.startswith("http://"):
            return _visit_site(served)
        if expected not in _read(page, "/metrics"):
            return f"{page} answers for another life of this service"
    except (OSError, http.client.HTTPException) as error:
        return f"{page or served} does not answer: {error}"
    return ""


def read_cause(file: str) -> str:
    """Return the error that a service left in this file when it ended; empty if there is none."""
    try:
        return Path(file).read_text(errors="replace").strip() if file else ""
    except OSError:
        return ""


def leave_cause(text: str) -> None:
    """Write the error that ends this process into the file that CAUSE_VARIABLE names, if it names one.

    The file is replaced as a whole: processes that share it may be killed while they write, and one whole text stays.
    """
    file = os.environ.get(CAUSE_VARIABLE, "")
    if file:
        draft = Path(f"{file}.{os.getpid()}")
        try:
            draft.write_text(text + "\n")
            draft.replace(file)
        except OSError as error:
            print(f"{CAUSE_VARIABLE}: {file}: {error.strerror}", file=sys.stderr)
            with contextlib.suppress(OSError):
                draft.unlink()


def _read(address: str, path: str) -> str:
    """Return a page's text, at most MAX_PAGE_BYTES of it. Raises: OSError, HTTPException."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(MAX_PAGE_BYTES).decode(errors="replace")
    finally:
        connection.close()


def _visit_site(address: str) -> str:
    """Return what is wrong with a web page; empty if it answers, even by asking for a token. Raises: as `_read`."""
    connection = http.client.HTTPConnection(address.removeprefix("http://").strip("/"), timeout=TIMEOUT_S)
    try:
        connection.request("HEAD", "/")
        status = connection.getresponse().status
    finally:
        connection.close()
    return f"{address} answers with status {status}" if status >= 500 else ""


if __name__ == "__main__":
    problem = check_alive(os.environ) if "--alive" in sys.argv[1:] else check_ready(os.environ)
    print(problem or ("alive" if "--alive" in sys.argv[1:] else "ready"))
    sys.exit(1 if problem else 0)
