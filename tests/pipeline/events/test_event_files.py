"""Images and arrays that a simulation's events name: what is read, and what is refused with its place."""

import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest

from walle import cv
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_files import EventFiles
from walle.pipeline.events.transient_events import transient

IMAGE = numpy.random.default_rng(1).integers(0, 255, (40, 60, 3), dtype="uint8")


ARRAYS: list[Any] = [
    numpy.arange(24).astype(kind).reshape(2, 3, 4)
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64", "float16", "float32", "f8")
]
ARRAYS += [
    numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4)),
    numpy.array([[True, False], [True, True]]),
    numpy.zeros((0, 3), "float32"),
    numpy.array([5], "float32"),
]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=True)
    return file.getvalue()


def png(image: Any) -> bytes:
    return bytes(memoryview(cv.imencode(".png", image)[1]))


def event(contents: dict[str, Any]) -> Event:
    return Event("frame", "", 1, contents)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_in_numpys_format_are_read(array: Any) -> None:
    found = EventFiles.of({"a.npy": npy(array)}).resolved(event({"x": [{"y": {"$npy": "a.npy"}}]}))
    got = found.contents["x"][0]["y"]
    assert numpy.array_equal(got, array)
    assert str(got.dtype) == str(array.dtype)


def test_images_are_read_as_imdecode_reads_them(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames/1.png").write_bytes(png(IMAGE))
    (tmp_path / "2.jpg").write_bytes(bytes(memoryview(cv.imencode(".jpg", IMAGE)[1])))
    (tmp_path / "3.png").write_bytes(png(IMAGE[:, :, 0]))
    files = EventFiles.beside(tmp_path / "events.jsonl")
    contents = {"image": {"$image": "frames/1.png"}, "n": 1, "l": [{"$image": "2.jpg"}, {"$image": "3.png"}]}
    found = files.resolved(event(contents)).contents
    assert numpy.array_equal(found["image"], IMAGE)
    assert found["l"][0].shape == (40, 60, 3)
    assert numpy.array_equal(found["l"][1], numpy.stack([IMAGE[:, :, 0]] * 3, 2))
    assert transient(files.resolved(event(contents))) is not None
    plain = event({"$other": 1, "x": {"image": "frames/1.png"}})
    assert files.resolved(plain) is plain


def test_wrong_references_are_refused_with_their_place(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(png(IMAGE))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "text.txt").write_text("no image")
    (folder / "cut.png").write_bytes(png(IMAGE)[:200])
    (folder / "huge.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    )
    (folder / "old.npy").write_bytes(npy(numpy.zeros(3, ">f4")))
    (folder / "objects.npy").write_bytes(npy(numpy.array([{1: 2}, None], object)))
    (folder / "cut.npy").write_bytes(npy(numpy.zeros(30))[:-1])
    (folder / "deep.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", 3000) + b"(" * 3000)
    files = EventFiles.beside(folder / "events.jsonl")
    for path in ("../secret.png", "/etc/passwd", "a//b.png", "./text.txt", "a\\b.png", "", "x\0y"):
        for key in ("$image", "$npy"):
            with pytest.raises(EventError, match=r"^contents\.x\[1\]: .* is not a path below the folder"):
                files.resolved(event({"x": [1, {key: path}]}))
    for name in ("link.png", "missing.png", "nothing/at.png"):
        with pytest.raises(EventError, match=r"^contents\.x: file '.*' does not exist in the folder of the events"):
            files.resolved(event({"x": {"$image": name}}))
    for name in ("text.txt", "cut.png", "huge.png", "old.npy"):
        with pytest.raises(EventError, match=rf"^contents\.x: file '{name}' is not a JPEG or PNG"):
            files.resolved(event({"x": {"$image": name}}))
    for name, what in {
        "old.npy": "elements of type '>f4'",
        "objects.npy": "elements of type",
        "cut.npy": "has 239 bytes of elements",
        "deep.npy": "header that cannot be read",
        "text.txt": "is not in NumPy's format",
    }.items():
        with pytest.raises(EventError, match=rf"^contents\.x: file '{name}' .*{what}"):
            files.resolved(event({"x": {"$npy": name}}))
    for value in ({"$image": 3}, {"$image": "a.png", "b": 1}, {"$image": "a.png", "$npy": "b.npy"}):
        with pytest.raises(EventError, match=r"^contents\.x: must be "):
            files.resolved(event({"x": value}))


def test_damaged_files_are_read_or_refused_and_nothing_else() -> None:
    rng = random.Random(3)
    for key, whole in (("$npy", npy(IMAGE[:4, :4])), ("$image", png(IMAGE[:8, :8]))):
        for _ in range(400):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(min(len(data), 140))] = rng.randrange(256)
            files = EventFiles.of({"f": bytes(data)[: rng.randrange(1, len(data) + 1)]})
            try:
                found = files.resolved(event({"x": {key: "f"}}))
            except EventError as error:
                place = error.where
            else:
                place = "contents.x"
                assert found.contents["x"].size >= 0
            assert place == "contents.x"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_files_of_one_event_are_bounded_together() -> None:
    reads: list[str] = []

    def read(path: str) -> bytes:
        reads.append(path)
        return npy(numpy.zeros(9 << 20, "uint8"))

    named = event({"frames": [{"$npy": "a.npy"}] * 1_000})
    with pytest.raises(EventError, match=r"contents\.frames\[7\].*larger than 67108864 bytes; name fewer files"):
        EventFiles(read).resolved(named)
    assert len(reads) == 8


def test_contents_that_are_nested_too_deep_are_refused() -> None:
    nested: Any = 1
    for _ in range(3_000):
        nested = [nested]
    with pytest.raises(EventError, match="nested deeper than 90 levels"):
        EventFiles.of({"a.npy": npy(IMAGE)}).resolved(event({"x": {"$npy": "a.npy"}, "y": nested}))


def test_a_shape_that_no_array_has_is_refused() -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {10**30})}}".encode()
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(EventError, match="has a wrong shape"):
        EventFiles.of({"a.npy": data}).resolved(event({"x": {"$npy": "a.npy"}}))
