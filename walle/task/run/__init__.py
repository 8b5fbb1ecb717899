"""Runs of a version in task VMs, on device and cloud."""
