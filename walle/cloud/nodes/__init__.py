"""Nodes of the cloud: gateway, releases, monitor, identities, inference, tunnel; all of them in one process."""
