"""Which channels of a network can be removed, what it costs at each width, and the removal (§4.1, §4.2)."""
