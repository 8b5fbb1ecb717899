"""Predicted costs of primitives, and the choice of primitives and layouts for a whole network."""
