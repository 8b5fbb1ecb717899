"""A task's query of its device's features, `ctx.store.query`: the same on a device and in the cloud's simulation."""

from typing import Any

from walle.base import plain
from walle.errors import PipelineError
from walle.pipeline.features.database import Feature
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.topics import check_readable
from walle.protocol import Manifest

_MAX_FEATURES = 10_000  # limit of one query
_MAX_NUMBER = 2**53  # most milliseconds, and features to skip: beyond what any store has, within what SQLite takes


async def query_payloads(
    store: FeatureStore,
    manifest: Manifest,
    after_id: int,
    topic: str,
    since_ms: int = 0,
    limit: int = 100,
    skip: int = 0,
) -> list[Any]:
    """Return payloads, oldest first, as `FeatureStore.query` bounds them; those up to the id `after_id` are left out.

    `manifest` is that of the version that asks, and `topic` a full name.
    Features that are not plain data, as an older walle stored some, are removed and are in `FeatureStore.report`.

    Raises:
        PipelineError: an argument of the task's has another type.
        TopicError: the version may not read the topic.
        StoreError: the store cannot be read.
    """
    for name, value, kind in (
        ("topic", topic, str),
        ("since_ms", since_ms, int),
        ("limit", limit, int),
        ("skip", skip, int),
    ):
        if type(value) is not kind:
            raise PipelineError(f"{name} of a query must be {kind.__name__}, is {type(value).__name__}")
    check_readable(manifest.name, manifest.readable_topics, topic)
    since_ms = max(0, min(since_ms, _MAX_NUMBER))
    limit = max(0, min(limit, _MAX_FEATURES))  # SQLite takes a negative limit for none
    skip = max(0, min(skip, _MAX_NUMBER))
    while True:
        found = await store.query(topic, since_ms, limit, skip)
        payloads, faults = _decode([feature for feature in found if feature.id > after_id])
        if not faults:
            return payloads
        await store.remove_undecodable(faults)  # `skip` counts only features that a task has seen


def _decode(features: list[Feature]) -> tuple[list[Any], dict[int, str]]:
    """Return the payloads, and by number of the feature why others cannot be decoded."""
    payloads: list[Any] = []
    faults: dict[int, str] = {}
    for feature in features:
        try:
            payloads.append(plain.decode(feature.payload, strict=True))
        except plain.PlainDataError as error:
            faults[feature.id] = str(error)
    return payloads, faults
