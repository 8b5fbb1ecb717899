"""Coded files on a device (§6): what the network brought, and the bytes that the manifest lists."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard

from walle.base.durable_file import write_all
from walle.base.file_coding import (
    DCZ,
    HEADER_BYTES,
    XOR,
    XOR_BLOCK_BYTES,
    ZSTD,
    ZSTD_WINDOW_BYTES,
    dcz_header,
    window_bytes,
    xor_decoded,
    xor_header,
)
from walle.deploy.agent.fetch import HeldPart
from walle.errors import DeployError

_CHUNK_BYTES = 256 << 10


class Base(NamedTuple):
    """A file that the device has, to which a difference may be sent."""

    sha256: str
    path: Path
    size_bytes: int


class CodingError(DeployError):
    """Bytes that are not the coding of a file of the signed length. The whole file may still be had."""


class CodedPart:
    """Part of one coded file that came: its bytes, and beside them which coding they are in. Blocks on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about = path.with_name(f"{path.name}.about")

    def held(self, dictionary: str) -> HeldPart | None:
        """Return what is here of a coding that `dictionary` decodes ("" for none); something else is removed."""
        try:
            coding, etag, needed = json.loads(self._about.read_bytes())
            size_bytes = self._path.stat().st_size
        except (FileNotFoundError, ValueError, TypeError):
            self.drop()
            return None
        if not size_bytes or not etag or (coding in (DCZ, XOR) and needed != dictionary):
            self.drop()
            return None
        return HeldPart(str(coding), str(etag), size_bytes)

    def begin(self, coding: str, etag: str, dictionary: str) -> None:
        """Remove what is here, for a file that comes from its start."""
        self.drop()
        self._path.touch()
        self._about.write_text(json.dumps([coding, etag, dictionary]))

    def append(self, data: bytes) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            write_all(handle, data)
        finally:
            os.close(handle)

    def decode(self, coding: str, target: Path, *, size_bytes: int, base: Base | None) -> None:
        """Write the file to `target` and remove the coded bytes; raises as `decode` does."""
        try:
            decode(self._path, coding, target, size_bytes=size_bytes, base=base)
        finally:
            self.drop()

    def drop(self) -> None:
        self._about.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)


def decode(coded: Path, coding: str, target: Path, *, size_bytes: int, base: Base | None) -> None:
    """Write the `size_bytes` bytes of the file that `coded` is a coding of to `target`; blocks on the disk.

    `base` is the file that the device named in its request. No byte beyond `size_bytes` is written, and memory is
    bounded by the coding: twice the base and once the file for `dcz`, 8 MiB for `zstd`, twice that for `walle-xor`.

    Raises:
        CodingError: `coded` is of another coding or length; `target` may have been written in part.
        OSError: a disk error.
    """
    with coded.open("rb") as source:
        try:
            chunks = _chunks(source, coding, base)
            written_bytes = 0
            with target.open("wb") as file:
                for chunk in chunks:
                    written_bytes += len(chunk)
                    if written_bytes > size_bytes:
                        raise CodingError(f"decodes to more than the {size_bytes} bytes that are signed")
                    file.write(chunk)
        except zstandard.ZstdError as error:
            raise CodingError(f"cannot be decoded from {coding}: {error}") from error
    if written_bytes < size_bytes:
        raise CodingError(f"decodes to {written_bytes} bytes, {size_bytes} are signed")


def _chunks(source: BinaryIO, coding: str, base: Base | None) -> Iterator[bytes]:
    if coding == ZSTD:
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    elif coding == DCZ and base is not None:
        if source.read(HEADER_BYTES) != dcz_header(base.sha256):
            raise CodingError("its dictionary is not the file that the request named")
        content = base.path.read_bytes()
        decompressor = zstandard.ZstdDecompressor(
            dict_data=zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT),
            max_window_size=window_bytes(len(content)),
        )
    elif coding == XOR and base is not None:
        yield from _mixed_chunks(source, base)
        return
    else:
        raise CodingError(f"has the coding {coding[:20]!r}, which was not asked for")
    with decompressor.stream_reader(source, read_size=_CHUNK_BYTES, closefd=False) as reader:
        while chunk := reader.read(_CHUNK_BYTES):
            yield chunk


def _mixed_chunks(source: BinaryIO, base: Base) -> Iterator[bytes]:
    """Yield the blocks of a file of which `walle-xor` with `base` made `source`."""
    if source.read(HEADER_BYTES) != xor_header(base.sha256):
        raise CodingError("its base is not the file that the request named")
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    with (
        base.path.open("rb") as old,
        decompressor.stream_reader(source, read_size=_CHUNK_BYTES, closefd=False) as reader,
    ):
        while block := reader.read(XOR_BLOCK_BYTES):
            yield xor_decoded(block, old.read(len(block)))
