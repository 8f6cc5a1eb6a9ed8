"""One forward pass for all lanes; keeps policy state and cuts unrolls."""
