"""Coded files: made on the cloud, sent by `cdn_app`, decoded on a device, over real HTTP."""

import array
import asyncio
import contextlib
import hashlib
import json
import os
import random
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.traced_memory import traced_memory
from walle.base.file_coding import (
    DCZ,
    XOR,
    ZSTD,
    dcz_header,
    format_dictionary,
    parse_dictionary,
    window_bytes,
    xor_decoded,
    xor_encoded,
    xor_header,
)
from walle.deploy.agent.coded_file import Base, CodedPart, CodingError, decode
from walle.deploy.agent.fetch import HeldPart, HttpFetcher, WrongLengthError
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.coded_files import CodedFiles
from walle.deploy.shared_files.folder_store import FolderStore
from walle.protocol import FileEntry

OLD = random.Random(1).randbytes(300_000)
NEW = OLD[:100_000] + b"inserted" * 20 + OLD[100_000:]
TEXT = b"".join(b"line %d of a text\n" % number for number in range(4000))


def entry(path: str, data: bytes, route: str = "shared") -> FileEntry:
    return FileEntry(path, hashlib.sha256(data).hexdigest(), len(data), route)


class Cloud:
    def __init__(self, folder: Path) -> None:
        self.store = FolderStore(folder / "files")
        self.coded = CodedFiles(folder / "coded", self.store)

    def release(self, new: dict[str, bytes], *older: dict[str, bytes]) -> None:
        for data in (*new.values(), *(data for version in older for data in version.values())):
            self.store.put(data)
        self.coded.make(
            [entry(path, data) for path, data in new.items()],
            [[entry(path, data) for path, data in version.items()] for version in older],
        )

    def form(self, data: bytes, *codings: str, dictionary: bytes = b"") -> tuple[str, bytes] | None:
        """Return coding and bytes of what a caller with `dictionary` gets, None for the file itself."""
        sha256 = hashlib.sha256(dictionary).hexdigest() if dictionary else ""
        found = self.coded.find(hashlib.sha256(data).hexdigest(), frozenset(codings), sha256)
        if found is None:
            return None
        with found.file as file:
            return found.coding, file.read()


def base_of(path: Path, data: bytes) -> Base:
    path.write_bytes(data)
    return Base(hashlib.sha256(data).hexdigest(), path, len(data))


def decoded(folder: Path, coding: str, coded: bytes, size_bytes: int, base: bytes = b"") -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "coded").write_bytes(coded)
    of = base_of(folder / "base", base) if base else None
    decode(folder / "coded", coding, folder / "out", size_bytes=size_bytes, base=of)
    return (folder / "out").read_bytes()


