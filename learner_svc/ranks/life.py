"""How ranks that meet at a store know that all of them are of one life: those that lost one begin another together.

The store may outlive them, as that of torchrun's agent does, and hold what ranks of an earlier life have left. A rank
may also come back before the others have noticed that it was gone.

| step | who | writes |
|---|---|---|
| 1 | the chief | the id of a new life, over that of the last |
| 2 | every other rank, for each id that it sees | its own number, drawn at its start |
| 3 | the chief, once all have | these numbers: a rank that does not find its own waits for another id |
"""

import json
import secrets
import time

from torch.distributed import Store  # type: ignore[attr-defined]

POLL_S = 0.1
LIFE = "life"  # key of the id


def agree_on_life(store: Store, rank: int, size: int, deadline: float) -> str:
    """Return the id of the life that this rank and all others begin now. Blocks.

    Args:
      deadline: on the monotonic clock.
    Raises: TimeoutError if not all have come by then; RuntimeError if the store is gone.
    """
    return _begin_life(store, size, deadline) if rank == 0 else _join_life(store, rank, deadline)


def _begin_life(store: Store, size: int, deadline: float) -> str:
    """Draw the id of a life, wait until every other rank has answered it, and confirm their numbers; return the id."""
    life = secrets.token_hex(8)
    store.set(LIFE, life)
    keys = {rank: f"{life}/{rank}" for rank in range(1, size)}
    while missing := [str(rank) for rank, key in keys.items() if not store.check([key])]:
        _wait(deadline, f"learner ranks {', '.join(missing)} have not come")
    store.set(f"{life}/met", json.dumps({rank: store.get(key).decode() for rank, key in keys.items()}))
    return life


def _join_life(store: Store, rank: int, deadline: float) -> str:
    """Answer each id that the chief writes, and return the one that it confirms with this rank's own number."""
    own, answered = secrets.token_hex(8), ""
    while True:
        life = store.get(LIFE).decode() if store.check([LIFE]) else ""
        if life != answered:
            store.set(f"{life}/{rank}", own)
            answered = life
        if life and store.check([f"{life}/met"]) and json.loads(store.get(f"{life}/met"))[str(rank)] == own:
            return life
        _wait(deadline, "the chief has not met all ranks")


def _wait(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(problem)
    time.sleep(POLL_S)
