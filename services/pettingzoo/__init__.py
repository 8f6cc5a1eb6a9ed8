"""PettingZoo's parallel environments: agents are lanes, and one policy plays all of them."""
