"""Models of several branches on one base, switched between two runs as resources change (§6)."""
