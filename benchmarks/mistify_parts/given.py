"""Trained networks of the workloads, and their data, by name, for files of goals."""

from functools import partial

from benchmarks.mistify_parts.workloads import WORKLOADS, given

for _name, _workload in WORKLOADS.items():
    globals().update({_name: partial(given, _name), f"{_name}_train": _workload.train, f"{_name}_test": _workload.test})
