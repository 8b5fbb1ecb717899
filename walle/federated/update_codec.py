"""Bytes of an update, and the checks of a body that a device sent.

The header has the round, the number of samples, metrics, and for each array its name, shape, type and scale. Types are
float32; float16, half of the bytes; int8, a quarter, with a scale an array: the value is the integer times the scale.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from walle import np
from walle.federated.errors import UpdateError
from walle.federated.framing import MAX_HEADER_BYTES, frame, parse_frame
from walle.federated.update import Update
from walle.federated.weights import Layout, Weights
from walle.protocol.fields import shorten

_MAGIC = b"WFU1"
_FIELDS = {"round", "samples", "metrics", "arrays"}
_INT8_MAX = 127
_MAX_ROUND = 1 << 53


class Encoding(enum.StrEnum):
    """Type of the values on the wire."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"

    @property
    def value_bytes(self) -> int:
        return {"float32": 4, "float16": 2, "int8": 1}[self.value]


@dataclass(frozen=True, kw_only=True)
class UpdateLimits:
    """Bounds of what a device may claim: an aggregate depends on the number of samples and on each value."""

    max_samples: int = 1_000_000
    max_value: float = 1e6  # absolute value of a difference
    max_metrics: int = 32
    max_metric_chars: int = 64

    def max_body_bytes(self, layout: Layout) -> int:
        """Return the length of the longest body of a model: a receiver reads no more."""
        return MAX_HEADER_BYTES + 72 + 4 * layout.size


def encode_update(update: Update, encoding: Encoding = Encoding.FLOAT32) -> bytes:
    """Return the body of an update. float16 and int8 round to the nearest value.

    Raises:
        UpdateError: a value is too large for the encoding.
    """
    layout = update.difference.layout
    rows: list[list[Any]] = []
    parts: list[bytes] = []
    if encoding is Encoding.FLOAT32:
        rows = [[name, list(shape), encoding.value] for name, shape in zip(layout.names, layout.shapes, strict=True)]
        parts = [update.difference.vector.tobytes()]
    else:
        for name, array in update.difference.arrays().items():
            values, scale = _narrow(name, array, encoding)
            rows.append([name, list(array.shape), encoding.value, *scale])
            parts.append(values.tobytes())
    header = {
        "round": update.round_number,
        "samples": update.samples,
        "metrics": {name: float(one) for name, one in update.metrics.items()},
        "arrays": rows,
    }
    return frame(_MAGIC, header, parts)


def _narrow(name: str, array: Any, encoding: Encoding) -> tuple[Any, list[float]]:
    """Return the values in a narrower type, and the scale where it has one."""
    if encoding is Encoding.FLOAT16:
        values = array.astype("float16")
        if not bool(np.isfinite(values).all()):
            raise UpdateError(f"array {name!r} has a value beyond float16; encode it as float32")
        return values, []
    scale = float(np.abs(array).max()) / _INT8_MAX
    return np.rint(array / (scale or 1.0)).astype("int8"), [scale]


def decode_update(body: bytes | memoryview, layout: Layout, limits: UpdateLimits | None = None) -> Update:
    """Return the update in a body for a model of this layout.

    Memory is bounded: the body and a vector of the model's size.

    Raises:
        UpdateError: the body is damaged, has other arrays than the model, or breaks a limit.
    """
    limits = limits or UpdateLimits()
    if len(body) > limits.max_body_bytes(layout):
        raise UpdateError(f"the body has {len(body)} bytes; the model's take {limits.max_body_bytes(layout)} at most")
    data = body if isinstance(body, bytes) else bytes(body)  # aligned, as arrays need it
    header, first = parse_frame(_MAGIC, data, UpdateError)
    if set(header) != _FIELDS:
        raise UpdateError(f"the header has the fields {shorten(sorted(map(str, header)))}, expected {sorted(_FIELDS)}")
    round_number = _whole(header["round"], "round", 0, _MAX_ROUND)
    samples = _whole(header["samples"], "samples", 1, limits.max_samples)
    metrics = _metrics(header["metrics"], limits)
    encodings, scales = _rows(header["arrays"], layout)
    value_bytes = [one.value_bytes for one in encodings]
    counts = [end - start for start, end in zip(layout.starts, layout.ends, strict=True)]
    needed = first + sum(count * size for count, size in zip(counts, value_bytes, strict=True))
    if len(data) != needed:
        raise UpdateError(f"the body has {len(data)} bytes; its arrays take {needed}")
    if set(encodings) == {Encoding.FLOAT32}:
        vector = np.frombuffer(data, "float32", layout.size, first)
    else:
        vector = np.empty(layout.size, "float32")
        at = first
        for place, (encoding, count) in enumerate(zip(encodings, counts, strict=True)):
            part = data[at : at + count * encoding.value_bytes]
            values = np.frombuffer(part, encoding.value, count).astype("float32")
            vector[layout.starts[place] : layout.ends[place]] = values * scales[place]
            at += len(part)
    largest = np.abs(vector).max()
    if not float(largest) <= limits.max_value:  # false for NaN too
        _refuse_value(vector, layout, limits)
    return Update(round_number, samples, Weights(layout, vector), metrics)


