"""Messages of the tunnel (§5.2), each in one frame of `walle.pipeline.tunnel.frames`. The rules: docs/protocol.md."""

import dataclasses
import re
from collections.abc import Sequence

from walle.protocol.fields import ProtocolError, shorten

PROTOCOL_VERSION = 4
OLDEST_PROTOCOL = 2  # lowest protocol that the cloud still serves
OLDEST_CLOUD = 3  # the lowest protocol in which a device speaks to a cloud
VERSIONS_FROM = 4  # the lowest protocol in which uploads have the versions of their tasks
MAX_VERSION_CHARS = 64
UNKNOWN_VERSION = "unknown"  # people see it; an upload has ""
MAX_SEQ = 2**62  # limit of an upload's number; a Hello with a higher one is forged
MAX_DICTIONARIES = 16  # dictionaries in one Hello
MAX_DICTIONARY_BYTES = 128 << 10
DICTIONARY_MARK = b"\x37\xa4\x30\xec"  # the first bytes of a zstd dictionary
MAX_DEADLINE_MS = 3_600_000  # limit of a request
PRIORITIES = range(-100, 101)  # range of a request's priority; a higher one is sent and started first

_DIGEST = re.compile(r"[0-9a-f]{64}")


def sound_version(text: str) -> str:
    """Return the text if it can be a task's version: 1 to MAX_VERSION_CHARS printable ASCII characters; else ""."""
    is_sound = len(text) <= MAX_VERSION_CHARS and text.isascii() and text.isprintable() and " " not in text
    return text if is_sound else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """An earlier epoch of the same outbox. The cloud acknowledged its uploads up to `acked`.

    Its upload `seq + offset` is upload `seq` of the present epoch, for seq <= `upto`.
    """

    epoch: str
    acked: int
    offset: int
    upto: int

    MAX_COUNT = 8  # entries in one Hello: the latest


def origins_to_text(origins: Sequence[Origin]) -> str:
    return ",".join(f"{origin.epoch}:{origin.acked}:{origin.offset}:{origin.upto}" for origin in origins)


def origins_from_text(text: str) -> tuple[Origin, ...]:
    """Parse the text. Raises ProtocolError if it does not name origins."""
    origins = []
    for part in text.split(",") if text else ():
        epoch, *numbers = part.split(":")
        if not epoch or len(numbers) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ProtocolError("hello.origins", f"{shorten(part)} is not EPOCH:ACKED:OFFSET:UPTO")
        if max(map(len, numbers)) > len(str(MAX_SEQ)) or max(map(int, numbers)) > MAX_SEQ:
            raise ProtocolError("hello.origins", f"{shorten(part)} has a number above {MAX_SEQ}")
        origins.append(Origin(epoch, *map(int, numbers)))
    if len(origins) > Origin.MAX_COUNT:
        raise ProtocolError("hello.origins", f"names {len(origins)} epochs, at most {Origin.MAX_COUNT} are accepted")
    return tuple(origins)


def digests_from_text(text: str) -> tuple[str, ...]:
    """Parse a Hello's dictionaries: SHA-256 digests in hex. Raises ProtocolError if they are not."""
    digests = tuple(text.split(",")) if text else ()
    for digest in digests:
        if _DIGEST.fullmatch(digest) is None:
            raise ProtocolError("hello.dictionaries", f"{shorten(digest)} is not a SHA-256 digest in lower-case hex")
    if len(digests) > MAX_DICTIONARIES:
        raise ProtocolError("hello.dictionaries", f"names {len(digests)}, at most {MAX_DICTIONARIES} are accepted")
    return digests


def numbers_from_text(text: str) -> tuple[int, ...]:
    """Parse a Welcome's dictionaries: their positions in the Hello, from 1. Raises ProtocolError if they are not."""
    parts = text.split(",") if text else []
    if not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        raise ProtocolError("welcome.dictionaries", f"{shorten(text)} is not a list of numbers")
    return tuple(map(int, parts))


