"""Collective storage (§5.1): feature store, outbox, states of tasks, topics."""
