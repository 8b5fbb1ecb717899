"""`walle features`: tail and export, from a cloud and from its store."""

import asyncio
import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pyarrow import parquet
from typer.testing import CliRunner

from tests.sim.postgres_server import PostgresServer
from walle.access.access import Access, Role
from walle.base import plain
from walle.cli import app
from walle.cli.feature_time import parse_time
from walle.cli.features.commands import name_of_store
from walle.client.cloud_client import CloudRefusedError, CloudUnreachableError, CutAnswerError
from walle.cloud.api.features import feature_router
from walle.cloud.api.releases import install_error_handlers
from walle.errors import ConfigError
from walle.feature_files import Export, ExportError
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received

# SIGINT is ignored where a shell runs the tests in the background.
_FOLLOWER = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import walle.cli; walle.cli.main()"
)


def store(path: Path, first: int, last: int, topic: str = "shop/visits") -> None:
    """Store features `first` to `last` of a phone."""

    async def accept() -> None:
        async with open_uploads(path, create=True) as uploads:
            await uploads.accept(
                [
                    Received(
                        "phone",
                        "e",
                        seq,
                        topic,
                        plain.encode({"page": f"item/{seq}", "n": seq}),
                        seq,
                        seq * 1000,
                        version="v2" if seq > 20 else "",
                    )
                    for seq in range(first, last + 1)
                ]
            )

    asyncio.run(accept())


class ServedFeatures:
    """The cloud's routes of features on a port; `requests` has the query of each."""

    def __init__(self, path: Path) -> None:
        access = Access()
        self.token = access.issue("anna", {"shop": Role.READER})
        self.requests: list[httpx.QueryParams] = []
        self.failing = 0  # next requests that fail
        uploads = open_uploads(path, create=True)

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> Any:
            async with uploads:
                yield

        served = FastAPI(lifespan=lifespan)
        served.include_router(feature_router(lambda: uploads, access))
        install_error_handlers(served)

        @served.middleware("http")
        async def note(request: Any, call_next: Any) -> Any:
            self.requests.append(httpx.QueryParams(str(request.url.query)))
            if self.failing:
                self.failing -= 1
                raise ConnectionResetError
            return await call_next(request)

        self.server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="critical", ws="none"))
        self.thread = threading.Thread(target=self.server.run)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    @property
    def environment(self) -> dict[str, str]:
        return {"WALLE_URL": self.url, "WALLE_TOKEN": self.token}


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    path = tmp_path / "uploads.db"
    store(path, 1, 25)
    return path


@pytest.fixture
def cloud(uploads: Path) -> Iterator[ServedFeatures]:
    served = ServedFeatures(uploads)
    served.thread.start()
    while not served.server.started:
        assert served.thread.is_alive()
        time.sleep(0.01)
    yield served
    served.server.should_exit = True
    served.thread.join()


def run(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["features", *map(str, arguments)], env=env, catch_exceptions=False)
    return result.exit_code, result.stdout


@pytest.mark.parametrize("source", ["cloud", "store"])
def test_tail_shows_the_latest_of_a_cloud_and_of_its_store(source: str, cloud: ServedFeatures, uploads: Path) -> None:
    where = ["--uploads", uploads] if source == "store" else []
    status, text = run("tail", "-n", 2, "--json", *where, env=cloud.environment)
    lines = [json.loads(line) for line in text.splitlines()]
    assert (status, [line["position"] for line in lines]) == (0, [24, 25])
    assert lines[1] == {
        "position": 25, "time": "1970-01-01T00:00:25.000Z", "device": "phone", "task": "shop/visits",
        "version": "v2", "topic": "shop/visits", "page": "item/25", "sent_ms": 25, "received_ms": 25_000,
        "payload": {"page": "item/25", "n": 25},
    }  # fmt: skip
    status, text = run("tail", "--since", "1970-01-01T00:00:20+00:00", *where, env=cloud.environment)
    assert text.splitlines()[0] == (
        '1970-01-01T00:00:20.000Z phone shop/visits unknown item/20 {"page":"item/20","n":20}'
    )
    assert len(text.splitlines()) == 6
    status, text = run("tail", "--since", "1970-01-01T00:00:20+00:00", "-n", "2", *where, env=cloud.environment)
    assert [line.split()[3:5] for line in text.splitlines()] == [["v2", "item/24"], ["v2", "item/25"]]
    for version, count in (("v2", 5), ("unknown", 20), ("v1", 0)):
        status, text = run("tail", "--since", "1970-01-01T00:00:00+00:00", "--version", version, *where,
                           env=cloud.environment)  # fmt: skip
        assert len(text.splitlines()) == count
    assert run("tail", "--device", "nobody", *where, env=cloud.environment) == (0, "")
    assert len(cloud.requests) == (7 if source == "cloud" else 0)


