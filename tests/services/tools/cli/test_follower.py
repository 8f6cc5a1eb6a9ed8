"""What a run's screen says of services from their pages."""

import json
from types import SimpleNamespace

from seedbed.services.tools.cli.supervisor import Phase
from seedbed.services.tools.cli.training import Follower


class FollowedActor:
    """A follower of one actor, whose page says what the test says; keeps what was told."""

    def __init__(self, logs):
        self.told = []
        self.page = {}
        self.now = 0.0
        service = SimpleNamespace(phase=Phase.RUNNING, started_at=0.0)
        self._supervisor = SimpleNamespace(services={"actor-0": service})
        scraper = SimpleNamespace(take=lambda: [("actor-0", self.page, self.now)])
        board = SimpleNamespace(observe=lambda *_: None, forget=lambda _name: None)
        view = SimpleNamespace(happened=self.told.append, refresh=lambda *_: None)
        self._follower = Follower(scraper, board, view, logs)

    def rebuilds(self, count, now):
        self.page, self.now = {"seedbed_actor_rebuilds_total": count}, now
        self._follower.refresh(self._supervisor, now)


def test_environments_that_fail_are_told_with_the_newest_cause(tmp_path):
    """At once, then at most once a minute with how many they were since; a restarted actor counts anew."""
    record = {"event": "environment_failed", "level": "warning", "cause": "lane 3: KeyError: oops"}
    (tmp_path / "actor-0.jsonl").write_text("noise\n" + json.dumps(record) + "\n")
    followed = FollowedActor(tmp_path)
    for count, now in ((0, 1.0), (2, 2.0), (50, 3.0), (70, 100.0), (70, 200.0), (1, 300.0)):
        followed.rebuilds(count, now)
    assert [text.split(" environments")[0] for text in followed.told] == ["actor-0: 2", "actor-0: 68", "actor-0: 1"]
    assert all("lane 3: KeyError: oops" in text for text in followed.told)