def _whole(value: object, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise UpdateError(f"{name} is {shorten(value)}; it is a whole number from {least} to {most}")
    return value


def _metrics(given: object, limits: UpdateLimits) -> dict[str, float]:
    if not isinstance(given, Mapping) or len(given) > limits.max_metrics:
        raise UpdateError(f"metrics are {shorten(given)}; they are a map of {limits.max_metrics} names at most")
    for name, value in given.items():
        if not isinstance(name, str) or not 0 < len(name) <= limits.max_metric_chars:
            raise UpdateError(
                f"a metric is named {shorten(name)}; a name has 1 to {limits.max_metric_chars} characters"
            )
        if type(value) is not float or not math.isfinite(value):
            raise UpdateError(f"metric {name!r} is {shorten(value)}; it is a finite float")
    return dict(given)


def _rows(given: object, layout: Layout) -> tuple[list[Encoding], list[float]]:
    """Return encoding and scale of each array, after comparing names and shapes with those of the model."""
    if not isinstance(given, list) or len(given) != len(layout.names):
        count = len(given) if isinstance(given, list) else shorten(given)
        raise UpdateError(f"the update has {count} arrays; the model has {len(layout.names)}")
    encodings: list[Encoding] = []
    scales: list[float] = []
    for row, name, shape in zip(given, layout.names, layout.shapes, strict=True):
        if not isinstance(row, list) or not 3 <= len(row) <= 4:
            raise UpdateError(f"an array is described by {shorten(row)}; expected name, shape, type and scale")
        if row[0] != name:
            raise UpdateError(f"array {shorten(row[0])} stands where the model has {name!r}")
        if row[1] != list(shape) or any(type(one) is not int for one in row[1]):
            raise UpdateError(f"array {name!r} has shape {shorten(row[1])}; the model's has {list(shape)}")
        if not isinstance(row[2], str) or row[2] not in list(Encoding):
            raise UpdateError(f"array {name!r} is {shorten(row[2])}; known are {', '.join(Encoding)}")
        encoding = Encoding(row[2])
        if (encoding is Encoding.INT8) != (len(row) == 4):
            raise UpdateError(f"array {name!r}: int8 has a scale, and the other types have none")
        scale = row[3] if len(row) == 4 else 1.0
        if type(scale) is not float or not 0.0 <= scale < math.inf:
            raise UpdateError(f"array {name!r} has the scale {shorten(scale)}; it is a finite float from 0")
        encodings.append(encoding)
        scales.append(scale)
    return encodings, scales


def _refuse_value(vector: Any, layout: Layout, limits: UpdateLimits) -> None:
    """Refuse the first array with a value that is not finite or too large."""
    fits = np.abs(vector) <= limits.max_value
    name = layout.array_at(int(np.argmin(fits)))
    for found, start, end in zip(layout.names, layout.starts, layout.ends, strict=True):
        if found == name and not bool(np.isfinite(vector[start:end]).all()):
            raise UpdateError(f"array {name!r} has a value that is not finite")
    raise UpdateError(f"array {name!r} has a value beyond {limits.max_value:g}")
