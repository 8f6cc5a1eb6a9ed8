"""The learner processes that train one policy together: ranks, as torchrun names them, and what they tell each other.

Every rank trains on batches of its own. Their losses are parts of one sum, and so are their gradients; all apply the
same sum, so their weights stay equal. Rank 0 is the chief: it alone publishes, evaluates and saves.

Rank and number come from the environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. What is sent is numbers and
bytes only.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch.distributed import PrefixStore, ReduceOp, Store, TCPStore  # type: ignore[attr-defined]

from seedbed.learner_svc.ranks.interface import choose_interface
from seedbed.learner_svc.ranks.life import agree_on_life
from seedbed.learner_svc.ranks.star import Star, open_star
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.protocol.layout import Array

MEET_S = 60.0  # how long, at least, a rank waits at the start for the others
RETRY_S = 0.5
CHIEF = 0
MAX_RANKS = 1024
SMALL_BYTES = 1 << 16  # a tensor that goes by way of the chief, not by the process group


class RankLostError(SeedbedError):
    """Another rank has died or does not answer. All ranks start again from the newest checkpoint."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class Exchange:
    """Numbers and bytes that all ranks tell each other; alone nothing is sent. The base of `StarExchange`."""

    def gather(self, numbers: Sequence[float]) -> list[Array]:
        """Return the numbers that every rank gave, each f64 [n], in the order of ranks."""
        return [np.frombuffer(told) for told in self.gather_bytes(np.array(numbers, np.float64).tobytes())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return what every rank gave, in the order of ranks."""
        return [data]

    def tell(self, data: bytes) -> bytes:
        """Return what the chief gave."""
        return data


class StarExchange(Exchange):
    """An exchange by way of the chief. Its methods block until every rank has called the same one.

    Owned by one thread at a time. Raises: RankLostError from every method if a rank is gone or silent.
    """

    def __init__(self, star: Star) -> None:
        self._star = star

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return what every rank gave, in the order of ranks."""
        with _naming_lost_ranks():
            return self._star.share(data)

    def tell(self, data: bytes) -> bytes:
        """Return what the chief gave."""
        with _naming_lost_ranks():
            return self._star.tell(data)


class Ranks(Exchange):
    """A learner that trains alone: nothing is sent. The base of `ConnectedRanks`, which several have.

    `rounds` is an exchange of its own, for the thread of the rounds.
    """

    rank = CHIEF
    size = 1
    rounds = Exchange()

    @property
    def is_chief(self) -> bool:
        """Whether this is the rank that publishes, evaluates and saves."""
        return self.rank == CHIEF

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of the ranks' tensors, which have one shape. Alone: the tensor itself."""
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        """Return the element-wise largest of the ranks' tensors. Alone: the tensor itself."""
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of the ranks' tensors. Alone: the tensor itself."""
        return tensor if self.is_alone else self.sum(tensor) / self.size

    def copy_from_chief(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite these tensors, which have the same names and shapes everywhere, by the chief's."""

    def close(self) -> None:
        """Leave the other ranks, when all work is done."""


ALONE = Ranks()


class ConnectedRanks(StarExchange, Ranks):
    """Several ranks: a star of connections for what is small, a process group of torch for what is large or on a GPU.

    Its methods block until every rank has called the same one.
    Owned by one thread at a time. Raises: RankLostError from every method if a rank is gone or silent for `timeout_s`,
    in the exchange for rounds for as long as an update may take beside that.
    """

    def __init__(
        self, rank: int, size: int, store: Store, host: str, *, timeout_s: float, update_s: float = 0.0
    ) -> None:
        """Meet the other ranks, which have the same store. `host`: where they reach the chief, a name or an address."""
        self.rank, self.size = rank, size
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _naming_lost_ranks():
            self._stars = [
                open_star(PrefixStore(purpose, store), host, rank, size, timeout_s=longest_s)
                for purpose, longest_s in (("update", timeout_s), ("rounds", timeout_s + update_s))
            ]
            super().__init__(self._stars[0])
            self.rounds = StarExchange(self._stars[1])
            choose_interface(self._star)
            torch.distributed.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
            )
            torch.distributed.barrier()  # connects all

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of the ranks' tensors."""
        return self._combine(tensor, ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Return the element-wise largest of the ranks' tensors."""
        return self._combine(tensor, ReduceOp.MAX)

    def _combine(self, tensor: Tensor, operation: ReduceOp.RedOpType) -> Tensor:
        combined = tensor.detach().clone(memory_format=torch.contiguous_format)
        with _naming_lost_ranks():
            if combined.device.type != "cpu" or combined.nbytes > SMALL_BYTES:
                torch.distributed.all_reduce(combined, op=operation)
                return combined
            if combined.numel():
                told = self._star.gather(_bytes_of(combined))
                if told:
                    parts = torch.stack([_tensor_like(combined, data) for data in told])
                    combined = parts.sum(0) if operation == ReduceOp.SUM else parts.amax(0)
                combined = _tensor_like(combined, self._star.tell(_bytes_of(combined)))
        return combined

    def copy_from_chief(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite these tensors by the chief's."""
        for name in sorted(tensors):
            with _naming_lost_ranks(), torch.no_grad():
                sent = tensors[name].contiguous()
                torch.distributed.broadcast(sent, CHIEF)
                if sent is not tensors[name]:
                    tensors[name].copy_(sent)

    def close(self) -> None:
        """Leave the other ranks, when all work is done."""
        for star in self._stars:
            star.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _tensor_like(like: Tensor, data: bytes) -> Tensor:
    """Return the tensor that was sent as `data`. Raises: RuntimeError if it has another size."""
    return torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)


@contextmanager
def _naming_lost_ranks() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = re.sub(r"^\[\S+:\d+\]\s*", "", lines[0]).split(". ")[0]  # without the place in torch's source
        raise RankLostError(f"another learner rank is gone or silent ({reason}): all of them start again") from error


def place_of(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return rank and number of ranks that the environment tells: (0, 1) if it tells nothing.

    Raises: ConfigError naming the variable that is wrong.
    """
    size = _number(environment, "WORLD_SIZE", 1, 1, MAX_RANKS)
    rank = _number(environment, "RANK", 0, 0, size - 1)
    if size > 1:
        _number(environment, "MASTER_PORT", 0, 1, 65535)
        if not environment.get("MASTER_ADDR"):
            raise ConfigError(f"WORLD_SIZE is {size} and MASTER_ADDR is not set: set it to the host of rank 0")
    return rank, size


def ranks_here(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks of the run are on this machine, as `seedbed train` and torchrun tell; 1 if nothing does.

    Raises: ConfigError if the variable is wrong.
    """
    return _number(environment, "LOCAL_WORLD_SIZE", 1, 1, MAX_RANKS)


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"{name} is {text!r} in the environment: it must be a number from {least} to {most}")
    return int(text)


def connect(timeout_s: float, environment: Mapping[str, str] = os.environ, *, update_s: float = 0.0) -> Ranks:
    """Meet the other ranks that the environment tells of; alone without any.

    Blocks up to MEET_S, or `timeout_s` if that is longer.

    Raises: RankLostError if they do not come, ConfigError if the environment is wrong.
    """
    rank, size = place_of(environment)
    if size == 1:
        return ALONE
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    is_host = rank == CHIEF and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    deadline = time.monotonic() + max(MEET_S, timeout_s)
    while True:
        with _naming_lost_ranks():
            store: Store = TCPStore(
                address, port, is_master=is_host, wait_for_workers=False,
                timeout=timedelta(seconds=max(1.0, deadline - time.monotonic())),
            )  # fmt: skip
            try:
                life = agree_on_life(store, rank, size, deadline)
            except (OSError, RuntimeError):
                if is_host or time.monotonic() > deadline:
                    raise
                life = ""  # it was the store of ranks that were about to end: this one was started before they noticed
        if life:
            own = PrefixStore(life, store)
            return ConnectedRanks(rank, size, own, address, timeout_s=timeout_s, update_s=update_s)
        del store
        time.sleep(RETRY_S)
