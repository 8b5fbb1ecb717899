"""The two ways to IPV features that benchmarks/ipv.py compares: on devices, and in the cloud from raw events."""
