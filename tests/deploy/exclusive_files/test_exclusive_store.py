"""The contract of stores of exclusive files: several writers, a killed one, other keys of a device, files of groups.

It runs for a SQLite file and for PostgreSQL.
"""

import concurrent.futures
import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.deploy.exclusive_files.store import (
    ExclusiveStore,
    ExclusiveStoreError,
    FormerKeyError,
    GroupRow,
    TooManyFilesError,
)
from walle.protocol import MAX_EXCLUSIVE_FILES

if TYPE_CHECKING:
    from walle.store.sync_database import SyncDatabase

TASK = "shop/ipv"
_WRITER = """
import sys
from tests.deploy.exclusive_files.test_exclusive_store import {store}
store = {store}(sys.argv[1])
for number in range(1, 1_000_000):
    store.put("phone", 1, "shop/ipv", "a", b"%d" % number * 50_000, by="test")
    print(number, flush=True)
"""

_databases: list["SyncDatabase"] = []  # databases that the present test has opened


def sqlite_store(place: str) -> ExclusiveStore:
    return ExclusiveStore.in_file(Path(place)).open()


def postgres_store(place: str) -> ExclusiveStore:
    from walle.store.sync_database import SyncDatabase

    _databases.append(SyncDatabase(place))
    return ExclusiveStore(_databases[-1]).open()


def put(store: ExclusiveStore, name: str, device_id: str = "phone", generation: int = 1, of: str = TASK) -> None:
    store.put(device_id, generation, of, name, name.encode() * 100, by="test")


def names(store: ExclusiveStore, device_id: str = "phone", generation: int = 1) -> list[str]:
    return [file.name for file in store.files(device_id, generation).files]


def group_row(name: str, rule: str = "os == 'android'", task: str = TASK) -> GroupRow:
    return GroupRow(0, task, name, ">=10", rule, '{"os": "string"}', 3, 5.0, "anna")


