"""Stored uploads in columns, for exports of many: the values of `feature_row`, a list for each field."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from walle import plain
from walle.pipeline.ingest.feature_reader import feature_row, iso_time, page_of, task_of
from walle.pipeline.tunnel.received import Received
from walle.plain_json import MAX_ELEMENTS

# A payload with more values, or an array of more elements, than `feature_row` decodes is longer.
_CHECKED_FROM_BYTES = MAX_ELEMENTS
_task_of = functools.lru_cache(1000)(task_of)
_MILLISECONDS = [f"{ms:03d}Z" for ms in range(1000)]


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
        "time": _iso_times(times),
        "device": devices,
        "task": list(map(_task_of, topics)),
        "version": versions,
        "topic": topics,
        "page": _pages(values),
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


def _pages(values: Sequence[Any]) -> list[str]:
    """Return `page_of` each value; most are tables with the first of its two keys."""
    if set(map(type, values)) == {dict}:
        pages = [value.get("page") for value in values]
        if set(map(type, pages)) == {str}:
            return pages
    return list(map(page_of, values))


def _iso_times(times: Sequence[int]) -> list[str]:
    """Return `iso_time` of each; most times of a page are of few seconds."""
    if not 0 <= min(times) <= max(times) < 1 << 45:  # until the year 3084
        return list(map(iso_time, times))
    seconds = {second: iso_time(second * 1000)[:-4] for second in {ms // 1000 for ms in times}}
    return [seconds[ms // 1000] + _MILLISECONDS[ms % 1000] for ms in times]
