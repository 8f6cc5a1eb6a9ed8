"""Finds the published scores of an environment by what it is."""

from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.scores import atari, dmlab
from seedbed.shared.scores.scale import ScoreScale


def published_scale(env: EnvConfig) -> ScoreScale | None:
    """Return the scale of an Atari game or DMLab level; None for another environment, or one with shorter episodes.

    The id of a `service` is that program's own name, which says nothing about what it plays: None.
    """
    if env.service:
        return None
    if game := atari.atari_game(env):
        random, human = atari.ATARI_57[game]
        return ScoreScale(random=random, human=human, source=atari.SOURCE)
    if level := dmlab.dmlab_level(env):
        random, human = dmlab.DMLAB_30[level]
        return ScoreScale(random=random, human=human, source=dmlab.SOURCE)
    return None
