"""Devices that the cloud has heard of, and their groups."""
