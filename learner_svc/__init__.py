"""The learner service: it trains the policy on unrolls and publishes the weights."""
