"""The learner's side of the link with inference: it receives unrolls and sends credit and weights."""