def test_tail_shows_what_devices_sent_without_control_characters_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"

    async def accept() -> None:
        async with open_uploads(path, create=True) as uploads:
            payload = plain.encode({"page": "\x1b[2J[red]x\nsecond line", "long": "y" * 5000})
            await uploads.accept([Received("d\x1b", "e", 1, "shop/a", payload, 1, 1)])

    asyncio.run(accept())
    _, text = run("tail", "--uploads", path)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1
    assert "[red]x" in text
    assert len(text) < 700
    assert "characters; --json shows all" in text


def test_line_breaks_of_unicode_in_a_payload_do_not_cut_its_line(cloud: ServedFeatures, uploads: Path) -> None:
    odd = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\nb"

    async def accept() -> None:
        async with open_uploads(uploads, create=True) as opened:
            await opened.accept([Received("phone", "e", 26, "shop/visits", plain.encode({"page": odd}), 1, 26_000)])

    asyncio.run(accept())
    status, text = run("tail", "-n", "1", "--json", env=cloud.environment)
    assert status == 0
    assert len(text.splitlines()) == 1
    assert json.loads(text)["page"] == odd
    assert len(run("tail", "-n", "1", env=cloud.environment)[1].splitlines()) == 1


def follower(cloud: ServedFeatures, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _FOLLOWER, "features", "tail", "--follow", "--json"]
    return subprocess.Popen(
        [*command, "--poll-s", "0.1", *arguments],
        env={**os.environ, **cloud.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_positions(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["position"] for _ in range(count)]


def test_tail_follows_and_survives_a_cloud_that_is_away(cloud: ServedFeatures, uploads: Path) -> None:
    with follower(cloud, "-n", "3") as process:
        assert read_positions(process, 3) == [23, 24, 25]
        store(uploads, 26, 27)
        assert read_positions(process, 2) == [26, 27]
        cloud.failing = 1
        while cloud.failing:
            time.sleep(0.01)
        store(uploads, 28, 28, "shop/other")
        assert read_positions(process, 1) == [28]
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "trying again in 1 s" in error


def test_a_store_that_went_back_is_reported_and_followed_from_there(tmp_path: Path, uploads: Path) -> None:
    with Export(tmp_path / "f.csv", {"source": str(uploads.resolve())}) as exporting:
        exporting.add([{"position": 25}], 25)
    older = tmp_path / "older.db"
    store(older, 1, 3)
    command = [sys.executable, "-c", _FOLLOWER, "features", "tail", "--follow", "--json"]
    with subprocess.Popen(
        [*command, "--poll-s", "0.1", "-n", "1", "--uploads", str(uploads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert read_positions(process, 1) == [25]
        for log in ("-wal", "-shm"):
            Path(f"{uploads}{log}").unlink(missing_ok=True)
        older.rename(uploads)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("the store went back from position 25 to 3, as after a restore" in line for line in lines)
        store(uploads, 4, 4)
        assert read_positions(process, 1) == [4]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    with pytest.raises(ConfigError, match=r"went back from position 25 to 4.*remove f\.csv\.part"):
        run("export", tmp_path / "f.csv", "--uploads", uploads)


@pytest.mark.night
def test_a_reader_may_end_early(uploads: Path) -> None:
    python = "from walle.cli import main; main()"
    script = '"$1" -c "$2" features tail -n 25 --json --uploads "$3" | head -n 1; echo "${PIPESTATUS[0]}"'
    command = ["bash", "-c", script, "bash", sys.executable, python, str(uploads)]
    for _ in range(3):  # a reader that ends later than the writer makes no difference
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        position, status = done.stdout.splitlines()
        assert json.loads(position)["position"] == 1
        assert int(status) in (0, 1)
        assert done.stderr == ""


def test_export_writes_each_form_from_a_cloud(cloud: ServedFeatures, tmp_path: Path) -> None:
    for name in ("f.jsonl", "f.csv", "f.parquet"):
        status, text = run("export", tmp_path / name, "--json", env=cloud.environment)
        report = json.loads(text)
        assert (status, report["features"]) == (0, 25)
        assert report["size_bytes"] == (tmp_path / name).stat().st_size
    with (tmp_path / "f.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["payload.n"] for row in rows] == [str(number) for number in range(1, 26)]
    assert run("export", tmp_path / "g.csv", "--task", "shop/visits", env=cloud.environment) == (
        0, f"{tmp_path}/g.csv: 25 features, {(tmp_path / 'g.csv').stat().st_size:,} bytes\n"
    )  # fmt: skip


def test_an_export_that_was_cut_continues_and_has_each_feature_once(
    cloud: ServedFeatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walle.cli.features.commands._PAGE", 10)
    command: Sequence[object] = ("export", tmp_path / "f.jsonl", "--json")
    pages = 0

    def cut_the_second(query: httpx.QueryParams) -> None:
        nonlocal pages
        pages += 1
        cloud.failing = int(pages == 2)

    monkeypatch.setattr(cloud, "requests", type("Notes", (), {"append": staticmethod(cut_the_second)}))
    with pytest.raises((CloudUnreachableError, CloudRefusedError)):
        run(*command, env=cloud.environment)
    assert [path.name for path in tmp_path.glob("f.*")] == ["f.jsonl.part"]
    monkeypatch.undo()
    status, text = run(*command, env=cloud.environment)
    assert (status, json.loads(text)["features"]) == (0, 25)
    assert int(cloud.requests[0]["after"]) == 10
    lines = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert [line["position"] for line in lines] == list(range(1, 26))
    with pytest.raises(ExportError, match="exists already"):
        run(*command, env=cloud.environment)


@pytest.mark.parametrize("block", [7, 5000])
def test_an_export_of_a_store_is_the_file_that_one_of_its_cloud_is(
    cloud: ServedFeatures, uploads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("walle.cli.features.commands._BLOCK", block)
    places = (("all", "--uploads", uploads), ("some", "--uploads", uploads, "--device", "phone"), ("cloud",))
    for name, *source in places:
        assert run("export", tmp_path / f"{name}.parquet", *source, env={} if source else cloud.environment)[0] == 0
    tables = [parquet.read_table(tmp_path / f"{name}.parquet") for name, *_ in places]
    assert tables[0].num_rows == 25
    assert tables[0].equals(tables[1], check_metadata=True)
    assert tables[0].equals(tables[2], check_metadata=True)


def test_an_export_ends_at_the_newest_upload_of_its_start(
    cloud: ServedFeatures, uploads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walle.cli.features.commands._PAGE", 10)

    def store_more(_: httpx.QueryParams) -> None:
        async def accept() -> None:
            async with open_uploads(uploads, create=True) as opened:
                head = await opened.head()
                await opened.accept([Received("busy", "e", head + 1, "shop/visits", b"\x01", 1, 1)])

        threading.Thread(target=lambda: asyncio.run(accept())).start()

    monkeypatch.setattr(cloud, "requests", type("Notes", (), {"append": staticmethod(store_more)}))
    status, text = run("export", tmp_path / "f.jsonl", "--json", env=cloud.environment)
    assert status == 0
    assert 25 <= json.loads(text)["features"] <= 27


def test_wrong_uses_are_named(cloud: ServedFeatures, tmp_path: Path) -> None:
    assert run("tail", env={"WALLE_URL": ""})[0] == 2
    assert run("tail", "--url", "ftp://x")[0] == 2
    for words in (["tail"], ["export", tmp_path / "f.csv"]):
        with pytest.raises(IngestError, match=r"none\.db: this file does not exist; name the uploads\.db of a cloud"):
            run(*words, "--uploads", tmp_path / "none.db")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(("cloud", "uploads.db"))] == []
    with pytest.raises(ConfigError, match="cannot be read; write how long ago"):
        run("tail", "--since", "yesterday", env=cloud.environment)
    with pytest.raises(CloudRefusedError, match="SCENARIO/TASK"):
        run("tail", "--task", "visits", env=cloud.environment)
    with pytest.raises(CloudRefusedError, match=r"admin\.token"):
        run("tail", env={**cloud.environment, "WALLE_TOKEN": "wrong"})
    with pytest.raises(CloudUnreachableError):
        run("tail", "--url", "http://127.0.0.1:1")
    with pytest.raises(ExportError, match="must end in"):
        run("export", tmp_path / "f.xlsx", env=cloud.environment)


def test_an_answer_that_was_cut_is_not_taken_for_the_end(tmp_path: Path) -> None:
    served = FastAPI()

    @served.get("/v1/features")
    async def cut() -> dict[str, int]:
        return {"position": 1}

    server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with pytest.raises(CutAnswerError, match="ended early"):
            run("export", tmp_path / "f.csv", "--url", url)
    finally:
        server.should_exit = True
        thread.join()
    assert not (tmp_path / "f.csv").exists()


def test_features_of_a_postgresql_database(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = postgres.make_database()

    async def accept() -> None:
        async with open_uploads(dsn, create=True) as opened:
            await opened.accept([Received("phone", "e", 1, "shop/visits", plain.encode(5), 1, 1)])

    asyncio.run(accept())
    assert json.loads(run("tail", "--json", "--uploads", dsn)[1])["payload"] == 5
    assert json.loads(run("export", tmp_path / "f.csv", "--json", "--uploads", dsn)[1])["features"] == 1


def test_a_spool_does_not_name_the_password() -> None:
    assert name_of_store("postgresql://me:se@cret@db:5432/x?password=other") == "postgresql://db:5432/x"
    assert name_of_store("") == ""
    assert name_of_store("a.db") == str(Path("a.db").resolve())


def test_times_are_how_long_ago_or_dates() -> None:
    assert parse_time("90s", 1000.0) == 910_000
    assert parse_time("2h", 10_000.0) == 2_800_000
    assert parse_time("1.5d", 0.0) == 0
    assert parse_time("1970-01-02T00:00:00+00:00", 0.0) == 86_400_000
    assert parse_time("2026-11-22", 0.0) == parse_time("2026-11-22T00:00", 0.0)
    for wrong in ("", "5", "5w", "now", "9" * 30 + "-01-01"):
        with pytest.raises(ConfigError):
            parse_time(wrong, 0.0)
