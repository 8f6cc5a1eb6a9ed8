"""A headless Chromium that tests talk to over its debugging pipe: real pages, real time, no port and no driver.

Every wait has a deadline and is for a condition; nothing of it is left behind, not even after a failure.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

BROWSER = shutil.which("chromium")
DEADLINE_S = 60.0
LOOK_EVERY_S = 0.05
FLAGS = (
    "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page. `logged` is what its console said."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self.logged: list[str] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(item["targetId"] for item in targets if item["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Go to an address; returns when the navigation has begun."""
        answer = self.call("Page.navigate", url=address)
        assert not answer.get("errorText"), answer

    def size(self, width: int, height: int, *, is_phone: bool = False, scale: float = 1.0) -> None:
        """Of the window, CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )

    def prefer(self, scheme: str) -> None:
        """The "dark" or "light" colours."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression: str):
        """A JavaScript expression's value; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, what: str = "", deadline_s: float = DEADLINE_S):
        """The first true value of an expression; AssertionError with the page's text if it never is."""
        end = time.monotonic() + deadline_s
        while not (value := self.evaluate(expression)):
            if time.monotonic() > end:
                text = self.evaluate("document.body ? document.body.innerText : ''")
                raise AssertionError(f"not within {deadline_s:.0f} s: {what or expression}\n{text}\n{self.logged}")
            time.sleep(LOOK_EVERY_S)
        return value

    def shoot(self, file: Path, *, whole: bool = False) -> None:
        """A picture of the window, or of the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        file.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, whole: bool):
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def call(self, method: str, **parameters):
        """One command to the page."""
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, *, session: str = "", **parameters):
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        end = time.monotonic() + DEADLINE_S
        while True:
            message = self._receive(end, method)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.logged.append(json.dumps(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            entry = message["params"]["entry"]
            self.logged.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.logged.append(json.dumps(message["params"]["args"]))

    def _receive(self, end: float, what: str):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser did not answer {what}"
            piece = os.read(self._read, 1 << 20)
            assert piece, f"the browser ended before it answered {what}"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)


@contextmanager
def browsing(profile: Path):
    """A browser with an empty profile."""
    with ExitStack() as stack:
        commands, answers = os.pipe(), os.pipe()
        for descriptor in (*commands, *answers):
            stack.callback(_close, descriptor)
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [str(BROWSER), *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"]
        shell = f'exec 3<&{commands[0]} 4>&{answers[1]}; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *words], pass_fds=(commands[0], answers[1]), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(_end, process)
        _close(commands[0])
        _close(answers[1])
        yield Browser(commands[1], answers[0])


def _close(descriptor: int) -> None:
    with suppress(OSError):  # closed before
        os.close(descriptor)


def _end(process: subprocess.Popen) -> None:
    """The browser and all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
