"""What a container can be."""

from enum import StrEnum

SERVED = "served"  # inference on a run that it reads, as a package


class ContainerRole(StrEnum):
    """A service of a deployment in containers. An evaluator is an actor that plays evaluations."""

    LEARNER = "learner"
    INFERENCE = "inference"
    ACTOR = "actor"
    EVALUATOR = "evaluator"

    @property
    def package(self) -> str:
        """The name of the service's package, without `_svc`."""
        return "actor" if self is ContainerRole.EVALUATOR else self.value
