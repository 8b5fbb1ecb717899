"""Failure rate (§6): a release's gate, its guards and sequential tests, samples of devices."""
