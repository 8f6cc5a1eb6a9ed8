"""Inference's sessions with the learner over one connection: one per task, so that no backlog stops another task.

A run with one environment has one session, of the task "". In a run with tasks that session carries weights and
heartbeats only; a task's own session is opened when its first environments connect. Pure, like `upstream`: takes
`now`, returns frames and events.

If the learner has several ranks there is a stream of unrolls to each, with sessions of its own: stream 0 goes to the
chief, which also gets the episodes. A complete unroll goes to the rank that has least to use up, of those whose credit
allows one, so that no rank waits while another one's experience grows old. If there are fewer ranks after a restart of
the learner, streams beyond them go to those that are left until all is acknowledged. Then they are silent, and keep
their numbers for a learner that has more ranks again: the learner remembers the numbers of each stream as long as this
process lives. So does a task whose session was closed.
"""

from collections import deque
from collections.abc import Callable, Sequence

from seedbed.inference_svc.episodes import EpisodeReport
from seedbed.inference_svc.group import Group
from seedbed.inference_svc.learner_events import Event, Refused, Welcomed
from seedbed.inference_svc.segment_offer import no_segment
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.inference_svc.upstream import Frames, LearnerLink
from seedbed.shared.protocol.compatibility import Incompatibility, check_task_env
from seedbed.shared.protocol.messages import (
    Bye,
    Challenge,
    Credit,
    Error,
    Message,
    Pong,
    ProducerWelcome,
    Reject,
    TaskEnv,
)
from seedbed.shared.protocol.outbox import Outbox
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.segment import Segment

MAX_EARLY = 128  # tasks that are remembered before the learner has named the run's tasks


class LearnerSession:
    """One task's session with the learner: its link, the groups held for credit, and its episodes.

    `links`: one to each learner rank, that of the chief first.
    """

    def __init__(self, task: str, link: LearnerLink) -> None:
        self.task, self.link = task, link
        self.links = [link]
        self.held: deque[Group] = deque()
        self.episodes = EpisodeReport(link.outbox)
        self._next_rank = 0  # whose turn it is among ranks that are alike

    def try_push(self, group: Group) -> bool:
        """Push a group's complete unroll if there is credit for it; return whether there was."""
        outbox = self.choose(group.lanes.count)
        if outbox is not None:
            self._push(group, outbox)
        return outbox is not None

    def push(self, group: Group) -> None:
        """Push a group's complete unroll to an outbox, which keeps it until it is acknowledged."""
        outbox = self.choose(group.lanes.count)
        self._push(group, self._emptiest(self._usable()) if outbox is None else outbox)

    def choose(self, lanes: int) -> Outbox | None:
        """Return the outbox for an unroll of so many lanes; None if no rank has credit for it."""
        able = [link for link in self._usable() if link.outbox.can_send(lanes)]
        return self._emptiest(able) if able else None

    def _usable(self) -> list[LearnerLink]:
        """Return the links to the ranks that are known to be in the chief's run, whose turn it is first."""
        in_turn = self.links[self._next_rank :] + self.links[: self._next_rank]
        return [link for link in in_turn if link.run_id == self.link.run_id]

    def _emptiest(self, links: Sequence[LearnerLink]) -> Outbox:
        """Return the outbox with the fewest lane-unrolls that its rank has not used, the first of those alike."""
        link = min(links, key=lambda link: link.outbox.unacked_lanes)
        self._next_rank = (self.links.index(link) + 1) % len(self.links)
        return link.outbox

    def _push(self, group: Group, outbox: Outbox) -> None:
        writer, session = group.lanes.rows, group.session
        assert isinstance(writer, UnrollWriter)
        for unroll in writer.complete():
            outbox.push(
                unroll.lanes, [unroll.buffer], actor=session.hello.actor, group=session.id,
                first_lane=unroll.first_lane, start=unroll.start,
            )  # fmt: skip


