"""Stored uploads in columns, for exports of many: the values of `feature_row`, a list for each field."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from walle.base import plain
from walle.base.plain_json import MAX_ELEMENTS
from walle.pipeline.ingest.store.feature_reader import decoded_payload, iso_time, page_of, task_of
from walle.pipeline.ingest.store.upload_columns import UploadColumns

# A payload with more values, or an array of more elements, than `decoded_payload` decodes is longer.
_CHECKED_FROM_BYTES = MAX_ELEMENTS
_task_of = functools.lru_cache(1000)(task_of)
_MILLISECONDS = [f"{ms:03d}Z" for ms in range(1000)]


class FeatureColumns(NamedTuple):
    """Features in columns: all fields of `feature_row` but the payload, by name; and the payloads, decoded."""

    fields: dict[str, Sequence[Any]]
    payloads: Sequence[Any]


def feature_columns(uploads: UploadColumns) -> FeatureColumns:
    """Return uploads as features in columns."""
    if not uploads.positions:
        return FeatureColumns({}, [])
    values, errors = _decoded(uploads.payloads)
    fields: dict[str, Sequence[Any]] = {
        "position": uploads.positions,
        "time": _iso_times(uploads.received_ms),
        "device": uploads.devices,
        "task": list(map(_task_of, uploads.topics)),
        "version": uploads.versions,
        "topic": uploads.topics,
        "page": _pages(values),
        "sent_ms": uploads.sent_ms,
        "received_ms": uploads.received_ms,
        "error": errors,
    }
    return FeatureColumns(fields, values)


def _decoded(payloads: Sequence[bytes]) -> tuple[Sequence[Any], Sequence[str | None]]:
    """Return each payload's value, None where it cannot be decoded, and the error there."""
    if max(map(len, payloads)) < _CHECKED_FROM_BYTES:
        with contextlib.suppress(plain.PlainDataError, TypeError, RecursionError):
            return list(map(plain.decode, payloads)), [None] * len(payloads)
    found = [decoded_payload(data) for data in payloads]
    return [value for value, _ in found], [error for _, error in found]


def _pages(values: Sequence[Any]) -> list[str]:
    """Return `page_of` each value; most are tables with the first of its two keys."""
    if set(map(type, values)) == {dict}:
        pages = [value.get("page") for value in values]
        if set(map(type, pages)) == {str}:
            return pages
    return list(map(page_of, values))


def _iso_times(times: Sequence[int]) -> list[str]:
    """Return `iso_time` of each; most times of a page are of few seconds."""
    if not 0 <= min(times) <= max(times) < 1 << 45:  # times before 1970, or after the year 3084
        return list(map(iso_time, times))
    seconds = [ms // 1000 for ms in times]
    texts = {second: iso_time(second * 1000)[:-4] for second in set(seconds)}
    return [texts[second] + _MILLISECONDS[ms - 1000 * second] for second, ms in zip(seconds, times, strict=True)]
