"""One connection to one inference service: beats, and whose message is whose among the groups placed there."""

from collections.abc import Sequence

from seedbed.actor_svc.client import Action, Actions, GroupClient, Phase, Received, Send
from seedbed.shared.protocol.messages import Act, Bye, Error, Message, Ping, Pong, Reject, Welcome

AVOID_S = 3.0  # after a service turned a group away (leaving, full, no weights yet), groups prefer others for this long
LASTING_S = 5.0  # a connection must have stood this long before groups are drawn to it


class ConnectionClient:
    """The groups at one address. Owned by one thread; holds no messages.

    Args:
      detach_s: a connection closed for this long has lost its sessions.
      lease_s: connected but silent for this long is taken for dead.
    """

    def __init__(self, address: str, now: float, *, beat_s: float = 1.0, lease_s: float = 10.0, detach_s: float = 3.0):
        self.address = address
        self.groups: list[GroupClient] = []
        self.is_listed = True  # its name still stands for it
        self.is_connected = False
        self.was_connected = False
        self.changed_at = now  # of is_connected
        self.heard_at = now
        self.avoid_until = now
        self.work_age_ms = 0  # of inference, as its last PONG says
        self.num_unrequested = 0
        self.refusal = ""  # why the newest handshake failed
        self._beat_s, self._lease_s, self._detach_s = beat_s, lease_s, detach_s
        self._next_ping = now
        self._pinged_ms = -1

    # Groups

    def add(self, group: GroupClient, now: float) -> Actions:
        """Take a group: it says HELLO over this connection."""
        self.groups.append(group)
        return group.start(now)

    def remove(self, group: GroupClient, reason: str) -> Actions:
        """Take a group away, with a BYE for its session."""
        self.groups.remove(group)
        return group.leave(reason)

    # Events

    def connected(self, now: float) -> Actions:
        """The connection is open (again): every group asks where it stands, and the beat begins."""
        self.is_connected = self.was_connected = True
        self.refusal = ""
        self.changed_at = self.heard_at = self.avoid_until = self._next_ping = now
        return tuple(action for group in self.groups for action in group.connection_reset(now))

    def disconnected(self, now: float) -> None:
        """The connection was closed: its groups wait, and after some time go to another address."""
        if self.is_connected:
            self.is_connected = False
            self.changed_at = now

    def refused(self, cause: str) -> None:
        """The handshake failed for this reason, which complaints name; it is tried again."""
        self.refusal = cause

    def receive(self, message: Message, frames: Received, now: float) -> Actions:
        """A message from there. Raises RemoteWireError if an ACT's frames have the wrong sizes."""
        self.heard_at = now
        if type(message) is Act:
            for group in self.groups:
                if group.session == message.session:
                    return group.receive(message, frames, now)
            return ()
        if type(message) is Pong:
            return self._pong(message, now)
        if type(message) is Ping:
            return (Send(-1, Pong(sent_ms=message.sent_ms, server_epoch=0, work_age_ms=0)),)
        if type(message) is Welcome:
            self._beat_s = message.beat_s
            self.avoid_until = min(self.avoid_until, now)
        elif _turns_away(message):
            self.avoid_until = now + AVOID_S
        return self._deliver(message, frames, now)

    def poll(self, now: float, load: Sequence[tuple[str, float]] = ()) -> Actions:
        """What time brings: the beat, and HELLOs that want repeating."""
        actions: list[Action] = []
        if self.is_connected and now >= self._next_ping:
            self._next_ping = now + self._beat_s
            self._pinged_ms = int(now * 1000)
            actions.append(Send(-1, Ping(sent_ms=self._pinged_ms, load=tuple(load))))
        for group in self.groups:
            actions.extend(group.poll(now))
        return tuple(actions)

    # Judgements

    def is_lost(self, now: float) -> bool:
        """Sessions here cannot be counted on any more."""
        if not self.is_connected:
            return now - self.changed_at > self._detach_s
        return now - self.heard_at > self._lease_s

    def is_usable(self, now: float) -> bool:
        """A group may be placed here with good hope."""
        return self.is_connected and not self.is_lost(now) and now >= self.avoid_until

    def is_lasting(self, now: float) -> bool:
        """Groups may be drawn here from where they are well off: it has stood for a while, and is to stay."""
        return self.is_listed and now - max(self.changed_at, self.avoid_until) > LASTING_S and self.is_usable(now)

    def complaint(self, now: float) -> str:
        """What is wrong with this connection, for people; empty if nothing is."""
        age_s = now - self.changed_at
        if not self.is_connected:
            if self.refusal:
                return f"{self.address}: {self.refusal}"
            if self.was_connected:
                return f"the connection to {self.address} has been closed for {age_s:.0f} s"
            return f"never connected to {self.address} in {age_s:.0f} s: is an inference service running there?"
        silent_s = now - self.heard_at
        if silent_s > 3 * self._beat_s:
            return f"no heartbeat from {self.address} for {silent_s:.0f} s, though it is connected"
        return next((f"{self.address}: {group.refusal}" for group in self.groups if group.refusal), "")

    # Within

    def _deliver(self, message: Message, frames: Received, now: float) -> Actions:
        """To the group that asked, or that has the session; a BYE for session 0 to all."""
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
        """Show each group its line; a session that nobody here knows of is a ghost of ours, and is let go."""
        if not 0 < pong.sent_ms <= self._pinged_ms:  # a probe that answers no PING of this life says nothing
            self.num_unrequested += 1
            return ()
        self.work_age_ms = pong.work_age_ms
        if pong.turns_away:
            self.avoid_until = max(self.avoid_until, now + 2 * self._beat_s)
        reports = {report.session: report for report in pong.sessions}
        is_settled = all(group.phase is Phase.ACTIVE for group in self.groups)
        pinged_at = pong.sent_ms / 1000
        actions: list[Action] = []
        for group in self.groups:
            actions.extend(group.report(reports.pop(group.session, None), pinged_at, now))
        if is_settled:
            actions.extend(Send(-1, Bye(session=session, reason="moved")) for session in reports)
        return tuple(actions)


def _turns_away(message: Message) -> bool:
    """Whether the service says that for now a group is better off elsewhere."""
    if isinstance(message, Bye):
        return message.reason != "run_finished"
    return message.retryable and message.nonce != 0 if isinstance(message, (Reject, Error)) else False
