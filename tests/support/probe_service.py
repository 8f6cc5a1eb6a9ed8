"""A service that ends in the way that [run] name says: a program for the tests of `seedbed.shared.runtime.service`."""

import asyncio
import os
import signal
import subprocess
import sys

from pydantic import BaseModel

from seedbed.shared.errors import EnvError, RejectedError
from seedbed.shared.runtime import service as service_module
from seedbed.shared.runtime.config import RunConfig, RuntimeConfig
from seedbed.shared.runtime.service import Service, main_from


class ProbeSettings(BaseModel):
    """What the probe reads."""

    run: RunConfig = RunConfig()
    runtime: RuntimeConfig = RuntimeConfig()


def fail() -> None:
    """The failure of tasks and callbacks."""
    raise EnvError("the environment broke")


async def fail_later() -> None:
    """A task that fails."""
    fail()


async def serve(settings: ProbeSettings, service: Service) -> int:
    """Be ready, then end as asked."""
    way = settings.run.name
    service.ready("tcp://127.0.0.1:1", run_id="r")
    print("ready", flush=True)
    if way == "done":
        return 0
    if way == "code":
        return 7
    if way == "reject":
        raise RejectedError("the spaces differ\nset env.id")
    if way == "crash":
        raise ValueError("boom")
    if way == "task":
        service.start(fail_later(), "broken")
    if way == "callback":
        asyncio.get_running_loop().call_soon(fail)
    if way == "stuck":
        service_module.MAX_DRAIN_S = 0.05
    await service.stopping.wait()
    if way in ("stuck", "slow"):
        print("draining", flush=True)
        await asyncio.Event().wait()
    return 0


def launch() -> None:
    """Be a launcher: start a service that is to die with this process, say its process id, wait."""
    command = [sys.executable, "-m", "tests.support.probe_service", "runtime.metrics_address=", "run.name=wait"]
    environment = os.environ | {service_module.DIE_WITH_PARENT: str(os.getpid())}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        print(child.pid, flush=True)
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1:] == ["launch"]:
        launch()
    sys.exit(main_from("probe", ProbeSettings, serve))
