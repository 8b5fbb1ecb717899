"""The demo: a cloud and a fleet on this machine, one task shipped, one rolled back, everything counted."""
