"""Stored uploads in columns, for exports of many: the values of `feature_row`, a list for each field."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from walle import plain
from walle.pipeline.ingest.feature_reader import feature_row, iso_time, page_of, task_of
from walle.pipeline.tunnel.connection import Received
from walle.plain_json import MAX_ELEMENTS

# A payload with more values, or an array of more elements, than `feature_row` decodes is longer.
_CHECKED_FROM_BYTES = MAX_ELEMENTS
_task_of = functools.lru_cache(1000)(task_of)
_iso_second = functools.lru_cache(1000)(iso_time)


class FeatureColumns(NamedTuple):
    """Features in columns: all fields of `feature_row` but the payload, by name; and the payloads, decoded."""

    fields: dict[str, Sequence[Any]]
    payloads: Sequence[Any]


def feature_columns(uploads: Sequence[tuple[int, Received]]) -> FeatureColumns:
    """Return uploads, with their positions, in columns."""
    if not uploads:
        return FeatureColumns({}, [])
    positions, received = zip(*uploads, strict=True)
    devices, _, _, topics, _, sent, times, _, versions = zip(*received, strict=True)
    values, errors = _decoded(uploads)
    fields: dict[str, Sequence[Any]] = {
        "position": positions,
        "time": list(map(_iso_time, times)),
        "device": devices,
        "task": list(map(_task_of, topics)),
        "version": versions,
        "topic": topics,
        "page": list(map(page_of, values)),
        "sent_ms": sent,
        "received_ms": times,
        "error": errors,
    }
    return FeatureColumns(fields, values)


def _decoded(uploads: Sequence[tuple[int, Received]]) -> tuple[Sequence[Any], Sequence[str | None]]:
    """Return the payload of each upload, None where it cannot be decoded, and the error there."""
    payloads = [one.payload for _, one in uploads]
    if max(map(len, payloads)) < _CHECKED_FROM_BYTES:
        with contextlib.suppress(plain.PlainDataError, TypeError, RecursionError):
            return list(map(plain.decode, payloads)), [None] * len(payloads)
    rows = [feature_row(*one) for one in uploads]
    return [row["payload"] for row in rows], [row.get("error") for row in rows]


def _iso_time(ms: int) -> str:
    """Return `iso_time(ms)`; most times of a page are of few seconds."""
    if not 0 <= ms < 1 << 45:  # until the year 3084
        return iso_time(ms)
    return f"{_iso_second(ms - ms % 1000)[:-4]}{ms % 1000:03d}Z"
