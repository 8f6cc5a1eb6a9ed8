"""One connection to one inference service: heartbeats, and dispatch of each message to its group."""

from collections.abc import Sequence

from seedbed.actor_svc.client import Action, Actions, ClientPhase, GroupClient, Received, Send
from seedbed.shared.protocol.greeting import Heartbeat
from seedbed.shared.protocol.messages import Act, Bye, Error, Message, Ping, Pong, Reject, Welcome

AVOID_S = 3.0  # after a service turned a group away (leaving, full, no weights yet), groups prefer others for this long
LASTING_S = 5.0  # a connection must have stood this long before groups are drawn to it


class ConnectionClient:
    """The state of one connection and the groups placed there. Owned by one thread; holds no messages.

    Large because PING, leases and closed connections each keep a time of their own.

    Args:
      beat_s: time between two PINGs, seconds, until a WELCOME sets another.
      lease_s: a connection that is open but silent for this long counts as lost, seconds.
      detach_s: a connection that is closed for this long counts as lost, seconds.
    """

    def __init__(self, address: str, now: float, *, beat_s: float = 1.0, lease_s: float = 10.0, detach_s: float = 3.0):
        self.address = address
        self.groups: list[GroupClient] = []
        self._by_session: dict[int, GroupClient] = {}  # where ACTs went; sessions change, so each entry is checked
        self.is_listed = True  # whether the configured names still resolve to this address
        self.is_connected = False
        self.was_connected = False
        self.changed_at = now  # when is_connected last changed
        self.heard_at = now
        self.avoid_until = now
        self.work_age_ms = 0  # how long inference's forward pass had been running at its last PONG
        self.num_unrequested = 0
        self.refusal = ""  # why the newest handshake failed
        self._beat_s, self._lease_s, self._detach_s = beat_s, lease_s, detach_s
        self._heartbeat = Heartbeat(now)

    # Groups

    def add(self, group: GroupClient, now: float) -> Actions:
        """Place a group here and return its HELLO."""
        self.groups.append(group)
        return group.start(now)

    def remove(self, group: GroupClient, reason: str) -> Actions:
        """Take a group away and return the BYE for its session."""
        self.groups.remove(group)
        self._by_session.clear()
        return group.leave(reason)

    # Events

    def connected(self, now: float) -> Actions:
        """Note that the connection is open (again), and return a HELLO of each group that was in a session."""
        self.is_connected = self.was_connected = True
        self.refusal = ""
        self.changed_at = self.heard_at = self.avoid_until = now
        self._heartbeat.begin(now)
        return tuple(action for group in self.groups for action in group.connection_reset(now))

    def disconnected(self, now: float) -> None:
        """Note that the connection was closed. Its groups wait; if it stays closed, they move to another address."""
        if self.is_connected:
            self.is_connected = False
            self.changed_at = now

    def refused(self, cause: str) -> None:
        """Note why the handshake failed, for `complaint`; the socket tries again."""
        self.refusal = cause

    def receive(self, message: Message, frames: Received, now: float) -> Actions:
        """Take a message from the service and return what to do about it.

        Raises: RemoteWireError if an ACT's frames have the wrong sizes.
        """
        self.heard_at = now
        if type(message) is Act:
            group = self._by_session.get(message.session)
            if group is None or group.session != message.session:
                group = self._find(message.session)
            return group.receive(message, frames, now) if group is not None else ()
        if type(message) is Pong:
            return self._pong(message, now)
        if type(message) is Ping:
            return (Send(-1, Pong(sent_ms=message.sent_ms, server_epoch=0, work_age_ms=0)),)
        if type(message) is Welcome:
            self._beat_s, self._lease_s = message.beat_s, max(self._lease_s, message.lease_s)
            self.avoid_until = min(self.avoid_until, now)
        elif _turns_away(message):
            self.avoid_until = now + AVOID_S
        return self._deliver(message, frames, now)

    def poll(self, now: float, load: Sequence[tuple[str, float]] = ()) -> Actions:
        """Return what is due at `now`: a PING that carries `load`, and HELLOs that were not answered in time."""
        actions: list[Action] = []
        if self.is_connected and self._heartbeat.ping(now, self._beat_s):
            actions.append(Send(-1, Ping(sent_ms=self._heartbeat.pinged_ms, load=tuple(load))))
        for group in self.groups:
            actions.extend(group.poll(now))
        return tuple(actions)

    # Judgements

    def is_lost(self, now: float) -> bool:
        """Whether the connection was closed for `detach_s` or silent for `lease_s`, so that its sessions are lost."""
        if not self.is_connected:
            return now - self.changed_at > self._detach_s
        return now - self.heard_at > self._lease_s

    def is_usable(self, now: float) -> bool:
        """Whether a group may be placed here: connected, not lost, and no group was turned away lately."""
        return self.is_connected and not self.is_lost(now) and now >= self.avoid_until

    def is_settled(self, now: float) -> bool:
        """Whether it counts where groups are shared out: listed, and connected for `LASTING_S` now; it may be full."""
        return self.is_listed and self.is_connected and now - self.changed_at > LASTING_S and not self.is_lost(now)

    def is_lasting(self, now: float) -> bool:
        """Whether working groups may be moved here to even out the load: settled, and not full for `LASTING_S` now."""
        return self.is_settled(now) and now - self.avoid_until > LASTING_S

    def complaint(self, now: float) -> str:
        """Return a sentence on what is wrong with this connection; empty if nothing is."""
        age_s = now - self.changed_at
        if not self.is_connected:
            if self.refusal:
                return f"{self.address}: {self.refusal}"
            if self.was_connected:
                return f"the connection to {self.address} has been closed for {age_s:.0f} s"
            return f"never connected to {self.address} in {age_s:.0f} s: is an inference service running there?"
        silent_s = now - self.heard_at
        if silent_s > 3 * self._beat_s:
            return f"no heartbeat from {self.address} for {silent_s:.0f} s, although it is connected"
        return next((f"{self.address}: {group.refusal}" for group in self.groups if group.refusal), "")

    # Within

    def _find(self, session: int) -> GroupClient | None:
        """Look a session up among the groups, and remember whose it is."""
        for group in self.groups:
            if group.session == session:
                if len(self._by_session) > 2 * len(self.groups):
                    self._by_session.clear()
                self._by_session[session] = group
                return group
        return None

    def _deliver(self, message: Message, frames: Received, now: float) -> Actions:
        """Pass a message to the group whose nonce or session it names, or a BYE for session 0 to all groups."""
        actions: list[Action] = []
        for group in list(self.groups):
            if isinstance(message, (Welcome, Reject)):
                is_meant = group.is_answering(message.nonce)
            elif isinstance(message, Error):
                is_meant = group.is_answering(message.nonce) or 0 != message.session == group.session
            else:
                session = getattr(message, "session", 0)
                is_meant = session == group.session or (session == 0 and isinstance(message, Bye))
            if is_meant:
                actions.extend(group.receive(message, frames, now))
        return tuple(actions)

    def _pong(self, pong: Pong, now: float) -> Actions:
        """Give each group the report on its session, and say BYE for sessions that no group here has."""
        if not self._heartbeat.was_asked(pong.sent_ms):
            self.num_unrequested += 1
            return ()
        self.work_age_ms = pong.work_age_ms
        if pong.turns_away:
            self.avoid_until = max(self.avoid_until, now + 2 * self._beat_s)
        reports = {report.session: report for report in pong.sessions}
        is_settled = all(group.phase is ClientPhase.ACTIVE for group in self.groups)
        pinged_at = pong.sent_ms / 1000
        actions: list[Action] = []
        for group in self.groups:
            actions.extend(group.report(reports.pop(group.session, None), pinged_at, now))
        if is_settled:
            actions.extend(Send(-1, Bye(session=session, reason="moved")) for session in reports)
        return tuple(actions)


def _turns_away(message: Message) -> bool:
    """Whether this message says that the service takes no groups for now."""
    if isinstance(message, Bye):
        return message.reason != "run_finished"
    return message.retryable and message.nonce != 0 if isinstance(message, (Reject, Error)) else False
