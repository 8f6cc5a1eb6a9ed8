"""Publishes weights: answers each GET with the newest version, or holds it until there is a newer one."""

from dataclasses import dataclass

from seedbed.shared.protocol.messages import Get, NotModified, Weights

HOLD_S = 1.0  # a long-poll is answered after this at the latest, seconds


@dataclass(frozen=True, slots=True)
class WeightsReply:
    """An answer for the reader of `message.session`."""

    message: Weights | NotModified
    frames: tuple[bytes, ...]
    is_new: bool = False  # whether these weights were not sent to this session before


@dataclass(slots=True)
class _Poll:
    """A GET that is held until there are newer weights, or until the time `until`."""

    get: Get
    until: float


class Publisher:
    """The newest weights and the readers that wait for newer ones, at most one poll for each session.

    Versions only rise. Owned by the learner's loop. Memory: at most two flat buffers, shared by all answers.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.version = 0  # packed; 0 while there are no weights
        self.manifest_digest = ""
        self._manifest = ""
        self._buffer = b""
        self._kept = (0, b"")  # version and buffer of the evaluation's weights
        self._hold_s = hold_s
        self._polls: dict[int, _Poll] = {}
        self._sent: dict[
            int, dict[int, float]
        ] = {}  # to each session, and when: the newest, and what came within `hold_s`

    def describe(self, digest: str, manifest: str) -> None:
        """Set the manifest of this learner epoch, JSON, and its digest. Call it once, before the first `publish`."""
        self.manifest_digest, self._manifest = digest, manifest

    def publish(self, version: int, buffer: bytes) -> list[WeightsReply]:
        """Take newer weights and answer all held polls with them. An older version changes nothing."""
        if version <= self.version:
            return []
        self.version, self._buffer = version, buffer
        polls, self._polls = self._polls, {}
        return [self._weights(poll.get, version, buffer, poll.until - self._hold_s) for poll in polls.values()]

    def keep(self) -> None:
        """Keep the present weights available by their exact version until the next call."""
        self._kept = (self.version, self._buffer)

    def get(self, get: Get, now: float) -> WeightsReply | None:
        """Return an answer, or None to hold the poll until `publish` or `expire`; it replaces the session's held poll.

        A GET for an exact version is always answered at once, and replaces no poll. Weights are not sent twice to a
        session within `hold_s`: a peer that asks but does not read would fill the memory.
        """
        if get.exact:
            return self._exact(get, now)
        self._polls.pop(get.session, None)
        is_behind = self.version > get.have_version or get.have_manifest != self.manifest_digest
        if self.version and is_behind and not self._was_sent(get.session, self.version, now):
            return self._weights(get, self.version, self._buffer, now)
        self._polls[get.session] = _Poll(get, now + self._hold_s)
        return None

    def has_newest(self, session: int) -> bool:
        """Whether a session's held poll shows that it has received the newest weights."""
        poll = self._polls.get(session)
        return poll is not None and poll.get.have_version >= self.version

    def expire(self, now: float) -> list[WeightsReply]:
        """Answer the polls that have waited long enough."""
        over = [session for session, poll in self._polls.items() if now >= poll.until]
        for session in over:
            del self._polls[session]
        return [WeightsReply(NotModified(session=session, version=self.version), ()) for session in over]

    def forget(self, session: int) -> None:
        """Drop the held poll of a session that ended or has a new connection, and allow the same weights again."""
        self._polls.pop(session, None)
        self._sent.pop(session, None)

    def _was_sent(self, session: int, version: int, now: float) -> bool:
        """Whether this version was sent to the session less than `hold_s` ago."""
        at = self._sent.get(session, {}).get(version)
        return at is not None and now - at < self._hold_s

    def _exact(self, get: Get, now: float) -> WeightsReply:
        for version, buffer in ((self.version, self._buffer), self._kept):
            if version == get.exact and not self._was_sent(get.session, version, now):
                return self._weights(get, version, buffer, now)
        return WeightsReply(NotModified(session=get.session, version=self.version), ())

    def _weights(self, get: Get, version: int, buffer: bytes, now: float) -> WeightsReply:
        manifest = "" if get.have_manifest == self.manifest_digest else self._manifest
        message = Weights(session=get.session, version=version, manifest_digest=self.manifest_digest, manifest=manifest)
        sent = self._sent.get(get.session, {})
        is_new = version not in sent
        newest = max(sent, default=0)
        kept = {known: at for known, at in sent.items() if known == newest or now - at < self._hold_s}
        self._sent[get.session] = {**kept, version: now}
        return WeightsReply(message, (buffer,), is_new)
