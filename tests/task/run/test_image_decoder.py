"""Images of strangers are decoded in a process that may end, and say what it likes, without harm to the cloud."""

import asyncio
import struct
import zlib
from collections.abc import Iterator

import pytest

from tests.sim.vm_hosts import CRASHES
from walle import cv, np
from walle.task.run import image_decoder
from walle.task.run.image_decoder import ImageDecoder
from walle.vm import VmHost

PNG = bytes(memoryview(cv.imencode(".png", np.full((20, 30, 3), 7, "uint8"))[1]))


@pytest.fixture
def decoder() -> Iterator[ImageDecoder]:
    host = VmHost()
    made = ImageDecoder(host)
    yield made
    made.close()
    host.close()


def bomb(side: int) -> bytes:
    """Return a small PNG file of many black pixels."""
    rows = zlib.compress(b"\0" * ((side * 3 + 1) * side), 9)
    parts = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        file += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return file


@pytest.mark.asyncio
@pytest.mark.vm_host
async def test_an_image_is_decoded_as_here_and_bad_ones_are_refused(decoder: ImageDecoder) -> None:
    found = await decoder.decode(PNG)
    assert (found.shape, found.dtype, found.tolist()) == ((20, 30, 3), "uint8", [[[7, 7, 7]] * 30] * 20)
    for data in (b"", b"text", PNG[:40], PNG[:8] + b"\xff" * 100):
        with pytest.raises(ValueError, match="is not a JPEG or PNG image, or is damaged"):
            await decoder.decode(data)
    with pytest.raises(ValueError, match="cannot be decoded: "):
        await decoder.decode(bomb(9_000))  # 0.2 MB that take 243
    assert (await decoder.decode(PNG)).shape == (20, 30, 3)


@pytest.mark.asyncio
@pytest.mark.vm_host
async def test_a_file_that_ends_or_takes_over_its_decoder_is_refused_and_the_next_is_decoded(
    decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        image_decoder, "_PROGRAM", f"{CRASHES}\ndef decode(data):\n    return run() if data == b'crash' else data\n"
    )
    with pytest.raises(ValueError, match=r"cannot be decoded: .*SIGSEGV"):
        await decoder.decode(b"crash")
    with pytest.raises(ValueError, match="its process gave something else than an image"):
        await decoder.decode(b"other")
    monkeypatch.undo()
    assert (await asyncio.wait_for(decoder.decode(PNG), 30)).shape == (20, 30, 3)
