"""A cut of a model as a value: its place, its bytes and the times of both parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut before the node at `place`: nodes before run on the device, the others in the cloud.

    `values` are the numbers of the arrays that pass; `up_bytes` their bytes, `quantised_bytes` those with float32 in
    int8 (inputs of a model that is all there pass unchanged); `down_bytes` those of the outputs that the cloud sends
    back. Microseconds are of this machine.
    """

    place: int
    after: str  # name of the last node on the device; empty: all there
    values: tuple[int, ...]
    up_bytes: int
    quantised_bytes: int
    down_bytes: int
    device_us: float
    cloud_us: float
