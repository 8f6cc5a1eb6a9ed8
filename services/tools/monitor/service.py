"""The monitor as a service: binds, says where it is, serves until it is told to stop."""

import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from seedbed.services.tools.cli.runs import RECORD, RUNS
from seedbed.services.tools.monitor.access import MIN_TOKEN_CHARACTERS, Access
from seedbed.services.tools.monitor.config import TOKEN_VARIABLE, MonitorConfig, MonitorSettings
from seedbed.services.tools.monitor.links import Links
from seedbed.services.tools.monitor.listening import bind, make_server, shown_host
from seedbed.services.tools.monitor.pages import Visitor, is_loopback
from seedbed.services.tools.monitor.remote_reports import RemoteReports
from seedbed.services.tools.monitor.watch import RunWatch
from seedbed.services.tools.monitor.web import make_app
from seedbed.shared.errors import ConfigError
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.runtime.service import Service, main_from

MAX_TOKEN_FILE_CHARACTERS = 1024


async def serve(settings: MonitorSettings, service: Service) -> int:
    """Run the monitor until it is told to stop; exit code. Raises: ConfigError, before anything is served."""
    config = settings.monitor
    folder = find_runs(config.runs)
    is_local = is_loopback(config.published or config.host)
    token = choose_token(config, is_local=is_local)
    reports = RemoteReports()
    with bind(config.host, config.port) as listener, Visitor() as visitor, Reactor() as reactor:
        links = Links(config, service, reactor, reports)
        service.start(links.work(), "links")
        port = int(listener.getsockname()[1])
        shown_port = config.published_port or port
        rules = Access(token=token, is_local=is_local, port=shown_port)
        labels = {"run": "", "service": "monitor", "name": service.name, "incarnation": f"{service.incarnation:x}"}
        app = make_app(RunWatch(folder, visitor, reports), rules, service.metrics, labels)
        server = make_server(app)
        work = service.start(server.serve(sockets=[listener]), "http")
        service.ready(f"http://{shown_host(config.host)}:{port}/")
        address = f"http://{shown_host(config.published or config.host)}:{shown_port}/"
        print(f"runs of {folder} at {address}{sign_in(config, token)}", flush=True)
        await service.stopping.wait()
        server.should_exit = True
        await work
        links.close()
    return 0


def find_runs(chosen: Path | None) -> Path:
    """The folder of run folders. Raises: ConfigError if one was named that is none, or that this user may not read."""
    folder = (chosen or RUNS).resolve()
    try:
        if chosen is not None and not folder.is_dir():
            raise ConfigError(f"monitor.runs: {chosen} is no folder: name the one that holds the run folders")
        if (folder / RECORD).is_file():
            raise ConfigError(f"monitor.runs: {chosen} is a run itself: name the folder around it, {folder.parent}")
    except PermissionError as error:
        raise ConfigError(
            f"monitor.runs: user {os.geteuid()} may not read {folder}: let everybody read it (chmod -R a+rX runs), "
            "or in containers set SEEDBED_UID and SEEDBED_GID to its owner's numbers"
        ) from error
    return folder


def config_token(config: MonitorConfig) -> str:
    """The token that was given, read as it stands: as a setting, 12e4 would be a number. Raises: ConfigError."""
    given = os.environ.get(TOKEN_VARIABLE) or config.token
    return given if given or config.token_file is None else file_token(config.token_file)


def file_token(file: Path) -> str:
    """The token in a file, which is made with a new one if it is not there or empty.

    Raises: ConfigError if it can be neither read nor made, or others may read it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+", encoding="ascii") as opened:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            token = opened.read(MAX_TOKEN_FILE_CHARACTERS).strip()
            if not token:
                token = secrets.token_urlsafe(24)
                opened.write(token)  # without a line break: Prometheus sends what it finds
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"monitor.token_file: {file}: {getattr(error, 'strerror', None) or error}") from error
    if mode & 0o007:
        raise ConfigError(f"monitor.token_file: everybody may read {file} (mode {mode:04o}): chmod o-rwx {file}")
    return token


def choose_token(config: MonitorConfig, *, is_local: bool) -> str:
    """The token that visitors must show; empty: none is asked for, which only loopback allows.

    Raises: ConfigError for a token that could be guessed.
    """
    token = config_token(config)
    if token and (len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable()):
        source = f"{TOKEN_VARIABLE} or monitor.token_file"
        raise ConfigError(f"{source}: give at least {MIN_TOKEN_CHARACTERS} printable ASCII characters")
    return token or ("" if is_local else secrets.token_urlsafe(24))


def sign_in(config: MonitorConfig, token: str) -> str:
    """What follows the printed address: a token that was made is told here and nowhere else."""
    if not token:
        return ""
    if not config_token(config):
        return f"?token={token}"
    is_in_file = config.token_file is not None and not (os.environ.get(TOKEN_VARIABLE) or config.token)
    return f" (asks for the token in {config.token_file if is_in_file else TOKEN_VARIABLE})"


def main(argv: Sequence[str] | None = None) -> int:
    """The service's `main`; its exit code."""
    return main_from("monitor", MonitorSettings, serve, argv)
