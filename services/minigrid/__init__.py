"""MiniGrid and BabyAI environments: the agent's view, its direction and its instruction as observations."""