def test_a_difference_is_small_and_what_does_not_pay_is_not_kept(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.release({"model": NEW, "words": TEXT, "tiny": b"x" * 100}, {"model": OLD, "tiny": b"y"})
    found = cloud.form(NEW, DCZ, ZSTD, dictionary=OLD)
    assert found is not None
    assert found[0] == DCZ
    assert len(found[1]) < 1000
    assert decoded(tmp_path / "d", DCZ, found[1], len(NEW), OLD) == NEW
    assert cloud.form(NEW, DCZ, ZSTD) is None, "random bytes do not compress"
    assert cloud.form(NEW, ZSTD, dictionary=OLD) is None
    assert cloud.form(NEW, DCZ, ZSTD, dictionary=TEXT) is None, "a file that was not compared"
    assert cloud.form(b"x" * 100, DCZ, ZSTD, dictionary=b"y") is None
    text = cloud.form(TEXT, DCZ, ZSTD, dictionary=OLD)
    assert text is not None
    assert text[0] == ZSTD
    assert decoded(tmp_path / "t", ZSTD, text[1], len(TEXT)) == TEXT


def nudged(words: int, seed: int = 3) -> tuple[bytes, bytes]:
    """Return weights of a model (float32), and those after a training that moved each by about 1e-4 of itself."""
    rng = random.Random(seed)
    old = [rng.gauss(0, 1) for _ in range(words)]
    new = [weight * (1 + 1e-4 * rng.gauss(0, 1)) for weight in old]
    return array.array("f", old).tobytes(), array.array("f", new).tobytes()


def test_nudged_weights_travel_as_their_exclusive_or_with_the_old_ones(tmp_path: Path) -> None:
    old, new = nudged(50_000)
    cloud = Cloud(tmp_path)
    cloud.release({"model": new}, {"model": old})
    coding, coded = cloud.form(new, XOR, DCZ, ZSTD, dictionary=old) or ("", b"")
    assert (coding, len(coded) < 0.6 * len(new)) == (XOR, True)
    assert decoded(tmp_path / "d", XOR, coded, len(new), old) == new
    assert (cloud.form(new, DCZ, ZSTD, dictionary=old) or (ZSTD,))[0] == ZSTD, "a device that does not know the coding"
    assert (cloud.form(new, XOR, ZSTD) or (ZSTD,))[0] == ZSTD

    longer = new + b"1234"
    cloud.release({"model": longer}, {"model": old})
    assert (cloud.form(longer, XOR, dictionary=old)) is None, "a file of another length has its words elsewhere"


@pytest.mark.night
def test_forms_are_made_and_decoded_with_memory_that_does_not_grow_with_the_file(tmp_path: Path) -> None:
    size_bytes = 48 << 20
    block = random.Random(5).randbytes(1 << 20)
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(block * (size_bytes >> 20))
    new.write_bytes(bytes(byte ^ 1 for byte in block) * (size_bytes >> 20))
    store = FolderStore(tmp_path / "files")
    entries = [FileEntry("model", store.put_file(path), size_bytes) for path in (old, new)]
    coded = CodedFiles(tmp_path / "coded", store, max_compared_bytes=1 << 20)
    with traced_memory():
        coded.make(entries[1:], [entries[:1]])
        form = coded.find(entries[1].sha256, frozenset({XOR}), entries[0].sha256)
        assert form is not None
        with form.file:
            base = Base(entries[0].sha256, old, size_bytes)
            decode(Path(form.file.name), XOR, tmp_path / "out", size_bytes=size_bytes, base=base)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    assert peak_bytes < size_bytes // 3
    with (tmp_path / "out").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entries[1].sha256


@given(block=st.binary(max_size=70), base=st.binary(max_size=70))
def test_the_exclusive_or_is_undone(block: bytes, base: bytes) -> None:
    same = base[: len(block)].ljust(len(block), b"\0")
    assert xor_decoded(xor_encoded(block, same), same) == block


def test_the_exclusive_or_of_the_protocols_vector(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/protocol.md").read_text()
    text = page.partition("<!-- xor vector -->\n```json\n")[2].partition("\n")[0]
    old, new, content, body = (bytes.fromhex(json.loads(text)[name]) for name in ("old", "new", "content", "body"))
    assert xor_encoded(new, old) == content
    assert decoded(tmp_path, XOR, body, len(new), old) == new


@settings(max_examples=100)
@given(coded=st.binary(max_size=200), is_frame=st.booleans(), size_bytes=st.integers(0, 100))
def test_no_bytes_make_the_decoder_of_the_exclusive_or_do_more_than_refuse(
    tmp_path_factory: pytest.TempPathFactory, coded: bytes, size_bytes: int, *, is_frame: bool
) -> None:
    folder = tmp_path_factory.mktemp("xor")
    body = xor_header(hashlib.sha256(OLD[:50]).hexdigest()) + (zstandard.compress(coded) if is_frame else coded)
    try:
        data = decoded(folder, XOR, body, size_bytes, OLD[:50])
    except CodingError:
        assert not is_frame or size_bytes != len(coded)
    else:
        assert len(data) == size_bytes


def test_what_was_made_is_not_made_again_and_exclusive_files_have_no_forms(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.release({"model": NEW}, {"model": OLD})
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "coded").rglob("*.*")}
    cloud.release({"model": NEW}, {"model": OLD}, {"model": NEW})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "coded").rglob("*.*")} == before
    cloud.store.put(TEXT)
    cloud.coded.make([entry("words", TEXT, "exclusive")], [])
    assert cloud.form(TEXT, ZSTD) is None