@dataclasses.dataclass(frozen=True, slots=True)
class OutboxMark:
    """The description of an outbox in a Hello; see there."""

    epoch: str
    acked: int
    acked_chain: int
    origins: tuple[Origin, ...] = ()


@dataclasses.dataclass(frozen=True)
class Hello:
    """First frame of a connection. `epoch` is the id under which the device numbers its uploads from 1.

    `acked` is the highest number whose acknowledgement the device has recorded, `acked_chain` the chain value there
    (`walle.pipeline.features.checksums`). A cloud whose file went back in time, so that it has less, continues after
    it. `origins` names the epochs that this one continues, as `origins_to_text` writes them: the cloud drops uploads
    that it has from them, and reports acknowledged ones that it lacks. `protocol` is the highest version that the
    device speaks. `dictionaries` are the SHA-256 digests of the zstd dictionaries that it may use, separated by commas.
    """

    device_id: str
    epoch: str
    token: str
    protocol: int = PROTOCOL_VERSION
    acked: int = 0
    acked_chain: int = 0
    origins: str = ""
    dictionaries: str = ""


@dataclasses.dataclass(frozen=True)
class Welcome:
    """The cloud's answer to Hello: `acked` is the highest durable sequence number of the device's epoch.

    The device sends the uploads after it. At most `window` uploads, of `window_bytes` in topics and payloads, may be
    unacknowledged; one of any size always may. `chain` is the chain value at `acked`. A device with another value
    there, or that never assigned that number, has gone back in time: it starts a new epoch and connects again.
    `protocol` is the version of this connection. `dictionaries` are those that the cloud has, by their positions in
    the Hello from 1, separated by commas.
    """

    acked: int
    window: int
    chain: int
    protocol: int = PROTOCOL_VERSION
    window_bytes: int = 1 << 20
    dictionaries: str = ""


@dataclasses.dataclass(frozen=True)
class Upload:
    """One feature. Sequence numbers of an epoch start at 1 without gaps; `sent_ms` is by the device's clock.

    `version` is that of the task which made it, "" if unknown. It needs protocol 4, and is not part of the chain.
    """

    seq: int
    topic: str
    payload: bytes
    sent_ms: int
    version: str = ""


@dataclasses.dataclass(frozen=True)
class UploadBatch:
    """Uploads that follow each other, in one frame, so that they are compressed together."""

    uploads: tuple[Upload, ...]


@dataclasses.dataclass(frozen=True)
class Ack:
    """Acknowledgement: everything up to and with `seq` is durable in the cloud, and the device may remove it."""

    seq: int


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of the device, answered at most once; not repeated on another connection.

    `deadline_ms` after it was written the device does not wait any more, 0 for no deadline. The cloud does not start
    an expired request, and stops one that expires.
    """

    request_id: int
    topic: str
    payload: bytes
    priority: int = 0
    deadline_ms: int = 0


@dataclasses.dataclass(frozen=True)
class Cancel:
    """The device does not wait for an answer any more: the cloud stops the request, and does not answer."""

    request_id: int


@dataclasses.dataclass(frozen=True)
class Response:
    """The answer to a request. `error` and `code` are empty if it succeeded."""

    request_id: int
    payload: bytes
    error: str = ""
    code: str = ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The last frame before the cloud disconnects. `retry_s` < 0: do not reconnect unchanged.

    A `host` that is not empty names the address to connect to instead.
    """

    code: str
    message: str
    retry_s: float = -1.0
    host: str = ""
    port: int = 0


@dataclasses.dataclass(frozen=True)
class Drain:
    """The cloud will stop this tunnel. The device moves after `after_s` and a random time up to `spread_s`.

    Until then nothing changes. Then it sends nothing new, waits for what is in flight, and connects to `host` and
    `port`, or to the same address if `host` is empty.
    """

    after_s: float
    spread_s: float
    host: str = ""
    port: int = 0


@dataclasses.dataclass(frozen=True)
class Ping:
    token: int


@dataclasses.dataclass(frozen=True)
class Pong:
    token: int


type Frame = Hello | Welcome | Upload | UploadBatch | Ack | Request | Cancel | Response | Refusal | Drain | Ping | Pong
