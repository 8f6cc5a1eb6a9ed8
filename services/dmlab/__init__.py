"""DeepMind Lab: nine actions, 72 × 96 pixels in colour, the instruction as tokens, DMLab-30."""
