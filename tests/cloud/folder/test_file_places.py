"""Place of a cloud's files: what files.toml may say, and a cloud that moves to a bucket and back."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.git_host import served
from tests.sim.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from walle.cloud import CloudHome
from walle.cloud.folder.file_places import choose_place, move_files, parse_place, read_place, store_at, write_place
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.s3_store import S3Place
from walle.deploy.shared_files.store import FileStoreError, FileStoreUnavailableError
from walle.errors import ConfigError

MODEL = bytes(range(256)) * 5000


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


def test_places_that_are_understood(tmp_path: Path) -> None:
    assert read_place(tmp_path) is None
    place = parse_place("s3://models/shop/", endpoint="https://s3.example/", public="https://files.example")
    assert place == S3Place("models", "shop", "https://s3.example", "us-east-1", "https://files.example")
    write_place(tmp_path, place)
    assert read_place(tmp_path) == place
    write_place(tmp_path, parse_place("s3://models"))
    assert read_place(tmp_path) == S3Place("models", "")
    write_place(tmp_path, parse_place("folder"))
    assert read_place(tmp_path) is None


@pytest.mark.parametrize("store", ["", "s3://", "s3:///x", "gs://bucket/x", "/srv/files", "s3://b/../x", "s3://b/a//b"])
def test_places_that_are_refused(store: str) -> None:
    with pytest.raises(ConfigError, match=r"files cannot be stored in .*; give s3://BUCKET/PREFIX, or folder"):
        parse_place(store)


@pytest.mark.parametrize("options", [{"endpoint": "s3.example"}, {"public": "ftp://x"}])
def test_endpoints_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not the URL of an S3 server"):
        parse_place("s3://models/x", **options)
    with pytest.raises(ConfigError, match="is of a bucket"):
        parse_place("folder", **options)


@pytest.mark.parametrize("text", ["", "store = 3", 'store = "s3://m"\nkey = "x"', "store", 'store = "nothing"'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "files.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"files\.toml"):
        read_place(tmp_path)


def test_a_place_is_not_changed_under_files(tmp_path: Path) -> None:
    home = CloudHome(tmp_path)
    sha256 = home.files.put(MODEL)
    place = S3Place(BUCKET, "shop")
    with pytest.raises(
        ConfigError, match=r"its files are in this folder; move them first: walle storage move .* --to s3://"
    ):
        choose_place(tmp_path, place)
    assert read_place(tmp_path) is None
    home.files.remove(sha256)
    choose_place(tmp_path, place)
    choose_place(tmp_path, S3Place(BUCKET, "shop", region="eu-west-1"))  # the same place, said otherwise
    assert read_place(tmp_path) == S3Place(BUCKET, "shop", region="eu-west-1")


def test_files_move_to_a_bucket_and_back(s3_bucket: S3Server, tmp_path: Path) -> None:
    home = CloudHome(tmp_path)
    model, mine = home.files.put(MODEL), home.cloud_files.put(b"of the cloud alone")
    place = S3Place(BUCKET, "moved", s3_bucket.endpoint, public=s3_bucket.endpoint)
    seen: list[tuple[str, int]] = []
    assert move_files(tmp_path, place, lambda *file: seen.append(file)) == (2, len(MODEL) + 18)
    assert seen == [(model, len(MODEL)), (mine, 18)]
    assert set(s3_bucket.keys_of_objects()) >= {f"moved/files/{model}", f"moved/cloud-files/{mine}"}
    home = CloudHome(tmp_path)
    home.prepare(("shop",))
    assert (home.files.read(model), home.cloud_files.read(mine)) == (MODEL, b"of the cloud alone")
    assert home.files.local_path(model) is None
    assert home.files.address(model, 60)
    assert home.cloud_files.address(mine, 60) == ""
    added = home.files.put(b"added there")
    assert not FolderStore(tmp_path / "files").has(added)
    assert move_files(tmp_path, None, lambda *_: None)[0] == 3
    assert CloudHome(tmp_path).files.read(added) == b"added there"
    assert CloudHome(tmp_path).files.local_path(added)


def test_a_damaged_file_is_not_moved(s3_bucket: S3Server, tmp_path: Path) -> None:
    files = FolderStore(tmp_path / "files")
    sha256 = files.put(MODEL)
    files.path(sha256).write_bytes(MODEL[:-1] + b"x")
    with pytest.raises(FileStoreError, match="have the sha256"):
        move_files(tmp_path, S3Place(BUCKET, "damaged", s3_bucket.endpoint), lambda *_: None)
    assert read_place(tmp_path) is None


def test_a_cloud_does_not_start_without_its_bucket(s3_bucket: S3Server, tmp_path: Path) -> None:
    write_place(tmp_path, S3Place("nothing", "shop", s3_bucket.endpoint))
    with pytest.raises(FileStoreUnavailableError, match="s3://nothing/shop/files: the bucket does not exist"):
        CloudHome(tmp_path).prepare(("shop",))


def test_files_of_a_bucket_are_sent_or_redirected(s3_bucket: S3Server, tmp_path: Path) -> None:
    place = S3Place(BUCKET, "served", s3_bucket.endpoint)
    sent = store_at(tmp_path, place, "files")
    sha256 = sent.put(MODEL)
    with served(cdn_app(sent)) as url, httpx.Client(base_url=url) as client:
        whole = client.get(f"/cdn/{sha256}")
        assert (whole.status_code, whole.content, whole.headers["ETag"]) == (200, MODEL, f'"{sha256}"')
        part = client.get(f"/cdn/{sha256}", headers={"Range": "bytes=1000000-1000009"})
        assert (part.status_code, part.content) == (206, MODEL[1_000_000:1_000_010])
        assert client.get(f"/cdn/{'0' * 64}").status_code == 404
    public = S3Place(BUCKET, "served", s3_bucket.endpoint, public=s3_bucket.endpoint)
    with served(cdn_app(store_at(tmp_path, public, "files"))) as url, httpx.Client(base_url=url) as client:
        answer = client.get(f"/cdn/{sha256}")
        assert (answer.status_code, answer.content, answer.headers["Cache-Control"]) == (302, b"", "no-store")
        assert httpx.get(answer.headers["Location"]).content == MODEL
        assert "X-Amz-Expires=300" in answer.headers["Location"]
        assert httpx.get(client.get(f"/cdn/{'0' * 64}").headers["Location"]).status_code == 404
    away = S3Place(BUCKET, "served", "http://127.0.0.1:1")
    with served(cdn_app(store_at(tmp_path, away, "files"))) as url:
        answer = httpx.get(f"{url}/cdn/{sha256}")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
        assert "127.0.0.1" not in answer.text
