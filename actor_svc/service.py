"""An actor as a process: one loop, one environment thread, a connection for each inference service.

    Dealer → decode → Fleet → StepLanes → EnvGroup.step (thread or loop) → Fleet.submit → STEP → Dealer

| a group waits for | unblocked by |
|---|---|
| its turn in the environment thread | the other groups' ticks, which take turns there |
| ACT | inference; a PONG that shows its STEP or ACT missing makes it resend |
| WELCOME | HELLO, repeated with back-off for as long as it takes |

`client`, `connection` and `fleet` decide what to do; this module only does it.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from seedbed.actor_svc.backends.backend import LanesError
from seedbed.actor_svc.client import Fatal, Finished, GroupClient, ResetLanes, Send, StartLanes, StepLanes
from seedbed.actor_svc.config import ActorSettings
from seedbed.actor_svc.counters import ActorCounters, LoadMeter, register
from seedbed.actor_svc.envs import MakeEnvironment, make_group
from seedbed.actor_svc.fleet import AddressedAction, Fleet
from seedbed.actor_svc.group import EnvGroup, GroupRows
from seedbed.actor_svc.pictures import MAX_SHARE, Camera, make_watched_group
from seedbed.shared import __version__
from seedbed.shared.errors import ConfigError, RejectedError, RemoteWireError
from seedbed.shared.net.addresses import look_up
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.keys import dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.resolver import Lookup, Resolver
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Act, Bye, Challenge, Error, Hello, Message, StepBits, Welcome
from seedbed.shared.runtime.service import Service
from seedbed.shared.runtime.watchdog import Watchdog
from seedbed.shared.runtime.worker import Worker

POLL_S = 0.05
BEAT_S = 1.0
FIRST_COMPLAINT_S, COMPLAIN_S = 3.0, 10.0
TICK_SMOOTHING = 0.1
LINGER_MS = 200  # time for the last BYEs to leave


async def run(
    settings: ActorSettings, service: Service, *, make: MakeEnvironment | None = None, lookup: Lookup = look_up
) -> int:
    """Step environments until the run is finished or the service is stopped, and return the exit code.

    Args:
      make: the environments' constructor, in place of what `env.id` names.
      lookup: resolves the names in `actor.upstream` to numeric hosts.
    Raises: RejectedError if inference refuses this actor for good, EnvError or ConfigError from the environments.
    """
    if make is None and settings.own_env().service:
        raise ConfigError(
            f"env.service: {settings.own_env().id} is stepped by the program of {settings.own_env().service}: "
            "`seedbed train` and `seedbed actor` start it, or start it yourself; docs/protocol.md has its variables"
        )
    worker = Worker("env")
    service.start(_watch(worker), "env_thread")
    try:
        groups = await _in_thread(worker, lambda: _make_groups(settings, make), service)
        if groups is None:
            return 0
        with Reactor() as reactor:
            actor = Actor(settings, service, reactor, worker, groups)
            try:
                await actor.work(lookup)
            finally:
                actor.leave()
        if actor.error is not None:
            raise actor.error
        worker.submit(lambda: [group.close() for group in groups])
        return 0
    finally:
        worker.close()


class Actor:
    """The asyncio shell: feeds events to the fleet and performs the actions that it returns. Owned by the loop.

    Large because all side effects are here: sockets, threads, timers, pictures and the shutdown.
    """

    def __init__(
        self, settings: ActorSettings, service: Service, reactor: Reactor, worker: Worker, groups: list[EnvGroup]
    ) -> None:
        self.settings, self.service, self.reactor, self.worker, self.groups = settings, service, reactor, worker, groups
        self.loop = asyncio.get_running_loop()
        self.error: RejectedError | None = None
        self.ended = asyncio.Event()
        clients = [
            GroupClient(
                introduce(settings, group, index, service.incarnation),
                new_nonce,
                reset_when_lost=settings.actor.reset_when_lost,
            )
            for index, group in enumerate(groups)
        ]
        self.fleet = Fleet(clients, seed=service.incarnation)
        self.keys = dial_keys(service.runtime.keys, Role.ENVIRONMENT, Role.INFERENCE)
        self.dealers: dict[str, Dealer] = {}
        self.counters = ActorCounters()
        self.meter = LoadMeter(self.counters, groups, self.loop.time())
        self.tick_seconds = register(service.metrics, self.counters, groups, self.fleet)
        self.watchdog = Watchdog(worker.busy_s, settings.actor.hang_s, self._report_hang)
        self._submitted_at = [0.0] * len(groups)
        max_share = 1.0 if settings.actor.mode == "play" else MAX_SHARE  # a player looks at every step
        self.cameras = [Camera(group, max_share) for group in groups] if shows_pictures(settings) else []
        self._num_in_thread = 0  # our jobs that the thread has not finished
        self._short: deque[tuple[int, Callable[[], GroupRows]]] = (
            deque()
        )  # short ticks that wait until the thread is idle; at most one for each group
        self._tick_s = [1.0] * len(groups)  # duration of each group's tick, smoothed; 1.0: the first run in the thread

    async def work(self, lookup: Lookup) -> None:
        """Dial, then let events drive everything until the end."""
        with Resolver(self.settings.actor.upstream, self._dial, lookup=lookup) as resolver:
            self.service.start(self._beat(resolver), "beat")
            self.service.start(self._until_stopped(), "stop")
            self.service.ready()
            await self.ended.wait()

    def leave(self) -> None:
        """Say BYE at every address and hang up."""
        self.watchdog.close()
        self._perform(self.fleet.leave("stopped"))
        for dealer in self.dealers.values():
            dealer.close(LINGER_MS)

    # Time

    async def _beat(self, resolver: Resolver) -> None:
        """Poll the fleet every POLL_S; feed the watchdog and read the load every BEAT_S; log what groups wait for."""
        next_beat = self.loop.time()
        next_complaint = next_beat + FIRST_COMPLAINT_S
        load: tuple[tuple[str, float], ...] = ()
        while True:
            now = self.loop.time()
            if now >= next_beat:
                next_beat = now + BEAT_S
                load = self.meter.read(now)
                self.watchdog.pet()
            self._perform(self.fleet.poll(now, load))
            if len(self.dealers) > len(self.fleet.connections):
                self._hang_up()
            if now >= next_complaint:
                next_complaint = now + COMPLAIN_S
                for text in (*resolver.complaints(now), *self.fleet.complaints(now)):
                    self.service.log.warning("inference_awaited", cause=text)
            await asyncio.sleep(POLL_S)

    async def _until_stopped(self) -> None:
        await self.service.stopping.wait()
        self.ended.set()

    def _dial(self, addresses: list[str]) -> None:
        """Keep one connection to each of these addresses, to which the names now resolve."""
        self.service.log.info("upstream_resolved", addresses=addresses)
        placed = self.fleet.set_addresses(addresses, self.loop.time())
        self._hang_up()
        for address in self.fleet.connections:
            if address not in self.dealers:
                self.dealers[address] = Dealer(
                    self.reactor,
                    address,
                    on_message=partial(self._receive, address),
                    on_event=partial(self._connection_changed, address),
                    keys=self.keys,
                )
        self._perform(placed)

    def _hang_up(self) -> None:
        """Close the connections that the fleet no longer uses."""
        for address in set(self.dealers) - set(self.fleet.connections):
            self.service.log.info("inference_dropped", address=address)
            self.dealers.pop(address).close()

    # From inference

    def _connection_changed(self, address: str, event: str) -> None:
        now = self.loop.time()
        if event == "connected":
            self.service.log.info("inference_connected", address=address)
            self._perform(self.fleet.connected(address, now))
        elif event == "disconnected":
            self.service.log.warning("inference_disconnected", address=address)
            self.fleet.disconnected(address, now)
        else:
            cause = self.dealers[address].refusal
            self.service.log.warning("handshake_failed", address=address, cause=cause)
            self.fleet.refused(address, cause)

    def _receive(self, address: str, frames: list[bytes]) -> None:
        try:
            message = decode(frames[0])
            placed = self.fleet.receive(address, message, frames[1:], self.loop.time())
        except RemoteWireError as error:
            self.counters.refused_messages += 1
            self.service.log.debug("message_refused", address=address, code=error.code, error=str(error))
            return
        if type(message) is not Act:
            self._log(address, message)
        self._perform(placed)

    def _log(self, address: str, message: Message) -> None:
        log = self.service.log
        if isinstance(message, Welcome):
            log.info("session_welcomed", address=address, resumed=message.resumed, run_id=message.run_id)
        elif isinstance(message, Challenge):
            log.warning("session_challenged", address=address)
        elif isinstance(message, Bye):
            log.info("inference_said_bye", address=address, reason=message.reason)
        elif isinstance(message, Error) and not message.nonce:
            log.warning("inference_refused", address=address, cause=f"{message.message} ({message.hint})")

    # What was decided

    def _perform(self, actions: list[AddressedAction]) -> None:
        for address, action in actions:
            kind = type(action)
            if kind is Send:
                self._send(address, action)  # type: ignore[arg-type]
            elif isinstance(action, StepLanes):
                self._tick(action)
            elif isinstance(action, StartLanes):
                group = self.groups[action.group]
                self._in_thread(partial(self._begin, group, action.seed), partial(self._submit_rows, action.group))
            elif isinstance(action, ResetLanes):
                reset = partial(self.groups[action.group].reset, action.seed)
                self._in_thread(self._with_picture(action, reset), partial(self._submit_rows, action.group))
            elif isinstance(action, Finished):
                self.ended.set()
            elif isinstance(action, Fatal):
                self.error = self.error or action.error
                self.ended.set()

    def _send(self, address: str, action: Send) -> None:
        """Send a message; if the connection is closed or full it is lost, which the next PONG or WELCOME repairs."""
        dealer = self.dealers.get(address)
        if dealer is not None:
            dealer.send((encode(action.message), *action.payload))

    def _tick(self, action: StepLanes) -> None:
        """Step a group in the thread, or in the loop if its ticks are so short that the handover would cost more.

        2 groups of 128 lanes of CartPole took 0.69 ms of processor time for a tick, with both ends of the link in one
        process, and 0.59 ms without the thread. Ticks never run in both at once: groups may share state.
        """
        index = action.group
        self.counters.waits += 1
        self.counters.wait_s += self.loop.time() - self._submitted_at[index]
        job = self._with_picture(action, partial(self.groups[index].step_frames, action.payload))
        if self._tick_s[index] >= self.settings.actor.inline_ms / 1000:
            self._in_thread(job, partial(self._ticked, index))
        elif self._num_in_thread:
            self._short.append((index, job))
        else:
            self._ticked(index, _timed(job))

    def _with_picture(self, action: StepLanes | ResetLanes, job: Callable[[], GroupRows]) -> Callable[[], GroupRows]:
        """Return the job; if the action asks for a picture, return a job that appends one to the rows."""
        if not action.wants_picture or not self.cameras:
            return job
        return partial(_step_and_capture, job, self.cameras[action.group])

    def _in_thread(self, job: Callable[[], GroupRows], done: Callable[[tuple[GroupRows, float]], None]) -> None:
        def came_back(result: tuple[GroupRows, float]) -> None:
            self._num_in_thread -= 1
            done(result)
            while self._short and not self._num_in_thread:
                index, tick = self._short.popleft()
                self._ticked(index, _timed(tick))

        self._num_in_thread += 1
        self.worker.submit(partial(_timed, job), came_back)

    def _ticked(self, index: int, result: tuple[GroupRows, float]) -> None:
        """Note how long a group's tick took, then go on with its rows."""
        self._tick_s[index] += TICK_SMOOTHING * (min(result[1], 1.0) - self._tick_s[index])
        self.tick_seconds.observe(result[1])
        self._submit_rows(index, result)

    def _submit_rows(self, index: int, result: tuple[GroupRows, float]) -> None:
        """Count a finished tick or reset and submit its rows, unless the run has ended."""
        rows, seconds = result
        self.counters.ticks += 1
        self.counters.busy_s += seconds
        if not self.ended.is_set():
            now = self._submitted_at[index] = self.loop.time()
            self._perform(self.fleet.submit(index, rows.payload, rows.bits, now))

    def _begin(self, group: EnvGroup, seed: int) -> GroupRows:
        """Reset a group and, in training, take some untrained steps that bring groups out of step; return the rows.

        Runs in the environment thread.
        """
        rows, longest = group.reset(seed), self.settings.actor.warmup_steps
        if longest and self.settings.actor.mode == "train":
            ticks = int(np.random.default_rng(seed).integers(0, longest + 1))
            rows = group.warm_up(ticks, seed) if ticks else rows
        return rows

    def _report_hang(self, seconds: float) -> None:
        self.service.log.error(
            "environment_hung", seconds=round(seconds, 1), hint="raise actor.hang_s if a tick may take this long"
        )


