"""The store of exclusive files: several writers, a killed one, other keys of a device, and a full disk."""

import concurrent.futures
import contextlib
import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from walle.deploy.cloud.exclusive_store import ExclusiveStore, ExclusiveStoreError, FormerKeyError, TooManyFilesError
from walle.protocol import MAX_EXCLUSIVE_FILES

TASK = "shop/ipv"
_WRITER = """
import sys
from pathlib import Path
from walle.deploy.cloud.exclusive_store import ExclusiveStore
store = ExclusiveStore(Path(sys.argv[1])).open()
for number in range(1, 1_000_000):
    store.put("phone", 1, "shop/ipv", "a", b"%d" % number * 50_000, by="test")
    print(number, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> ExclusiveStore:
    return ExclusiveStore(tmp_path / "exclusive.db").open()


def put(store: ExclusiveStore, name: str, device_id: str = "phone", generation: int = 1, of: str = TASK) -> None:
    store.put(device_id, generation, of, name, name.encode() * 100, by="test")


def names(store: ExclusiveStore, device_id: str = "phone", generation: int = 1) -> list[str]:
    return [file.name for file in store.files(device_id, generation).files]


def test_each_change_of_a_device_raises_its_serial_and_no_other_ones(store: ExclusiveStore) -> None:
    assert store.files("phone", 1) == (0, ())
    put(store, "a")
    put(store, "a")
    put(store, "a", "other")
    assert store.remove("phone", TASK, "a")
    assert not store.remove("phone", TASK, "a")
    assert (store.files("phone", 1).serial, store.files("other", 1).serial) == (3, 1)
    assert (names(store), names(store, "other")) == ([], ["a"])


def test_another_key_of_a_device_has_none_of_the_files_and_a_put_deletes_them(store: ExclusiveStore) -> None:
    put(store, "a")
    (entry,) = store.files("phone", 1).files
    assert store.sealed("phone", 1, entry.sha256) == b"a" * 100
    assert (store.sealed("phone", 2, entry.sha256), names(store, generation=2)) == (None, [])
    assert store.sealed("other", 1, entry.sha256) is None
    put(store, "b", generation=2)
    assert (names(store), names(store, generation=2)) == ([], ["b"])
    assert b"a" * 100 not in b"".join(path.read_bytes() for path in store.path.parent.glob("exclusive.db"))


def test_a_put_that_began_before_another_key_deletes_nothing_of_it(store: ExclusiveStore) -> None:
    put(store, "a", generation=2)
    with pytest.raises(FormerKeyError, match="'phone' has another key now"):
        put(store, "late", generation=1)
    assert (names(store), names(store, generation=2)) == ([], ["a"])
    assert store.files("phone", 2).serial == 1


def test_lists_are_of_one_scenario_and_have_pages_of_whole_devices(store: ExclusiveStore) -> None:
    for of in ("shop/ipv", "shop/item", "shop-2/ipv", "sho/ipv"):
        for device_id in ("a", "b", "c"):
            put(store, "x", device_id, of=of)
            put(store, "y", device_id, of=of)
    found = store.records("shop")
    assert [(one.device_id, one.task) for one in found[::2]] == [
        (device_id, task) for device_id in "abc" for task in ("shop/ipv", "shop/item")
    ]
    page = store.records("shop", limit=1)
    assert {one.device_id for one in page} == {"a"}
    assert len(page) == 4
    assert {one.device_id for one in store.records("shop", after="a", limit=5)} == {"b", "c"}
    assert [one.task for one in store.records("shop", task="item", device_id="b")] == ["shop/item"] * 2


def test_a_device_has_a_bounded_number_of_files(store: ExclusiveStore) -> None:
    with contextlib.closing(sqlite3.connect(store.path)) as database, database:
        for number in range(MAX_EXCLUSIVE_FILES):
            row = ("phone", 1, TASK, f"n{number}", f"{number:064x}", 1, 0.0, "test", b"x")
            database.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    with pytest.raises(TooManyFilesError, match="'phone' has 100 exclusive files, as many as it may"):
        put(store, "one more")
    put(store, "n7")  # in place of one
    assert store.files("phone", 1).serial == 1
    assert len(names(store)) == MAX_EXCLUSIVE_FILES


def test_gateways_write_one_after_the_other(store: ExclusiveStore) -> None:
    stores = [ExclusiveStore(store.path).open() for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: put(stores[at % 4], f"n{at % 10}"), range(20)))
    assert store.files("phone", 1).serial == 20
    assert len(names(store)) == 10


def test_a_killed_writer_leaves_the_file_of_before_or_of_after(store: ExclusiveStore) -> None:
    for said in (1, 7):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(store.path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        before = store.files("phone", 1).serial
        while int(writer.stdout.readline()) < said:
            pass
        writer.kill()
        last = [int(line) for line in writer.stdout.read().split()][-1:] or [said]
        writer.stdout.close()
        writer.wait()
        found = ExclusiveStore(store.path).open().files("phone", 1)
        number = found.serial - before
        assert number in (last[0], last[0] + 1)
        sealed = store.sealed("phone", 1, found.files[0].sha256)
        assert sealed == b"%d" % number * 50_000
        assert hashlib.sha256(sealed).hexdigest() == found.files[0].sha256


def test_a_full_disk_and_a_damaged_file_are_said(store: ExclusiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "a")
    connect = sqlite3.connect

    def connect_to_full(*args: object, **kwargs: object) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*args, **kwargs)  # type: ignore[call-overload]
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        return database

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_to_full)
        with pytest.raises(ExclusiveStoreError, match="full; free some space") as caught:
            store.put("phone", 1, TASK, "a", b"x" * 100_000, by="test")
    assert caught.value.status == 507
    assert store.sealed("phone", 1, store.files("phone", 1).files[0].sha256) == b"a" * 100
    with store.path.open("r+b") as file:
        file.write(b"not a database at all")
    with pytest.raises(ExclusiveStoreError) as caught:
        ExclusiveStore(store.path).open()
    assert caught.value.status == 503
