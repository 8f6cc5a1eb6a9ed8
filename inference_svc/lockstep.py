"""Deterministic mode: training groups join in a fixed order and act together, on weights that their unrolls determine.

| what | waits for | so that in every run the same |
|---|---|---|
| HELLO of a training group | the HELLOs of all, then the groups before it by actor and number | seeds and slots |
| HELLO of an evaluation group | the sessions of all training groups | slots |
| rows of a training group | those of all the others | batches |
| complete unrolls, then all rows | credit, which comes after the updates on the unrolls before | order and weights |
"""

import math

from seedbed.inference_svc.group import Group
from seedbed.shared.protocol.messages import Error, Hello, Reject

AWAIT_S = 5.0  # a group that keeps all the others waiting for longer is named
RESTART = "start the run anew, or without run.deterministic"
Name = tuple[str, int]  # actor, and number of its group


class Lockstep:
    """The training groups of a deterministic run. Owned by the service's loop; memory: a name for each group."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._names: set[Name] = set()  # of the groups that said HELLO
        self._num_admitted = 0
        self._waiting: set[Group] = set()
        self._lost: set[Name] = set()  # whose sessions have ended
        self._since = math.inf  # when the groups were last answered, or the newest one came; infinite while they act

    def refuse(self, hello: Hello, now: float) -> Reject | Error | None:
        """Return why a group that has no session gets none, for now or ever; None if it is this group's turn."""
        if hello.mode == "train":
            return self._refuse_training(hello, now)
        if hello.mode == "play":
            return _reject(hello, "games of people are not part of a deterministic run", "play a finished run instead")
        return _wait(hello) if self._num_admitted < self._num_groups else None

    def _refuse_training(self, hello: Hello, now: float) -> Reject | Error | None:
        name = _name(hello)
        if self._num_admitted == self._num_groups:
            what = "its session was lost" if name in self._names else f"it has its {self._num_groups} training groups"
            return _reject(
                hello, f"group {hello.group} of {hello.actor} cannot join a deterministic run: {what}", RESTART
            )
        if name not in self._names and len(self._names) == self._num_groups:
            return _reject(
                hello, f"inference.lockstep_groups is {self._num_groups}, and another training group came",
                "set it to the number of groups of all training actors",
            )  # fmt: skip
        if name not in self._names:
            self._names.add(name)
            self._since = now
        is_next = len(self._names) == self._num_groups and sorted(self._names)[self._num_admitted] == name
        return None if is_next else _wait(hello)

    def admitted(self, hello: Hello, now: float) -> None:
        """Note that a group has got its session."""
        if hello.mode == "train":
            self._num_admitted += 1
            self._since = now

    def acted(self, now: float) -> None:
        """Note that all groups have their actions, and that their next rows are awaited from now on."""
        self._since = now

    def awaited(self, now: float) -> list[str]:
        """Return the groups that have kept all others waiting for AWAIT_S, in words; none if there are none.

        Before all have joined they are those that have not come, then those without new rows: slow, hanging or gone.
        """
        if now - self._since < AWAIT_S:
            return []
        if len(self._names) < self._num_groups:
            return ["one that has not connected"] * (self._num_groups - len(self._names))
        if self._num_admitted < self._num_groups:
            return [_describe(sorted(self._names)[self._num_admitted])]
        waiting = {_name(group.session.hello) for group in self._waiting}
        return [_describe(name, is_lost=name in self._lost) for name in sorted(self._names - waiting)]

    def add(self, group: Group) -> None:
        """Note that a training group has new rows."""
        self._waiting.add(group)

    def discard(self, group: Group) -> None:
        """Forget a group whose session has ended. The others do not act any more, since no group takes its place."""
        self._waiting.discard(group)
        if group.session.hello.mode == "train":
            self._lost.add(_name(group.session.hello))

    def all_waiting(self) -> list[Group]:
        """Return all training groups in their order if each has new rows; else none."""
        if len(self._waiting) < self._num_groups:
            return []
        return sorted(self._waiting, key=lambda group: group.session.number)

    def release(self) -> None:
        """Note that the waiting groups act."""
        self._waiting.clear()
        self._since = math.inf


def _name(hello: Hello) -> Name:
    return hello.actor, hello.group


def _describe(name: Name, *, is_lost: bool = False) -> str:
    return f"group {name[1]} of {name[0]}" + (", which is gone" if is_lost else "")


def _wait(hello: Hello) -> Error:
    return Error(
        code="starting", scope="connection", session=0, nonce=hello.nonce, retryable=True,
        message="the groups of a deterministic run begin in a fixed order, and it is not this group's turn",
        hint="wait: it continues once all training groups have connected",
    )  # fmt: skip


def _reject(hello: Hello, message: str, hint: str) -> Reject:
    return Reject(nonce=hello.nonce, code="deterministic", retryable=False, message=message, hint=hint)
