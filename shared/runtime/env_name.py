"""Tells the forms of `env.id` apart: a registered id, a function of a module, an id that a module registers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnvName:
    """The parts of an `env.id`.

    | `env.id` | is |
    |---|---|
    | `Name-v0`, `ALE/Name-v5` | an id that Gymnasium or EnvPool knows |
    | `module:function` | a function or class of a module |
    | `module:Name-v0` | an id that importing the module registers with Gymnasium |
    """

    module: str  # "" if it names none
    name: str

    @classmethod
    def of(cls, env_id: str) -> "EnvName":
        """Return the parts of an `env.id`."""
        module, colon, name = env_id.partition(":")
        return cls(module, name) if colon else cls("", env_id)

    @property
    def is_function(self) -> bool:
        """Whether it is `module:function`, whose second part is a name in Python; an id has a version after a dash."""
        return bool(self.module) and self.name.isidentifier()