class ExclusiveStoreContract:
    """Tests of every store of exclusive files. `place`, where the store is, is a fixture of its subclasses."""

    store: str  # the function of this module that opens it

    def opened(self, place: str) -> ExclusiveStore:
        found: ExclusiveStore = globals()[self.store](place)
        return found

    @pytest.fixture
    def stored(self, place: str) -> ExclusiveStore:
        return self.opened(place)

    def test_each_change_of_a_device_raises_its_serial_and_no_other_ones(self, stored: ExclusiveStore) -> None:
        assert stored.files("phone", 1) == (0, ())
        put(stored, "a")
        put(stored, "a")
        put(stored, "a", "other")
        assert stored.remove("phone", TASK, "a")
        assert not stored.remove("phone", TASK, "a")
        assert (stored.files("phone", 1).serial, stored.files("other", 1).serial) == (3, 1)
        assert (names(stored), names(stored, "other")) == ([], ["a"])

    def test_another_key_of_a_device_has_none_of_the_files_and_a_put_deletes_them(self, stored: ExclusiveStore) -> None:
        put(stored, "a")
        (entry,) = stored.files("phone", 1).files
        assert stored.sealed("phone", 1, entry.sha256) == b"a" * 100
        assert (stored.sealed("phone", 2, entry.sha256), names(stored, generation=2)) == (None, [])
        assert stored.sealed("other", 1, entry.sha256) is None
        put(stored, "b", generation=2)
        assert (names(stored), names(stored, generation=2)) == ([], ["b"])

    def test_a_put_that_began_before_another_key_deletes_nothing_of_it(self, stored: ExclusiveStore) -> None:
        put(stored, "a", generation=2)
        with pytest.raises(FormerKeyError, match="'phone' has another key now"):
            put(stored, "late", generation=1)
        assert (names(stored), names(stored, generation=2)) == ([], ["a"])
        assert stored.files("phone", 2).serial == 1

    def test_lists_are_of_one_scenario_and_have_pages_of_whole_devices(self, stored: ExclusiveStore) -> None:
        for of in ("shop/ipv", "shop/item", "shop-2/ipv", "sho/ipv"):
            for device_id in ("a", "b", "c"):
                put(stored, "x", device_id, of=of)
                put(stored, "y", device_id, of=of)
        found = stored.records("shop")
        assert [(one.device_id, one.task) for one in found[::2]] == [
            (device_id, task) for device_id in "abc" for task in ("shop/ipv", "shop/item")
        ]
        page = stored.records("shop", limit=1)
        assert {one.device_id for one in page} == {"a"}
        assert len(page) == 4
        assert {one.device_id for one in stored.records("shop", after="a", limit=5)} == {"b", "c"}
        assert [one.task for one in stored.records("shop", task="item", device_id="b")] == ["shop/item"] * 2

    def test_a_device_has_a_bounded_number_of_files(self, stored: ExclusiveStore) -> None:
        for number in range(MAX_EXCLUSIVE_FILES):
            put(stored, f"n{number}")
        with pytest.raises(TooManyFilesError, match="'phone' has 100 exclusive files, the limit"):
            put(stored, "one more")
        put(stored, "n7")  # replaces one
        assert stored.files("phone", 1).serial == MAX_EXCLUSIVE_FILES + 1
        assert len(names(stored)) == MAX_EXCLUSIVE_FILES

    def test_gateways_write_one_after_the_other(self, stored: ExclusiveStore, place: str) -> None:
        stores = [self.opened(place) for _ in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda at: put(stores[at % 4], f"n{at % 10}"), range(20)))
        assert stored.files("phone", 1).serial == 20
        assert len(names(stored)) == 10

    def test_a_killed_writer_leaves_the_old_file_or_the_new_one(self, stored: ExclusiveStore, place: str) -> None:
        for said in (1, 7):
            writer = subprocess.Popen(
                [sys.executable, "-c", _WRITER.format(store=self.store), place], stdout=subprocess.PIPE, text=True
            )
            assert writer.stdout is not None
            before = stored.files("phone", 1).serial
            while int(writer.stdout.readline()) < said:
                pass
            writer.kill()
            last = [int(line) for line in writer.stdout.read().split()][-1:] or [said]
            writer.stdout.close()
            writer.wait()
            found = stored.files("phone", 1)
            number = found.serial - before
            assert number in (last[0], last[0] + 1)
            sealed = stored.sealed("phone", 1, found.files[0].sha256)
            assert sealed == b"%d" % number * 50_000
            assert hashlib.sha256(sealed).hexdigest() == found.files[0].sha256

    def test_a_file_of_a_group_is_replaced_and_the_newest_comes_first(self, stored: ExclusiveStore, place: str) -> None:
        assert stored.group_rows(-1) == (0, [])
        odd = "os == 'a\0' " + "x" * 4000  # no rule is refused for its characters, or is too long
        assert stored.put_group(group_row("a"), b"one", most=3)
        assert stored.put_group(group_row("b"), b"two", most=3)
        assert stored.put_group(group_row("a", odd), b"three", most=3)
        serial, rows = stored.group_rows(0)
        assert rows is not None
        assert serial == 3
        assert [(row.name, row.rule) for row in rows] == [
            ("a", odd),
            ("b", group_row("b").rule),
            ("a", group_row("a").rule),
        ]
        assert rows[2]._replace(number=0) == group_row("a")
        assert [stored.group_contents(row.number) for row in rows] == [b"three", b"two", b"one"]
        assert self.opened(place).group_rows(3) == (3, None)
        assert not stored.put_group(group_row("c"), b"four", most=3)
        assert stored.group_rows(3) == (3, None)  # nothing was changed
        assert stored.put_group(group_row("a"), b"five", most=3)
        serial, again = stored.group_rows(3)
        assert again is not None
        assert [row.number for row in again] == [again[0].number, *(row.number for row in rows[:2])]
        assert again[0].number > rows[0].number
        assert stored.group_contents(rows[2].number) is None
        assert stored.remove_group(TASK, "a", ">=10", odd)
        assert not stored.remove_group(TASK, "a", ">=10", odd)
        assert not stored.remove_group(TASK, "a\0", ">=10", odd)
        assert stored.group_rows(4)[0] == 5

    def test_gateways_put_files_of_groups_one_after_the_other(self, stored: ExclusiveStore, place: str) -> None:
        stores = [self.opened(place) for _ in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            done = pool.map(lambda at: stores[at % 4].put_group(group_row(f"n{at}"), b"x", most=10), range(16))
            assert sum(done) == 10  # never more than the most
        serial, rows = stored.group_rows(-1)
        assert rows is not None
        assert (serial, len(rows), len({row.number for row in rows})) == (10, 10, 10)

    def test_texts_that_no_file_has_find_nothing(self, stored: ExclusiveStore) -> None:
        put(stored, "a", "phone\ufffd")
        assert not stored.has("phone\0", TASK, "a")
        assert not stored.remove("phone\0", TASK, "a")
        assert stored.records("shop\0") == stored.records("shop", task="i\0") == []
        assert stored.records("shop", device_id="phone\0") == []
        assert len(stored.records("shop", after="a\0")) == 1


class TestSqliteExclusiveStore(ExclusiveStoreContract):
    store = "sqlite_store"

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return str(tmp_path / "exclusive.db")

    def test_removed_files_are_overwritten_in_the_database(self, stored: ExclusiveStore, place: str) -> None:
        put(stored, "a")
        put(stored, "b", generation=2)
        assert b"a" * 100 not in Path(place).read_bytes()

    def test_a_full_disk_and_a_damaged_file_are_said(
        self, stored: ExclusiveStore, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(stored, "a")
        connect = sqlite3.connect

        def connect_to_full(*args: object, **kwargs: object) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(*args, **kwargs)  # type: ignore[call-overload]
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            database.execute(f"PRAGMA max_page_count = {pages}")
            return database

        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", connect_to_full)
            with pytest.raises(ExclusiveStoreError, match="full; free some space") as caught:
                stored.put("phone", 1, TASK, "a", b"x" * 100_000, by="test")
        assert caught.value.status == 507
        assert stored.sealed("phone", 1, stored.files("phone", 1).files[0].sha256) == b"a" * 100
        with Path(place).open("r+b") as file:
            file.write(b"not a database at all")
        with pytest.raises(ExclusiveStoreError) as caught:
            self.opened(place)
        assert caught.value.status == 503


class TestPostgresExclusiveStore(ExclusiveStoreContract):
    store = "postgres_store"

    @pytest.fixture
    def place(self, postgres: PostgresServer) -> Iterator[str]:
        yield postgres.make_database()
        while _databases:
            _databases.pop().close()

    def test_a_database_that_does_not_answer_is_named(self) -> None:
        with pytest.raises(ExclusiveStoreError, match=r"exclusive files, postgresql://walle@127") as caught:
            self.opened("postgresql://walle:hush@127.0.0.1:1/no%20such?sslmode=wrong")
        assert caught.value.status == 503