class LearnerSessions:
    """The sessions of all tasks, of one stream. Owned by inference's loop; memory: an outbox for each task.

    Those of stream 0 also have the other `streams`, by number. Large because what concerns all tasks and streams of the
    link is here: their opening, their messages and their totals.
    """

    def __init__(
        self, *, name: str, incarnation: int, library_version: str, load: Callable[[], tuple[tuple[str, float], ...]],
        stream: int = 0, make_segment: Callable[[], Segment] = no_segment, is_lockstep: bool = False,
    ) -> None:  # fmt: skip
        """`make_segment` makes a segment of shared memory for a session, or raises NoSegmentError.

        `is_lockstep`: whether training groups act in lockstep.
        """

        def link(task: str) -> LearnerLink:
            return LearnerLink(
                name=name, incarnation=incarnation, library_version=library_version, load=load, task=task,
                stream=stream, make_segment=make_segment, is_lockstep=is_lockstep,
            )  # fmt: skip

        def other(number: int) -> "LearnerSessions":
            return LearnerSessions(
                name=name, incarnation=incarnation, library_version=library_version, load=lambda: (), stream=number,
                make_segment=make_segment, is_lockstep=is_lockstep,
            )  # fmt: skip

        self._link, self._other = link, other
        self.stream, self.num_ranks = stream, 1
        self.streams: dict[int, LearnerSessions] = {}
        self.main = link("")
        self.tasks: tuple[TaskEnv, ...] | None = None  # of the run; None until the learner has named them
        self._by_task = {"": LearnerSession("", self.main)}
        self._early: dict[str, EnvSpec] = {}
        self._closed: dict[str, Outbox] = {}  # by task: for their numbers, should the task come back

    def of(self, task: str) -> LearnerSession:
        """Return the session of a task, which must have been introduced."""
        return self._by_task[task]

    @property
    def all(self) -> list[LearnerSession]:
        """All sessions that are open or being opened."""
        return list(self._by_task.values())

    def check_env(self, task: str, spec: EnvSpec) -> Incompatibility | None:
        """Return why these environments cannot join the run; None if nothing the learner has said speaks against it."""
        if self.tasks is None:
            return None
        problem = check_task_env(task, spec if self.tasks else None, self.tasks)
        learner_session = self._by_task.get(task) if task else None
        refused = learner_session.link.refused.get(spec) if learner_session is not None else None
        if problem is not None or refused is None:
            return problem
        return Incompatibility(refused.code, refused.message, refused.hint)

    def first_spec(self, task: str) -> EnvSpec | None:
        """Return the specification of a task's first environments; None for the task "" or one without any."""
        learner_session = self._by_task.get(task)
        return learner_session.link.spec if learner_session is not None and task else None

    def forget(self, group: Group) -> None:
        """Forget a group that has ended, which may be held for credit."""
        learner_session = self._by_task.get(group.task)
        if learner_session is not None and group in learner_session.held:
            learner_session.held.remove(group)

    def introduce(self, task: str, spec: EnvSpec, now: float) -> None:
        """Open the session of a task, whose environments passed `check_env`; later calls change nothing."""
        for other in self.streams.values():
            other.introduce(task, spec, now)
        if not task:
            self.main.introduce(spec, now)
        elif self.tasks is None:
            if len(self._early) < MAX_EARLY:
                self._early.setdefault(task, spec)
        elif task in self._by_task:
            self._by_task[task].link.introduce(spec, now)
        else:
            link = self._link(task)
            link.outbox = self._closed.pop(task, link.outbox)
            learner_session = self._by_task[task] = LearnerSession(task, link)
            learner_session.link.introduce(spec, now)
            if self.main.is_connected:
                learner_session.link.connected(now)
            self.bind_links()

    def discard_unrolls(self) -> None:
        """Discard all unacknowledged unrolls, because the learner can no longer use them."""
        for link in self._links:
            link.discard_unrolls()

    # Several learner ranks

    def set_ranks(self, number: int, now: float) -> None:
        """Open a stream for each of so many learner ranks. Streams beyond get no more unrolls."""
        self.num_ranks = number
        for stream in range(1, number):
            if stream not in self.streams:
                other = self.streams[stream] = self._other(stream)
                other.tasks = self.tasks
                for learner_session in self.all:
                    if learner_session.link.spec is not None:
                        other.introduce(learner_session.task, learner_session.link.spec, now)
        self.bind_links()

    def at_rank(self, rank: int) -> list["LearnerSessions"]:
        """Return the streams that go to a rank, without those that are finished."""
        return [
            item
            for item in (self, *self.streams.values())
            if item.stream % self.num_ranks == rank and not self._is_finished(item)
        ]

    def leaving_streams(self) -> list["LearnerSessions"]:
        """Return the streams that are finished and still connected: say BYE and disconnect them."""
        return [item for item in self.streams.values() if item.main.is_connected and self._is_finished(item)]

    def _is_finished(self, item: "LearnerSessions") -> bool:
        """Whether a stream has no rank of its own any more, and its unrolls are all acknowledged."""
        return item.stream >= self.num_ranks and item.is_empty

    def bind_links(self) -> None:
        """Let each task's unrolls go to the ranks that have a session for it."""
        for learner_session in self.all:
            found = [
                other._by_task[learner_session.task].link
                for number, other in self.streams.items()
                if number < self.num_ranks and learner_session.task in other._by_task
            ]
            learner_session.links = [learner_session.link, *found]

    # The connection

    def connected(self, now: float) -> None:
        """Note that the connection to the learner is open: each session says HELLO."""
        for learner_session in self.all:
            learner_session.link.connected(now)

    def disconnected(self, now: float) -> None:
        """Note that the connection to the learner was closed: the sessions wait for the next one."""
        for learner_session in self.all:
            learner_session.link.disconnected(now)

    def poll(self, now: float) -> list[Frames]:
        """Return the messages that are due now, each as frames."""
        before = self.main.pinged_ms
        due = self.main.poll(now)
        for learner_session in self.all[1:] if self.main.welcome is not None else ():
            if self.main.pinged_ms != before:
                learner_session.link.outbox.pinged(self.main.pinged_ms)
            due += learner_session.link.poll(now)
        return due

    def receive(self, message: Message, payload: Sequence[bytes], now: float) -> list[tuple[str, Event]]:
        """Take a message from the learner; return its events with their tasks, and close the sessions it refuses."""
        events = []
        for learner_session in self.all:
            learner_session.link.heard_at = now
        for link in self._addressees(message):
            events += [(link.task, event) for event in link.receive(message, payload, now)]
        for task, event in events:
            if isinstance(event, Welcomed) and not task:
                self._learn_tasks(event.welcome.tasks, now)
            elif isinstance(event, Refused) and task and not event.retryable:
                self._close(task)
        return events

    def _addressees(self, message: Message) -> list[LearnerLink]:
        links = [learner_session.link for learner_session in self.all]
        if len(links) == 1 or isinstance(message, (Pong, Challenge)):
            return links
        if isinstance(message, (ProducerWelcome, Reject)):
            return [link for link in links if link.nonce == message.nonce]
        if isinstance(message, (Credit, Bye)) or (isinstance(message, Error) and message.session):
            open_links = [
                link for link in links if link.welcome is not None and link.welcome.session == message.session
            ]
            return open_links or (links if isinstance(message, Bye) else [])
        return [self.main]

    def _learn_tasks(self, tasks: tuple[TaskEnv, ...], now: float) -> None:
        """Take the run's tasks. Sessions of other tasks stay until their groups have left."""
        self.tasks = tasks
        for other in self.streams.values():
            other.tasks = tasks
        early, self._early = self._early, {}
        for task, spec in early.items():
            if self.check_env(task, spec) is None:
                self.introduce(task, spec, now)

    def _close(self, task: str) -> None:
        link = self._by_task.pop(task).link
        link.close()
        self.main.discarded_lanes += link.outbox.discard()
        self._closed[task] = link.outbox

    def close(self) -> None:
        """Give up what is shared with the learner, because nothing more will be sent."""
        for link in self._links:
            link.close()

    # Totals, over the other streams too

    @property
    def _links(self) -> list[LearnerLink]:
        return [session.link for item in (self, *self.streams.values()) for session in item.all]

    @property
    def is_empty(self) -> bool:
        """Whether all unrolls and episodes were acknowledged, so that a drain is done."""
        return all(link.outbox.is_empty for link in self._links)

    @property
    def is_received(self) -> bool:
        """Whether the learner has received all unrolls and episodes, used or not."""
        return all(link.outbox.is_received for link in self._links)

    @property
    def num_held(self) -> int:
        """The number of groups that are held for credit."""
        return sum(len(learner_session.held) for learner_session in self.all)

    def total(self, read: Callable[[LearnerLink], float]) -> float:
        """Return the sum of a number over the links of all sessions."""
        return sum(read(link) for link in self._links)
