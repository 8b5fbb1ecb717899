"""Messages of the tunnel (§5.2), each in one frame of `walle.pipeline.tunnel.frames`."""

import dataclasses
from collections.abc import Sequence

from walle.protocol.fields import ProtocolError, shorten

PROTOCOL_VERSION = 2
MAX_SEQ = 2**62  # of an upload; a Hello with a higher one is forged


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """An earlier epoch of the same outbox. The cloud acknowledged its uploads up to `acked`.

    Its upload `seq + offset` is upload `seq` of the present epoch, for seq <= `upto`.
    """

    epoch: str
    acked: int
    offset: int
    upto: int

    MAX_COUNT = 8  # in one Hello: the latest


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
    (`walle.pipeline.checksums`). A cloud whose file went back in time, so that it has less, continues after it.
    `origins` names the epochs that this one continues, as `origins_to_text` writes them: the cloud drops uploads that
    it has from them, and reports acknowledged ones that it lacks.
    """

    device_id: str
    epoch: str
    token: str
    protocol: int = PROTOCOL_VERSION
    acked: int = 0
    acked_chain: int = 0
    origins: str = ""


@dataclasses.dataclass(frozen=True)
class Welcome:
    """The cloud's answer to Hello: `acked` is the highest durable sequence number of the device's epoch.

    The device sends the uploads after it. At most `window` uploads may be unacknowledged. `chain` is the chain value at
    `acked`. A device with another value there, or that never assigned that number, has gone back in time: it starts a
    new epoch and connects again.
    """

    acked: int
    window: int
    chain: int


@dataclasses.dataclass(frozen=True)
class Upload:
    """One feature. Sequence numbers of an epoch start at 1 without gaps; `sent_ms` is by the device's clock."""

    seq: int
    topic: str
    payload: bytes
    sent_ms: int


@dataclasses.dataclass(frozen=True)
class Ack:
    """Acknowledgement: everything up to and with `seq` is durable in the cloud, and the device may remove it."""

    seq: int


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of the device, answered at most once; not repeated on another connection."""

    request_id: int
    topic: str
    payload: bytes


@dataclasses.dataclass(frozen=True)
class Response:
    """The answer to a request. `error` is empty if it succeeded."""

    request_id: int
    payload: bytes
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The last frame before the cloud disconnects. `retry_s` < 0: do not reconnect unchanged."""

    code: str
    message: str
    retry_s: float = -1.0


@dataclasses.dataclass(frozen=True)
class Ping:
    token: int


@dataclasses.dataclass(frozen=True)
class Pong:
    token: int


type Frame = Hello | Welcome | Upload | Ack | Request | Response | Refusal | Ping | Pong
