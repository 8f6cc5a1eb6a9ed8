"""Random and human scores of the 57 Atari games, and which environments play one of them.

Source: Wang et al. 2016, arXiv 1511.06581, the table of scores for starts with up to 30 no-ops; Hessel et al. 2017,
arXiv 1710.02298, and most later papers use the same numbers. Those for starts from human play differ (Pong -18.0 and
15.5), and so do some of Mnih et al. 2015 (Breakout's person 31.8).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from seedbed.shared.runtime.config import ATARI_MAX_STEPS, EnvConfig

SOURCE = "Wang et al. 2016, arXiv 1511.06581"
FULL_GAME_FRAMES = 108_000  # after 30 minutes an episode of the papers is cut
ATARI_57: Mapping[str, tuple[float, float]] = MappingProxyType(  # game as in its id → random, human
    {
        "Alien": (227.8, 7127.7),
        "Amidar": (5.8, 1719.5),
        "Assault": (222.4, 742.0),
        "Asterix": (210.0, 8503.3),
        "Asteroids": (719.1, 47388.7),
        "Atlantis": (12850.0, 29028.1),
        "BankHeist": (14.2, 753.1),
        "BattleZone": (2360.0, 37187.5),
        "BeamRider": (363.9, 16926.5),
        "Berzerk": (123.7, 2630.4),
        "Bowling": (23.1, 160.7),
        "Boxing": (0.1, 12.1),
        "Breakout": (1.7, 30.5),
        "Centipede": (2090.9, 12017.0),
        "ChopperCommand": (811.0, 7387.8),
        "CrazyClimber": (10780.5, 35829.4),
        "Defender": (2874.5, 18688.9),
        "DemonAttack": (152.1, 1971.0),
        "DoubleDunk": (-18.6, -16.4),
        "Enduro": (0.0, 860.5),
        "FishingDerby": (-91.7, -38.7),
        "Freeway": (0.0, 29.6),
        "Frostbite": (65.2, 4334.7),
        "Gopher": (257.6, 2412.5),
        "Gravitar": (173.0, 3351.4),
        "Hero": (1027.0, 30826.4),
        "IceHockey": (-11.2, 0.9),
        "Jamesbond": (29.0, 302.8),
        "Kangaroo": (52.0, 3035.0),
        "Krull": (1598.0, 2665.5),
        "KungFuMaster": (258.5, 22736.3),
        "MontezumaRevenge": (0.0, 4753.3),
        "MsPacman": (307.3, 6951.6),
        "NameThisGame": (2292.3, 8049.0),
        "Phoenix": (761.4, 7242.6),
        "Pitfall": (-229.4, 6463.7),
        "Pong": (-20.7, 14.6),
        "PrivateEye": (24.9, 69571.3),
        "Qbert": (163.9, 13455.0),
        "Riverraid": (1338.5, 17118.0),
        "RoadRunner": (11.5, 7845.0),
        "Robotank": (2.2, 11.9),
        "Seaquest": (68.4, 42054.7),
        "Skiing": (-17098.1, -4336.9),
        "Solaris": (1236.3, 12326.7),
        "SpaceInvaders": (148.0, 1668.7),
        "StarGunner": (664.0, 10250.0),
        "Surround": (-10.0, 6.5),
        "Tennis": (-23.8, -8.3),
        "TimePilot": (3568.0, 5229.2),
        "Tutankham": (11.4, 167.6),
        "UpNDown": (533.4, 11693.2),
        "Venture": (0.0, 1187.5),
        "VideoPinball": (16256.9, 17667.9),
        "WizardOfWor": (563.5, 4756.5),
        "YarsRevenge": (3092.9, 54576.9),
        "Zaxxon": (32.5, 9173.3),
    }
)
# ALE/Pong-v5, EnvPool's Pong-v5, and Gymnasium's old PongNoFrameskip-v4, PongDeterministic-v4, Pong-v0.
_ID = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v[045]")
_CHANGES_GAME = {"game", "mode", "difficulty", "max_num_frames_per_episode"}  # among env.kwargs


def atari_game(env: EnvConfig) -> str:
    """Return the game of the 57 that an environment plays as the papers play it, "" if none.

    It does so if its returns are of whole games in raw rewards. Lost lives end no episode, and only the learner clips
    rewards.
    """
    found = _ID.fullmatch(env.id)
    is_changed = bool(_CHANGES_GAME & env.kwargs.keys())
    return found[1] if found and found[1] in ATARI_57 and not is_changed and _is_full_game(env) else ""


def _is_full_game(env: EnvConfig) -> bool:
    """Whether an episode may be as long as those of the papers."""
    if env.is_atari:
        return (env.max_episode_steps or ATARI_MAX_STEPS) * env.frame_skip >= FULL_GAME_FRAMES
    return env.max_episode_steps is None or env.max_episode_steps >= FULL_GAME_FRAMES  # a step may be one frame
