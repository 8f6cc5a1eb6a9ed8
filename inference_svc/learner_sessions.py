"""The ways to the learner: over one connection a session for each task, so that no task's backlog stops another's.

A run with one environment has one way, named "". With tasks that one reads weights and beats; each task's own way is
opened by the first environments that come with it. Pure, as `upstream`: takes `now`, returns frames and events.
"""

from collections import deque
from collections.abc import Callable, Sequence

from seedbed.inference_svc.episodes import EpisodeReport
from seedbed.inference_svc.group import Group
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.inference_svc.upstream import Event, Frames, LearnerLink, Refused, Welcomed
from seedbed.shared.protocol.compatibility import Incompatibility, judge_task
from seedbed.shared.protocol.messages import (
    Bye,
    Challenge,
    Credit,
    Message,
    Pong,
    ProducerWelcome,
    Reject,
    TaskEnv,
)
from seedbed.shared.protocol.rows import EnvSpec

MAX_EARLY = 128  # tasks that introduce themselves before the learner has said which there are


class LearnerSession:
    """One task's way: its conversation, the groups that wait for its credit, what happened in it."""

    def __init__(self, task: str, link: LearnerLink) -> None:
        self.task, self.link = task, link
        self.held: deque[Group] = deque()
        self.episodes = EpisodeReport(link.outbox)

    def pass_on(self, group: Group) -> bool:
        """Hand a group's complete unroll over if the learner takes it now; whether it does."""
        if not self.link.outbox.can_send(group.lanes.count):
            return False
        self.push(group)
        return True

    def push(self, group: Group) -> None:
        """Hand a group's complete unroll to the link, which keeps it until the learner takes it."""
        writer, session = group.lanes.rows, group.session
        assert isinstance(writer, UnrollWriter)
        for unroll in writer.complete():
            self.link.outbox.push(
                unroll.lanes, [unroll.buffer], actor=session.hello.actor, group=session.id,
                first_lane=unroll.first_lane, start=unroll.start,
            )  # fmt: skip


class LearnerSessions:
    """Every task's way. Owned by inference's loop; memory: the outboxes, at most one for each task of the run."""

    def __init__(
        self, *, name: str, incarnation: int, library_version: str, load: Callable[[], tuple[tuple[str, float], ...]]
    ) -> None:
        def link(task: str) -> LearnerLink:
            return LearnerLink(
                name=name, incarnation=incarnation, library_version=library_version, load=load, task=task
            )

        self._link = link
        self.main = link("")
        self.tasks: tuple[TaskEnv, ...] | None = None  # of the run; None until its learner has said so
        self._by_task = {"": LearnerSession("", self.main)}
        self._early: dict[str, EnvSpec] = {}

    def of(self, task: str) -> LearnerSession:
        """The way of a task that was introduced."""
        return self._by_task[task]

    @property
    def all(self) -> list[LearnerSession]:
        """Every way that is open or to be opened."""
        return list(self._by_task.values())

    def judge(self, task: str, spec: EnvSpec) -> Incompatibility | None:
        """Why these environments have no place in the run, as far as the learner has told; None if they may have."""
        if self.tasks is None:
            return None
        misfit = judge_task(task, spec if self.tasks else None, self.tasks)
        stream = self._by_task.get(task) if task else None
        refused = stream.link.refused.get(spec) if stream is not None else None
        return misfit or (Incompatibility(refused.code, refused.message, refused.hint) if refused is not None else None)

    def first_spec(self, task: str) -> EnvSpec | None:
        """What the first environments of a task said that they are."""
        stream = self._by_task.get(task)
        return stream.link.spec if stream is not None and task else None

    def introduce(self, task: str, spec: EnvSpec, now: float) -> None:
        """Environments of a task came that `judge` has nothing against: open its way."""
        if not task:
            self.main.introduce(spec, now)
        elif self.tasks is None:
            if len(self._early) < MAX_EARLY:
                self._early.setdefault(task, spec)
        elif task in self._by_task:
            self._by_task[task].link.introduce(spec, now)
        else:
            stream = self._by_task[task] = LearnerSession(task, self._link(task))
            stream.link.introduce(spec, now)
            if self.main.is_connected:
                stream.link.connected(now)

    def discard_unrolls(self) -> None:
        """What is kept fits the learner no longer."""
        for stream in self.all:
            stream.link.discard_unrolls()

    # The connection

    def connected(self, now: float) -> None:
        """The connection to the learner is open: each session may say HELLO."""
        for stream in self.all:
            stream.link.connected(now)

    def disconnected(self, now: float) -> None:
        """The connection to the learner is closed: sessions wait for the next."""
        for stream in self.all:
            stream.link.disconnected(now)

    def poll(self, now: float) -> list[Frames]:
        """The messages that are due now, each as frames."""
        before = self.main.pinged_ms
        due = self.main.poll(now)
        for stream in self.all[1:] if self.main.welcome is not None else ():
            if self.main.pinged_ms != before:
                stream.link.outbox.pinged(self.main.pinged_ms)
            due += stream.link.poll(now)
        return due

    def receive(self, message: Message, payload: Sequence[bytes], now: float) -> list[tuple[str, Event]]:
        """What a message from the learner means, and for which task. The way of a task that it has not is closed."""
        events = []
        for stream in self.all:
            stream.link.heard_at = now
        for link in self._addressees(message):
            events += [(link.task, event) for event in link.receive(message, payload, now)]
        for task, event in events:
            if isinstance(event, Welcomed) and not task:
                self._learn_tasks(event.welcome.tasks, now)
            elif isinstance(event, Refused) and task and not event.retryable:
                self._close(task)
        return events

    def _addressees(self, message: Message) -> list[LearnerLink]:
        links = [stream.link for stream in self.all]
        if len(links) == 1 or isinstance(message, (Pong, Challenge)):
            return links
        if isinstance(message, (ProducerWelcome, Reject)):
            return [link for link in links if link.nonce == message.nonce]
        if isinstance(message, (Credit, Bye)):
            open_links = [
                link for link in links if link.welcome is not None and link.welcome.session == message.session
            ]
            return open_links or (links if isinstance(message, Bye) else [])
        return [self.main]

    def _learn_tasks(self, tasks: tuple[TaskEnv, ...], now: float) -> None:
        """A learner said which tasks its run has. Ways of others stay until their groups have left."""
        self.tasks = tasks
        early, self._early = self._early, {}
        for task, spec in early.items():
            if self.judge(task, spec) is None:
                self.introduce(task, spec, now)

    def _close(self, task: str) -> None:
        self.main.discarded_lanes += self._by_task.pop(task).link.outbox.discard()

    # Figures

    @property
    def is_empty(self) -> bool:
        """Whether everything was acknowledged: a drain is done."""
        return all(stream.link.outbox.is_empty for stream in self.all)

    @property
    def is_received(self) -> bool:
        """Whether the learner has everything, used or not."""
        return all(stream.link.outbox.is_received for stream in self.all)

    @property
    def num_held(self) -> int:
        """How many groups wait for the learner's credit."""
        return sum(len(stream.held) for stream in self.all)

    def total(self, read: Callable[[LearnerLink], float]) -> float:
        """A figure of all ways together."""
        return sum(read(stream.link) for stream in self.all)
