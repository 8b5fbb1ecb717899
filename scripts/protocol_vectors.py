"""Test vectors of docs/protocol.md: `python scripts/protocol_vectors.py` writes docs/vectors/frames.jsonl."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from walle import protocol
from walle.pipeline.features.checksums import first_link, next_link, row_checksum
from walle.pipeline.tunnel.dictionaries import Dictionary, train_dictionary
from walle.pipeline.tunnel.frames import Encoder

FILE = Path(__file__).parent.parent / "docs/vectors/frames.jsonl"
_VISIT = b'{"page":"item/%d","clicks":%d,"dwell_ms":%d}'


def _uploads(first: int, count: int) -> tuple[protocol.Upload, ...]:
    numbers = range(first, first + count)
    return tuple(protocol.Upload(n, "visit", _VISIT % (n, n % 3, n * 100), 1_700_000_000_000 + n) for n in numbers)


def dictionary() -> bytes:
    """Return the dictionary of the vectors, the smallest that zstd trains from this."""
    samples = [_VISIT % (n * 7, n % 5, n * 321 % 10_000) for n in range(400)]
    return train_dictionary(samples, 512)


_MESSAGES: tuple[protocol.Frame, ...] = (
    protocol.Hello(
        "device-1", "e5", "secret", protocol=3, acked=2, acked_chain=77, origins="d4:9:9:3", dictionaries=""
    ),
    protocol.Welcome(2, 256, 77, protocol=3, window_bytes=1 << 20, dictionaries="1,3"),
    protocol.Upload(3, "visit", b"\x00\xff", 1_700_000_000_000),
    protocol.UploadBatch(_uploads(4, 2)),
    protocol.Ack(5),
    protocol.Request(1, "rank", b"q", priority=-5, deadline_ms=1500),
    protocol.Cancel(1),
    protocol.Response(1, b"", "no model named ipv", "failed"),
    protocol.Refusal("draining", "the cloud is about to stop this tunnel", 0.0, "tunnel-2.example", 7443),
    protocol.Drain(0.0, 10.0, "tunnel-2.example", 7443),
    protocol.Ping(-1),
    protocol.Pong(-1),
)
_OF_PROTOCOL_4: tuple[protocol.Frame, ...] = (
    protocol.Hello("device-1", "e5", "secret", protocol=4),
    protocol.Upload(3, "visit", b"\x00\xff", 1_700_000_000_000, "v12"),
    protocol.UploadBatch((protocol.Upload(4, "visit", b"1", 7, "v12"), protocol.Upload(5, "visit", b"2", 8))),
)
_OF_PROTOCOL_2: tuple[protocol.Frame, ...] = (
    protocol.Hello("device-1", "e5", "secret", protocol=2),
    protocol.Welcome(2, 256, 77, protocol=2),
    protocol.Request(1, "rank", b"q"),
    protocol.Response(1, b"a", ""),
    protocol.Refusal("gap", "upload 4 came where 3 was due", 0.0),
)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(dataclasses.asdict(upload)) for upload in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value


def _vector(frame: protocol.Frame, version: int, data: bytes) -> dict[str, Any]:
    fields = {field.name: _plain(getattr(frame, field.name)) for field in dataclasses.fields(frame)}
    for upload in (fields, *fields.get("uploads", ())):
        if "version" in upload and version < protocol.VERSIONS_FROM:
            del upload["version"]
    return {"message": type(frame).__name__, "protocol": version, "fields": fields, "frame": data.hex()}


def vectors() -> list[dict[str, Any]]:
    """Return every vector; those of compressed frames depend on the version of zstd."""
    encoder, learned = Encoder(), Dictionary(dictionary())
    found = [_vector(message, 3, encoder.encode(message, version=3)) for message in _MESSAGES]
    found += [_vector(message, 4, encoder.encode(message)) for message in _OF_PROTOCOL_4]
    found += [_vector(message, 2, encoder.encode(message, version=2)) for message in _OF_PROTOCOL_2]
    batch, lone = protocol.UploadBatch(_uploads(6, 6)), _uploads(12, 1)[0]
    found.append({**_vector(batch, 3, encoder.encode(batch)), "compressed": True})
    with_dictionary = encoder.encode(lone, number=1, dictionary=learned)
    found.append({**_vector(lone, 3, with_dictionary), "compressed": True, "dictionary": dictionary().hex()})
    chain = first_link("e5")
    chains = [chain]
    for upload in _uploads(1, 2):
        chain = next_link(chain, row_checksum(upload.topic, upload.payload, upload.sent_ms))
        chains.append(chain)
    uploads = _vector(protocol.UploadBatch(_uploads(1, 2)), 3, b"")["fields"]["uploads"]
    found.append({"chain": chains, "epoch": "e5", "uploads": uploads})
    return found


def read_vectors() -> list[dict[str, Any]]:
    """Return the vectors of the file."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(vector) + "\n" for vector in vectors()), encoding="utf-8")
