"""Federated learning over a fleet: rounds of updates, aggregation, privacy (§1, §8)."""
