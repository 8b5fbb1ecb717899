"""Modules of Fig. 10: networks, engines, worker processes, plan quality, and the report."""
