"""MiniGrid and BabyAI: what the agent sees, where it looks, and what it is told to do."""
