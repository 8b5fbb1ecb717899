"""Upkeep of a cloud: backup, restore, scrub and repair of stored files, move of state."""
