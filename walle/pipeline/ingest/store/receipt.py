"""Rules of the receipt of a batch, without I/O: new uploads, duplicates, gaps, moved uploads and reports of losses.

A store reads the streams of a batch and the stored uploads that its moved uploads may repeat, calls `sort_batch`, and
writes the result, all in one transaction.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from walle.engine_ext._core import next_upload_link
from walle.pipeline.features.checksums import CHAIN_MODULUS
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause, LossError
from walle.pipeline.features.put import MAX_TOPIC_CHARS
from walle.pipeline.tunnel.received import Received
from walle.protocol import MAX_ID_CHARS, MAX_SEQ, Hello, Origin, ProtocolError, origins_from_text

_LOG = logging.getLogger(__name__)

MAX_LOSSES = 100  # losses of a device recorded each by itself; an epoch has MAX_ID_CHARS, so that bounds the bytes too
MAX_EPOCHS = 1024  # epochs of a device: it starts one after a fault of its store, and a forged device with each Hello
MAX_READ_BYTES = 32 << 20  # limit for the payloads that one query returns
MAX_ABANDONED = 24  # epochs that one Hello shows to be lost; the next Hello shows further ones
_MAX_RELATED = 24  # streams in which a moved upload is looked for: up to 8 origins, and the newest others

type StreamKey = tuple[str, str]  # device_id, epoch
type Place = tuple[int, int]  # stream, seq
type Contents = tuple[str, bytes, int]  # topic, SHA-256 of the payload or OTHER_SIZE, sent_ms
OTHER_SIZE = b""  # replaces the hash for a stored payload of another size than the one that comes; it is not read


class Accepted(NamedTuple):
    """The result of one batch: numbers to acknowledge, and the uploads that are new, in order.

    `foreign` streams are of devices that have connected to another process since: nothing of them is stored.
    `over_quota` are those of devices that may store nothing now, each with the reason: nothing of them is stored.
    `refused` uploads were acknowledged and not stored, since their topics are not their devices'.
    `is_set_aside` is True if `UploadStore.set_aside` put the upload into the quarantine.
    """

    highest: dict[StreamKey, int]
    fresh: list[Received]
    foreign: frozenset[StreamKey] = frozenset()
    is_set_aside: bool = False
    over_quota: tuple[tuple[StreamKey, str], ...] = ()
    refused: int = 0


class RecordedLoss(NamedTuple):
    """A loss of a device's uploads, and when this store recorded it, by the cloud's clock."""

    device_id: str
    loss: Loss
    recorded_ms: int


class LossTotal(NamedTuple):
    """The recorded losses of a cause: reports, the uploads that they name, and the reports whose end is unknown.

    Each of the latter counts one upload, so that `uploads` is the least there can be where `open_reports` is not 0.
    """

    reports: int
    uploads: int
    open_reports: int = 0


class RefusedUpload(NamedTuple):
    """An upload whose contents the database refuses, with its reason. `contents` is None if it was too long to keep.

    They are a list of the upload's topic, payload, both times and version, as `plain.encode` has made it; without the
    version where it was set aside by an earlier walle.
    """

    device_id: str
    epoch: str
    seq: int
    reason: str
    contents: bytes | None
    refused_ms: int


class StreamLink(NamedTuple):
    """A row of `origins`: upload `seq + offset` of the older stream `origin` is upload `seq` of `stream`.

    For seq <= `upto`, which is 0 if the newer epoch repeats nothing.
    """

    stream: int
    origin: int
    offset: int
    upto: int


class RelatedStream(NamedTuple):
    """Another epoch of the same device: its upload `seq + offset` is upload `seq` of this one, first <= seq <= upto."""

    number: int
    offset: int
    first: int
    upto: int


@dataclasses.dataclass(slots=True)
class StoredStream:
    """The row of one (device, epoch). Uploads up to `moved` may be stored already, in the streams `related`."""

    number: int
    highest: int
    chain: int
    moved: int
    related: tuple[RelatedStream, ...] = ()


@dataclasses.dataclass
class SortedBatch:
    """A batch sorted for writing: the new uploads, `fresh`, and columns with a value for each of them.

    `streams` are the numbers of their streams, `chains` the chain values there, `topics` the topics as they are stored.
    `made_again` has streams that hold other contents where an upload of the batch was to be repeated: the first such
    number of each, and when that upload was received.
    """

    fresh: list[Received] = dataclasses.field(default_factory=list)
    streams: list[int] = dataclasses.field(default_factory=list)
    topics: list[str] = dataclasses.field(default_factory=list)
    chains: list[int] = dataclasses.field(default_factory=list)
    losses: list[RecordedLoss] = dataclasses.field(default_factory=list)
    made_again: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    refused: int = 0  # uploads that are recorded as losses, since their topics are not their devices'

    def refuse(self, received: Received) -> None:
        """Record an upload that is not stored as a loss, together with the one before it."""
        self.refused += 1
        device_id, epoch, seq = received.device_id, received.epoch, received.seq
        first_seq = seq
        if self.losses:
            latest = self.losses[-1]
            before = latest.loss
            if (latest.device_id, before.epoch, before.last_seq, before.cause) == (
                device_id,
                epoch,
                seq - 1,
                LossCause.REFUSED,
            ):
                first_seq = before.first_seq
                self.losses.pop()
        loss = Loss(epoch, first_seq, seq, LossCause.REFUSED)
        self.losses.append(RecordedLoss(device_id, loss, received.received_ms))


def check_hello(hello: Hello) -> tuple[Origin, ...]:
    """Return the origins that a Hello names.

    Raises:
        ProtocolError: the Hello holds values that no device sends.
    """
    origins = origins_from_text(hello.origins)
    if not 0 <= hello.acked <= MAX_SEQ or not 0 <= hello.acked_chain < CHAIN_MODULUS:
        raise ProtocolError("hello.acked", f"{hello.acked} with chain {hello.acked_chain} is out of range")
    names = {"hello.device_id": [hello.device_id], "hello.epoch": [hello.epoch]}
    names["hello.origins"] = [origin.epoch for origin in origins]
    for field, texts in names.items():
        if any("\0" in text for text in texts):
            raise ProtocolError(field, "contains a NUL character")
        if (longest := max(map(len, texts), default=0)) > MAX_ID_CHARS:  # an index of PostgreSQL holds 2,704 bytes
            raise ProtocolError(field, f"{longest} characters, at most {MAX_ID_CHARS} are accepted")
    if any(origin.offset + origin.upto > MAX_SEQ for origin in origins):
        raise ProtocolError("hello.origins", f"names an upload above {MAX_SEQ}")
    return origins


def known_uploads(hello: Hello, origins: Sequence[Origin]) -> list[tuple[str, int]]:
    """Return the epochs that a Hello names, each with the highest number that the device can have used in it.

    The Hello does not tell the highest of its own epoch.
    """
    return [(hello.epoch, MAX_SEQ), *((origin.epoch, origin.offset + origin.upto) for origin in origins)]


def check_epochs(epochs: int) -> None:
    """Raise ProtocolError if a device that has had this number of epochs may begin no other."""
    if epochs >= MAX_EPOCHS:
        what = f"the device has had {epochs} epochs, the most that are kept of one; give it another id"
        raise ProtocolError("hello.epoch", what)


def related_streams(number: int, links: Sequence[StreamLink]) -> tuple[RelatedStream, ...]:
    """Return the streams that may hold uploads of stream `number` under other numbers.

    These are its origins, the streams that continue it, to which a device that goes back in time returns from, and
    other streams that continue one of its origins. `links` are the rows of all of them. Of many, which only a forged
    device has, the newest count.
    """
    own = {link.origin: link for link in links if link.stream == number}
    related = [RelatedStream(link.origin, link.offset, 1, link.upto) for link in own.values()]
    for link in sorted(links, reverse=True):  # newest first
        if len(related) >= _MAX_RELATED:
            break
        if link.origin == number:
            related.append(RelatedStream(link.stream, -link.offset, link.offset + 1, link.offset + link.upto))
        elif link.stream != number and (shared := own.get(link.origin)) is not None:
            offset = shared.offset - link.offset
            related.append(RelatedStream(link.stream, offset, max(1, 1 - offset), min(shared.upto, link.upto - offset)))
    return tuple(related)


def moved_places(batch: Sequence[Received], streams: Mapping[StreamKey, StoredStream]) -> Iterator[tuple[Place, int]]:
    """Yield the places in other streams that uploads of the batch may repeat, and the bytes of these uploads' payloads.

    A stored payload of another size is not the same and need not be read: OTHER_SIZE stands for its SHA-256.
    """
    if not any(stream.moved for stream in streams.values()):
        return
    for received in batch:
        stream = streams.get(received[:2])
        if stream is not None and stream.highest < received.seq <= stream.moved:
            size_bytes = len(received.payload)
            yield from ((place, size_bytes) for place in _other_places(stream, received.seq))


def contents_of(topic: str, payload: bytes, sent_ms: int) -> Contents:
    """Return what tells an upload from others at its place. A batch may name far more payloads than fit in memory."""
    return topic, hashlib.sha256(payload).digest(), sent_ms


def sort_batch(
    batch: Sequence[Received],
    streams: Mapping[StreamKey, StoredStream],
    stored: Mapping[Place, Contents],
    storable: Callable[[str], str] | None = None,
    foreign_topics: Collection[tuple[str, str]] = (),
) -> SortedBatch:
    """Sort the uploads of a batch, and move `highest` and `chain` of their streams on.

    In each stream, numbers go up by one from the highest. Lower ones are duplicates and are dropped, as are those after
    a missing one, and those without a stream in `streams`. `stored` has the contents that are stored at `moved_places`.
    `storable` returns a topic as the store keeps it, where it cannot keep every text; chain values are of the original.
    Of a topic that is longer than any of Walle's devices has, the beginning is kept: indexes and metrics hold topics.

    Uploads of `foreign_topics`, by device and topic, are recorded as a loss in place of being stored.

    An upload that could be a repeated one and has other contents is stored. The device then went back to before it made
    the stored one, and may have made the same output again, under a new time.
    """
    result = SortedBatch()
    fresh, numbers, topics, chains = result.fresh, result.streams, result.topics, result.chains
    has_moved = any(stream.moved for stream in streams.values())
    in_batch: dict[Place, Contents] = {}
    unread: dict[str, LossError] = {}  # the latest of each device: a line for each would flood the log
    for received in batch:
        device_id, epoch, seq, topic, payload, sent_ms, _, _, _ = received
        stream = streams.get((device_id, epoch))
        if stream is None or seq != stream.highest + 1:
            continue
        stream.highest = seq
        stream.chain = next_upload_link(stream.chain, topic, payload, sent_ms)
        if topic == LOSS_TOPIC:
            try:
                loss = Loss.decode(payload)
            except LossError as unreadable:
                unread[device_id] = unreadable
            else:
                result.losses.append(RecordedLoss(device_id, loss, received.received_ms))
            continue
        if foreign_topics and (device_id, topic) in foreign_topics:
            result.refuse(received)
            continue
        if len(topic) > MAX_TOPIC_CHARS:
            topic = topic[:MAX_TOPIC_CHARS]
        if storable is not None:
            topic = storable(topic)
        if has_moved:
            contents = contents_of(topic, payload, sent_ms)
            if seq <= stream.moved:
                found = {place: in_batch.get(place, stored.get(place)) for place in _other_places(stream, seq)}
                if contents in found.values():
                    continue
                for (number, first_seq), other in found.items():
                    known = result.made_again.get(number)
                    if other is not None and (known is None or first_seq < known[0]):
                        result.made_again[number] = first_seq, received.received_ms
            in_batch[stream.number, seq] = contents
        fresh.append(received)
        numbers.append(stream.number)
        topics.append(topic)
        chains.append(stream.chain)
    for device_id, error in unread.items():
        _LOG.warning("device %r: %s", device_id, error)
    return result


def _other_places(stream: StoredStream, seq: int) -> Iterator[Place]:
    for related in stream.related:
        if related.first <= seq <= related.upto:
            yield related.number, seq + related.offset