def test_a_difference_that_needs_a_larger_window_than_the_standard_allows_is_not_made(tmp_path: Path) -> None:
    small, large = os.urandom(5000), random.Random(2).randbytes(9 << 20)
    cloud = Cloud(tmp_path)
    cloud.release({"model": large}, {"model": small})
    assert cloud.form(large, DCZ, dictionary=small) is None
    assert window_bytes(1 << 30) == 128 << 20


@settings(max_examples=60)
@given(
    old=st.binary(min_size=1, max_size=300),
    pieces=st.lists(st.tuples(st.integers(0, 299), st.integers(0, 300), st.binary(max_size=40)), max_size=8),
    repeats=st.integers(20, 60),
)
def test_every_form_decodes_to_the_file(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, pieces: list[tuple[int, int, bytes]], repeats: int
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    base = old * repeats
    new = (b"".join(base[start : start + count] + inserted for start, count, inserted in pieces) + base)[:20_000]
    new = new.ljust(4096, b"\0")
    cloud = Cloud(folder)
    cloud.release({"model": new}, {"model": base})
    for dictionary in (base, b""):
        if found := cloud.form(new, DCZ, ZSTD, dictionary=dictionary):
            assert decoded(folder / "d", *found, len(new), dictionary) == new
            assert len(found[1]) < len(new)


BOMB = zstandard.ZstdCompressor(level=19).compress(b"\0" * (64 << 20))


@pytest.mark.parametrize(
    ("coding", "coded", "match"),
    [
        (ZSTD, BOMB, "more than the 1000 bytes"),
        (ZSTD, b"", "decodes to 0 bytes"),
        (ZSTD, b"no frame", "cannot be decoded"),
        (ZSTD, zstandard.compress(b"short"), "decodes to 5 bytes"),
        (ZSTD, zstandard.compress(TEXT)[:-20], "decodes to|more than"),
        (DCZ, zstandard.compress(b"x" * 1000), "not the file that the request named"),
        (DCZ, dcz_header("00" * 32) + zstandard.compress(b"x" * 1000), "not the file that the request named"),
        (DCZ, dcz_header(hashlib.sha256(OLD).hexdigest()) + BOMB, "more than the 1000 bytes"),
        (XOR, zstandard.compress(b"x" * 1000), "not the file that the request named"),
        (XOR, xor_header("00" * 32) + zstandard.compress(b"x" * 1000), "not the file that the request named"),
        (XOR, xor_header(hashlib.sha256(OLD).hexdigest()) + BOMB, "more than the 1000 bytes"),
        (XOR, xor_header(hashlib.sha256(OLD).hexdigest()) + zstandard.compress(b"x" * 999), "decodes to 999 bytes"),
        ("br", b"x", "not asked for"),
    ],
)
def test_hostile_codings_are_refused_with_bounded_bytes(tmp_path: Path, coding: str, coded: bytes, match: str) -> None:
    with pytest.raises(CodingError, match=match):
        decoded(tmp_path, coding, coded, 1000, OLD)
    if (tmp_path / "out").exists():
        assert (tmp_path / "out").stat().st_size <= 1000


def test_a_frame_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressor.compress(b"\0" * 1000) + compressor.flush()
    with pytest.raises(CodingError, match="too much memory"):
        decoded(tmp_path, ZSTD, frame, 1000)
    with pytest.raises(CodingError, match="too much memory"):
        decoded(tmp_path, XOR, xor_header(hashlib.sha256(OLD).hexdigest()) + frame, 1000, OLD)
    with pytest.raises(CodingError, match="too much memory"):
        decoded(tmp_path, DCZ, dcz_header(hashlib.sha256(OLD).hexdigest()) + frame, 1000, OLD)


def test_a_part_of_another_dictionary_or_a_damaged_one_is_not_continued(tmp_path: Path) -> None:
    part = CodedPart(tmp_path / "blob.coded")
    assert part.held("aa") is None
    part.begin(DCZ, '"tag"', "aa")
    assert part.held("aa") is None, "nothing came yet"
    part.begin(DCZ, '"tag"', "aa")
    part.append(b"bytes")
    assert part.held("aa") == HeldPart(DCZ, '"tag"', 5)
    assert part.held("bb") is None
    assert not list(tmp_path.iterdir())
    part.begin(ZSTD, '"tag"', "aa")
    part.append(b"bytes")
    assert part.held("") == HeldPart(ZSTD, '"tag"', 5), "needs no dictionary"
    (tmp_path / "blob.coded.about").write_bytes(b"\0")
    assert part.held("") is None


def test_the_dictionary_header_is_that_of_rfc_9842() -> None:
    sha256 = hashlib.sha256(b"Hello, World!").hexdigest()
    assert parse_dictionary(format_dictionary(sha256)) == sha256
    for wrong in ("", ":x:", sha256, f":{'A' * 42}==:", f"{format_dictionary(sha256)}, :x:"):
        assert not parse_dictionary(wrong)


# --- over HTTP ---


@contextlib.asynccontextmanager
async def _serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none"))
    sockets = [server.config.bind_socket()]
    serving = asyncio.create_task(server.serve(sockets))
    port = sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


@pytest.mark.asyncio
async def test_who_accepts_no_coding_gets_the_file(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.release({"model": NEW, "words": TEXT}, {"model": OLD})
    new, text = (f"/cdn/{hashlib.sha256(data).hexdigest()}" for data in (NEW, TEXT))
    dictionary = {"Available-Dictionary": format_dictionary(hashlib.sha256(OLD).hexdigest())}
    async with _serving(cdn_app(cloud.store, cloud.coded)) as client:

        async def get(url: str, accept: str, more: dict[str, str] | None = None) -> tuple[str, bytes]:
            async with client.stream("GET", url, headers={"Accept-Encoding": accept, **(more or {})}) as answer:
                assert "available-dictionary" in answer.headers["vary"]
                return answer.headers.get("content-encoding", ""), b"".join([part async for part in answer.aiter_raw()])

        for accept in ("identity", "", "gzip, br", "zstd;q=0, dcz; q=0.0"):
            assert await get(new, accept, dictionary) == ("", NEW)
        assert (await get(new, "dcz;q=1, zstd", dictionary))[0] == DCZ
        assert (await get(new, "dcz, zstd"))[0] == ""
        assert (await get(new, "DCZ", {"Available-Dictionary": ":nonsense:"})) == ("", NEW)
        coding, coded = await get(text, "gzip, zstd")
        assert (coding, zstandard.decompress(coded)) == (ZSTD, TEXT)


@pytest.mark.asyncio
async def test_a_coded_pull_continues_where_it_ended_if_the_form_is_the_same(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.release({"model": NEW}, {"model": OLD})
    coded = cloud.form(NEW, DCZ, dictionary=OLD)
    assert coded is not None
    url, dictionary = f"/cdn/{hashlib.sha256(NEW).hexdigest()}", hashlib.sha256(OLD).hexdigest()
    async with _serving(cdn_app(cloud.store, cloud.coded)) as client:
        fetcher = HttpFetcher(client)

        async def fetch(held: HeldPart | None) -> tuple[str, int, bytes, str]:
            asked = fetcher.fetch_coded(url, codings=[DCZ, ZSTD], dictionary=dictionary, held=held, max_bytes=len(NEW))
            async with asked as answer:
                return answer.coding, answer.offset, b"".join([part async for part in answer.chunks]), answer.etag

        *whole, etag = await fetch(None)
        assert whole == [DCZ, 0, coded[1]]
        assert (await fetch(HeldPart(DCZ, etag, 100)))[:3] == (DCZ, 100, coded[1][100:])
        assert (await fetch(HeldPart(DCZ, '"of another form"', 100)))[:3] == (DCZ, 0, coded[1])
        assert (await fetch(HeldPart(DCZ, etag, len(coded[1]))))[:3] == (DCZ, len(coded[1]), b"")
        with pytest.raises(WrongLengthError):
            await fetch(HeldPart(DCZ, etag, len(coded[1]) + 1))
