"""Simulation before a release (§6): a version's runs in the cloud's VM hosts."""
