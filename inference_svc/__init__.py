"""The inference service: it runs one policy for all lanes, keeps their policy state and cuts unrolls."""
