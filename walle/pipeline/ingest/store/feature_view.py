"""Views of stored uploads: the latest feature of each key, such as user and page, in bounded memory."""

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, Self

from walle.base import plain
from walle.base.waiting import first_of
from walle.engine_ext._core import packed_values
from walle.errors import ConfigError, PipelineError
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore, is_cut
from walle.pipeline.tunnel.received import Received
from walle.protocol import MAX_ID_CHARS

_LOG = logging.getLogger(__name__)

DEVICE = "device"  # a field of a key: the device's id, which no payload needs to have
_BATCH = 1000
_POLL_S = 0.2
_RETRY_S = 1.0
_MAX_VALUES = 1 << 19  # limit of a decoded upload, with values in containers: 8 MB of empty lists take 500 MB


class FeatureViewError(PipelineError):
    """A look-up in a view that does not exist, or with another key than the view's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """A view `name` of the uploads of `topic`, whose payloads are tables with the fields `key`.

    The name begins with a scenario, `shop/visits`. Tasks of that scenario may read the view, if the topic is theirs or
    their task.toml lists it under [reads].
    """

    name: str
    topic: str
    key: tuple[str, ...]
    max_keys: int = 100_000
    max_bytes: int = 64 << 20  # limit for all payloads kept
    history: int = 200_000  # positions before the last one that are read at the start

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `SCENARIO/VIEW=TOPIC:FIELD,FIELD`. Raises ConfigError if the text is not that."""
        name, _, source = text.partition("=")
        topic, _, fields = source.rpartition(":")
        key = tuple(fields.split(","))
        scenario, _, view = name.partition("/")
        if not (scenario and view and topic.startswith(f"{scenario}/") and all(key)):
            raise ConfigError(
                f"feature view {text!r} cannot be read; write SCENARIO/VIEW=TOPIC:FIELD,FIELD, with a topic of the same"
                f" scenario, such as shop/visits=shop/ipv:{DEVICE},page"
            )
        return cls(name=name, topic=topic, key=key)


class FeatureView:
    """The latest payload of each key. `run` keeps it up to date; the key that was not renewed for longest leaves first.

    `skipped` counts uploads without the fields of the key, with one of more than MAX_ID_CHARS, or with more values than
    are decoded; `evicted` the keys that left.
    """

    def __init__(self, config: ViewConfig, store: UploadStore) -> None:
        self.config = config
        self.skipped = 0
        self.evicted = 0
        self.position = 0  # position of the latest upload in the view
        self._store = store
        self._latest: collections.OrderedDict[tuple[Any, ...], bytes] = collections.OrderedDict()
        self._size_bytes = 0
        self._generation: int | None = None  # generation of the store, None before the first upload

    def __len__(self) -> int:
        return len(self._latest)

    def latest(self, key: Mapping[str, Any]) -> Any:
        """Return the latest payload of a key, None if there is none.

        Raises:
            FeatureViewError: `key` does not have the view's fields.
        """
        if key.keys() != set(self.config.key):
            what = f"has the key {', '.join(self.config.key)}, was asked by {', '.join(key) or 'nothing'}"
            raise FeatureViewError(f"feature view {self.config.name!r} {what}")
        try:
            data = self._latest.get(tuple(key[field] for field in self.config.key))
        except (TypeError, ValueError) as error:
            raise FeatureViewError(
                f"feature view {self.config.name!r}: a value of the key is a list, table or array"
            ) from error
        return None if data is None else plain.decode(data)

    async def run(self) -> None:
        """Follow the stored uploads, until cancelled. A store that cannot be used is tried again."""
        while True:
            changed = self._store.changed
            try:
                more = await self.refresh()
            except IngestError as error:
                _LOG.warning("feature view %r is not renewed: %s", self.config.name, error)
                await self._store.clock.sleep(_RETRY_S)
                continue
            if not more:
                await self._wait(changed)

    async def refresh(self) -> bool:
        """Take in the next uploads; return whether there may be more. Raises IngestError."""
        if self._generation is None:
            await self._restart()
        rows = await self._store.query(topic=self.config.topic, after=self.position, limit=_BATCH)
        if self._store.generation != self._generation or (not rows and await self._store.head() < self.position):
            _LOG.warning("feature view %r is made again: the store of uploads was replaced", self.config.name)
            await self._restart()
            return True
        for position, received in rows:
            self.position = position
            self.add(received)
        return is_cut(rows, _BATCH)

    async def _restart(self) -> None:
        """Begin with the latest uploads of the store as it is now."""
        position = max(0, await self._store.head() - self.config.history)
        self._latest.clear()
        self._size_bytes = 0
        self.position, self._generation = position, self._store.generation

    def add(self, received: Received) -> None:
        """Take an upload in; one without the key's fields is counted and left out."""
        if packed_values(received.payload) > _MAX_VALUES:
            self.skipped += 1
            return
        try:
            payload = plain.decode(received.payload)
            fields = {**payload, DEVICE: received.device_id}
            key = tuple(fields[field] for field in self.config.key)
            if any(isinstance(part, str | bytes) and len(part) > MAX_ID_CHARS for part in key):
                raise ValueError(key)  # noqa: TRY301 - the same as for a key that is none
            before = self._latest.pop(key, b"")
        except (plain.PlainDataError, KeyError, TypeError, ValueError):  # ValueError: an array has no hash
            self.skipped += 1
            return
        self._latest[key] = received.payload
        self._size_bytes += len(received.payload) - len(before)
        while len(self._latest) > self.config.max_keys or self._size_bytes > self.config.max_bytes:
            _, data = self._latest.popitem(last=False)
            self._size_bytes -= len(data)
            self.evicted += 1

    async def _wait(self, changed: asyncio.Event) -> None:
        await first_of(changed.wait(), self._store.clock.sleep(_POLL_S))
