"""The roles of those at the ends of a link, and the roles from which each server takes messages."""

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """The role of a key's owner."""

    ENVIRONMENT = "environment"
    INFERENCE = "inference"
    LEARNER = "learner"
    MONITOR = "monitor"


SERVERS = (Role.INFERENCE, Role.LEARNER)
CLIENTS_OF: Mapping[Role, frozenset[Role]] = {  # whose messages a server takes
    Role.INFERENCE: frozenset({Role.ENVIRONMENT, Role.MONITOR}),
    Role.LEARNER: frozenset({Role.INFERENCE, Role.MONITOR}),
}
