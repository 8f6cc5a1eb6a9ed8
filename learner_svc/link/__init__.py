"""The learner's link with inference: unrolls come in, credit and weights go out."""
