"""The scale of a normalised score: 0 is the return of random play, 1 that of a person."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreScale:
    """The two returns that a task's returns are measured against, in raw rewards. They differ."""

    random: float
    human: float
    source: str = ""  # where the numbers were published; empty: they are the user's own

    def normalise(self, score: float) -> float:
        """Return (score − random) / (human − random), for a mean of raw, undiscounted returns of whole episodes."""
        return (score - self.random) / (self.human - self.random)