def introduce(settings: ActorSettings, group: EnvGroup, index: int, incarnation: int) -> Hello:
    """Return a group's HELLO, in which nonce and run id are still to be filled in."""
    return Hello(
        library_version=__version__,
        actor=settings.actor.name or settings.runtime.name or f"actor-{incarnation & 0xFFFF:04x}",
        incarnation=incarnation,
        group=index,
        lanes=group.lanes,
        nonce=0,
        mode=settings.actor.mode,
        spec=group.spec,
        seeding=group.seeding,
        capabilities=("reset", "boundary", "render") if shows_pictures(settings) else ("reset", "boundary"),
        max_stall_s=settings.actor.max_stall_s,
        task=settings.actor.task,
    )


def new_nonce() -> int:
    """Return a random integer below 2^62, never zero."""
    return secrets.randbits(62) | 1


def _make_groups(settings: ActorSettings, make: MakeEnvironment | None) -> list[EnvGroup]:
    """Make the actor's groups. Runs in the environment thread, where they will be used."""
    threads, build = settings.actor.threads, make_watched_group if shows_pictures(settings) else make_group
    env = settings.own_env()

    def make_one(lanes: int) -> EnvGroup:
        return build(env, lanes, make=make, threads=threads)

    try:
        return [make_one(lanes) for lanes in settings.group_lanes()]
    except LanesError as error:
        if settings.actor.mode != "play":
            raise
        return [make_one(error.multiple)]  # all agents of one world


def shows_pictures(settings: ActorSettings) -> bool:
    """Whether this actor may be asked for pictures. A training actor never is, so that watching slows nothing down."""
    return settings.actor.pictures and settings.actor.mode != "train"


def _step_and_capture(step: Callable[[], GroupRows], camera: Camera) -> GroupRows:
    """Run a tick and return its rows, with a picture appended if the camera has one."""
    rows, picture = step(), camera.capture()
    if picture is None:
        return rows
    return GroupRows(payload=[*rows.payload, picture], bits=rows.bits | int(StepBits.RENDER))


def _timed(job: Callable[[], GroupRows]) -> tuple[GroupRows, float]:
    started = time.perf_counter()
    rows = job()
    return rows, time.perf_counter() - started


async def _watch(worker: Worker) -> None:
    """Raise the error that ends the worker, an environment that fails beyond repair: it ends the service."""
    await worker.failed


async def _in_thread(worker: Worker, job: Callable[[], Any], service: Service) -> Any:
    """Run a job in the worker's thread and return its result, or None if the service was stopped first."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    worker.submit(job, lambda result: None if done.done() else done.set_result(result))
    stopped = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait((done, stopped), return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else None
    finally:
        stopped.cancel()
        done.cancel()
