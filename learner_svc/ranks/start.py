"""How the ranks of a learner find each other and agree on what they train, before any of them serves.

The chief tells its settings, so a rank needs none of its own but where it runs: its address, device and runtime.
"""

import json
import os
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic import ValidationError

from seedbed.learner_svc.config import LearnerConfig, LearnerSettings
from seedbed.learner_svc.ranks.ranks import Ranks, connect, place_of
from seedbed.learner_svc.ranks.rounds import Order, RankFigures
from seedbed.learner_svc.run.writer import producer_records
from seedbed.shared import __version__
from seedbed.shared.errors import ConfigError
from seedbed.shared.net.addresses import check_address
from seedbed.shared.policy.devices import device_of_number
from seedbed.shared.protocol.ledger import ProducerRecord
from seedbed.shared.runtime.config import RuntimeConfig

OWN_LEARNER_SETTINGS = ("bind", "advertise", "device")  # of the section [learner], that a rank does not take over
WILDCARDS = ("*", "0.0.0.0", "[::]", "::")
ONE_VERSION = "install one version of seedbed, or use one image, on the machines of all learner ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the chief tells every rank at the start."""

    epoch: int
    run_id: str
    host: str  # that the chief runs on
    folder: str  # of the run; the other ranks may not see it
    is_finished: bool  # there is nothing to train
    settings: dict[str, Any]
    producers: tuple[ProducerRecord, ...]  # of all ranks, in the checkpoint that the run goes on from

    def encode(self) -> bytes:
        """Return the bytes that are sent to every rank, JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Told":
        """Return what the chief told, from the bytes that `encode` made of it."""
        items = json.loads(data)
        return cls(**{**items, "producers": tuple(producer_records(items["producers"]))})


def version() -> str:
    """Return what all ranks must have alike: seedbed's version, and a check sum over the fields that they exchange."""
    names = [[item.name for item in fields(kind)] for kind in (Told, ProducerRecord, Order, RankFigures)]
    return f"{__version__}-{zlib.crc32(json.dumps(names).encode()):08x}"


def check_versions(versions: Sequence[str]) -> None:
    """Check the versions of all ranks, the chief's first. Raises: ConfigError if they differ, in every rank."""
    for rank, found in enumerate(versions):
        if found != versions[0]:
            raise ConfigError(
                f"learner rank {rank} has version {found} of seedbed, and rank 0 has {versions[0]}: {ONE_VERSION}"
            )


def join(learner: LearnerConfig) -> Ranks:
    """Meet the other ranks, as `connect` does, and see that all have one version.

    Raises: RankLostError if they do not come, ConfigError if the environment is wrong or their versions differ.
    """
    ranks = connect(learner.rank_timeout_s, update_s=learner.max_compute_s)
    check_versions([told.decode(errors="replace") for told in ranks.gather_bytes(version().encode())])
    return ranks


def settings_of_rank(own: LearnerSettings, told: Mapping[str, Any]) -> LearnerSettings:
    """Return the chief's settings, at this rank's address and on its device.

    Raises: ConfigError if this version of seedbed has other settings.
    """
    mine = own.learner.model_dump()
    learner = {**told["learner"], **{name: mine[name] for name in OWN_LEARNER_SETTINGS}}
    try:
        return LearnerSettings.model_validate({**told, "learner": learner, "runtime": own.runtime.model_dump()})
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(map(str, wrong["loc"]))
        raise ConfigError(
            f"the settings of learner rank 0 do not fit here ({name}: {wrong['msg']}): {ONE_VERSION}"
        ) from error


def place(settings: LearnerSettings, environment: Mapping[str, str] = os.environ) -> LearnerSettings:
    """Return the settings of a rank: a GPU of its own, and if torchrun started it, own ports, names and files too.

    torchrun gives all ranks the same settings. Without LOCAL_RANK, which it sets, every rank has ports, names and files
    of its own already, and all ranks are taken to be on one machine.

    Raises: ConfigError if the environment is wrong, or `learner.advertise` is.
    """
    rank, size = place_of(environment)
    local = environment.get("LOCAL_RANK")
    if size == 1:
        _check_advertise(settings.learner.advertise)
        return settings
    if local is not None and (not local.isdecimal() or int(local) >= size):
        raise ConfigError(f"LOCAL_RANK is {local!r} in the environment: it must be a number below WORLD_SIZE, {size}")
    changed: dict[str, Any] = {
        "device": device_of_number(settings.learner.device, rank if local is None else int(local))
    }
    runtime = settings.runtime
    if local is not None:
        for name in ("bind", "advertise"):
            changed[name] = _shifted(getattr(settings.learner, name), int(local))
        runtime = _runtime_of_rank(runtime, rank, int(local))
    _check_advertise(changed.get("advertise", settings.learner.advertise))
    return settings.model_copy(
        update={"learner": settings.learner.model_copy(update=changed), "runtime": runtime},
    )


def _runtime_of_rank(runtime: RuntimeConfig, rank: int, local: int) -> RuntimeConfig:
    """Return the settings with a name, files and a metrics port of the rank's own."""
    changed: dict[str, Any] = {"name": f"{runtime.name or 'learner'}-{rank}" if rank else runtime.name}
    if rank:
        for kind in ("status_file", "log_file"):
            path = getattr(runtime, kind)
            changed[kind] = None if path is None else path.with_name(f"{path.stem}-{rank}{path.suffix}")
    if runtime.metrics_address:
        changed["metrics_address"] = _shifted(runtime.metrics_address, local)
    return runtime.model_copy(update=changed)


def _shifted(address: str, number: int) -> str:
    """Return an address whose port is `number` higher; port 0, which picks a free one, stays. For ipc: another path."""
    if not number:
        return address
    if address.startswith("ipc://"):
        return f"{address}-{number}"
    host, _, port = address.rpartition(":")
    return address if not port.isdecimal() or port == "0" else f"{host}:{int(port) + number}"


def _check_advertise(address: str) -> None:
    """Raise ConfigError unless `learner.advertise` is empty or an address that inference can dial."""
    if not address:
        return
    try:
        check_address(address)
    except ConfigError as error:
        raise ConfigError(f"learner.advertise: {error}") from error
    if address.startswith("tcp://") and int(address.rpartition(":")[2]) == 0:
        raise ConfigError(f"learner.advertise is {address!r}, and nobody can dial port 0: give learner.bind a port too")


def check_addresses(addresses: Sequence[str]) -> None:
    """Check what all ranks gave as their addresses, the chief's first; every rank calls it, so that all end alike.

    Raises: ConfigError naming two ranks that have the same one. Inference would send both ranks' unrolls to one of
    them, and the other would wait for ever.
    """
    first: dict[str, int] = {}
    for rank, address in enumerate(addresses):
        if (other := first.setdefault(address, rank)) != rank:
            raise ConfigError(
                f"learner ranks {other} and {rank} would both be dialled at {address}: give each its own "
                "learner.advertise, or machines whose host names differ"
            )


def advertised(settings: LearnerSettings, endpoint: str, chief_host: str, host: str = "") -> str:
    """Return the address at which inference reaches this rank; the host `*` is the one at which it reaches the chief.

    Args:
      endpoint: the address that the rank's socket is bound to.
      chief_host: name of the host that the chief runs on.
      host: of this rank; empty: as the system names it.
    """
    if settings.learner.advertise:
        return settings.learner.advertise
    if not endpoint.startswith("tcp://"):
        return endpoint
    bound, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if bound not in WILDCARDS:
        return endpoint
    host = host or socket.gethostname()
    return f"tcp://*:{port}" if host == chief_host else f"tcp://{host}:{port}"
