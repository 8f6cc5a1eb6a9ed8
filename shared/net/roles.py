"""Who may be at the ends of a link, and whom each server takes messages from."""

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """What a key's owner is."""

    ENVIRONMENT = "environment"
    INFERENCE = "inference"
    LEARNER = "learner"
    MONITOR = "monitor"


SERVERS = (Role.INFERENCE, Role.LEARNER)
CLIENTS_OF: Mapping[Role, frozenset[Role]] = {  # whose messages a server takes
    Role.INFERENCE: frozenset({Role.ENVIRONMENT, Role.MONITOR}),
    Role.LEARNER: frozenset({Role.INFERENCE, Role.MONITOR}),
}
