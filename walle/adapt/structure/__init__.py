"""Channels of a network that can be removed, its costs at each width, and the removal (§4.1, §4.2)."""
