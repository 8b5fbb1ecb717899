"""The contract of stores of identities: tokens that are counted down, ids that are bound to keys, revocation.

It runs for a SQLite file and for PostgreSQL.
"""

import asyncio
import concurrent.futures
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.access.identity import store as identity_store
from walle.access.identity.changes import revoke_key
from walle.access.identity.refusals import (
    RENEWAL_GRACE_S,
    IdentityRefusedError,
    KeyRevokedError,
    UnknownIdentityError,
)
from walle.access.identity.store import IdentityStore, IdentityStoreError
from walle.base.clock import Clock, ManualClock
from walle.base.device_identity import DeviceIdentity, Revocations
from walle.cloud.api.releases import error_status
from walle.errors import ConfigError

_DAY_S = 86_400.0
_LIMIT_S = 60

type Open = Callable[[Clock], IdentityStore]
"""`open_store(clock)` returns another store on the same place, with connections of its own."""


class Identities:
    """A store with a clock, and enrolments in short."""

    def __init__(self, open_store: Open) -> None:
        self.clock = ManualClock()
        self.store = open_store(self.clock).open()

    def token(self, device_id: str = "", uses: int = 1) -> str:
        return self.store.make_token(device_id, uses=uses, life_s=_DAY_S)

    def enrol(self, device_id: str, key: bytes, token: str = "") -> int:
        return self.store.certify(device_id, key, token, expires_s=self.clock.time() + 30 * _DAY_S).generation


@pytest.fixture
def identities(open_store: Open) -> Identities:
    return Identities(open_store)


def at_once(count: int, *works: Callable[[int], bool]) -> list[int]:
    """Run each work for each number, all on threads that begin together; return how often each returned True."""
    begin = threading.Barrier(count * len(works))

    def one(work: Callable[[int], bool], number: int) -> bool:
        begin.wait(_LIMIT_S)
        return work(number)

    with concurrent.futures.ThreadPoolExecutor(count * len(works)) as pool:
        running = [[pool.submit(one, work, number) for number in range(count)] for work in works]
        return [sum(each.result(_LIMIT_S) for each in every) for every in running]


class IdentityStoreContract:
    """Tests of every store of identities. `open_store` is a fixture of its subclasses."""

    def test_a_token_is_used_up_and_the_same_key_needs_none_again(self, identities: Identities) -> None:
        token = identities.token()
        assert identities.enrol("a", b"key a", token) == 1
        assert identities.enrol("a", b"key a", token) == identities.enrol("a", b"key a") == 1  # an answer was lost
        with pytest.raises(IdentityRefusedError, match="used up"):
            identities.enrol("b", b"key b", token)
        with pytest.raises(IdentityRefusedError, match="not enrolled"):
            identities.enrol("b", b"key b")
        with pytest.raises(IdentityRefusedError, match="not known"):
            identities.enrol("b", b"key b", "guessed")

    def test_a_token_expires_and_is_for_its_device_alone(self, identities: Identities) -> None:
        token = identities.token("a")
        with pytest.raises(IdentityRefusedError, match="another device") as raised:
            identities.enrol("b", b"key b", token)
        assert raised.value.status == 403
        identities.clock._now_s += _DAY_S + 1
        with pytest.raises(IdentityRefusedError, match="expired"):
            identities.enrol("a", b"key a", token)

    def test_a_token_for_any_device_admits_no_id_that_has_a_key(self, identities: Identities) -> None:
        token = identities.token(uses=3)
        identities.enrol("a", b"key a", token)
        with pytest.raises(IdentityRefusedError, match="another key"):
            identities.enrol("a", b"key of a thief", token)
        assert identities.enrol("b", b"key b", token) == 1  # the failed one was not counted
        assert identities.enrol("c", b"key c", token) == 1
        with pytest.raises(IdentityRefusedError, match="used up"):
            identities.enrol("d", b"key d", token)

    def test_another_key_for_an_id_revokes_the_one_before(self, identities: Identities) -> None:
        identities.enrol("a", b"old", identities.token("a"))
        assert identities.store.revocations(0) == (0, {})
        assert identities.enrol("a", b"new", identities.token("a")) == 2
        version, lowest = identities.store.revocations(0)
        assert lowest == {"a": 2}
        assert identities.store.revocations(version) == (version, {})
        with pytest.raises(IdentityRefusedError, match="not enrolled"):
            identities.enrol("a", b"old")

    def test_a_revoked_key_stays_revoked_and_a_new_one_needs_a_token_made_afterwards(
        self, identities: Identities
    ) -> None:
        identities.enrol("a", b"key a", identities.token("a"))
        waiting = identities.token("a")
        record = identities.store.revoke("a", "stolen")
        assert (record.reason, record.revoked_s) == ("stolen", identities.clock.time())
        assert identities.store.revoke("a", "again") == record
        assert identities.store.revocations(0)[1] == {"a": 2}
        for token in ("", waiting, identities.token()):
            with pytest.raises(KeyRevokedError, match="revoked"):
                identities.enrol("a", b"key a", token)
            with pytest.raises(IdentityRefusedError):
                identities.enrol("a", b"another key", token)
        with pytest.raises(KeyRevokedError):
            identities.store.current_key("a")
        assert identities.enrol("a", b"another key", identities.token("a")) == 2
        assert identities.store.records()[0].revoked_s is None
        with pytest.raises(UnknownIdentityError):
            identities.store.revoke("b", "")

    def test_revocations_and_used_tokens_survive_a_restart(self, identities: Identities, open_store: Open) -> None:
        token = identities.token()
        identities.enrol("a", b"key a", token)
        identities.store.revoke("a", "stolen")
        again = Identities(open_store)
        assert again.store.revocations(0)[1] == {"a": 2}
        with pytest.raises(IdentityRefusedError, match="used up"):
            again.enrol("b", b"key b", token)

    def test_revocations_without_a_valid_certificate_are_removed(self, identities: Identities) -> None:
        identities.enrol("a", b"key a", identities.token("a"))
        identities.store.revoke("a", "")
        identities.clock._now_s += 33 * _DAY_S
        identities.store.open()
        assert identities.store.revocations(0) == (0, {})
        with pytest.raises(KeyRevokedError):  # the revocation is not forgotten
            identities.enrol("a", b"key a")

    def test_a_device_renews_until_it_was_away_for_too_long(self, identities: Identities) -> None:
        identities.enrol("a", b"key a", identities.token("a"))
        identities.clock._now_s += 30 * _DAY_S + RENEWAL_GRACE_S - 1
        assert identities.enrol("a", b"key a") == 1
        identities.clock._now_s += 30 * _DAY_S + RENEWAL_GRACE_S + 1
        with pytest.raises(IdentityRefusedError, match="180 days"):
            identities.enrol("a", b"key a")
        token = identities.token("a")  # what the error asks for
        assert identities.enrol("a", b"key a", token) == 1
        with pytest.raises(IdentityRefusedError, match="used up"):
            identities.enrol("a", b"another", token)

    def test_a_restored_cloud_ends_the_decisions_made_after_its_backup(self, identities: Identities) -> None:
        """Keys, tokens and revocations of the time after the backup, whose certificates are still valid for TLS."""
        before, store = identities.token(uses=2), identities.store
        identities.enrol("a", b"key a", identities.token("a"))
        identities.enrol("b", b"key b", identities.token("b"))
        identities.clock._now_s += 1e9
        store.follow_restore()
        with pytest.raises(IdentityRefusedError, match="not known"):
            identities.enrol("thief", b"key", before)  # the token was used up after the backup
        lost = DeviceIdentity("a", 7)  # the identity of the lost time
        generation = identities.enrol("a", b"another key", identities.token("a"))
        store.revoke("b", "stolen")
        store.revoke("enrolled after the backup", "stolen")
        fresh = DeviceIdentity("c", identities.enrol("c", b"key c", identities.token("c")))
        revocations = Revocations(*store.revocations(0))
        assert not revocations.allows(lost)
        assert revocations.allows(DeviceIdentity("a", generation))
        assert not revocations.allows(DeviceIdentity("b", 7))
        assert not revocations.allows(DeviceIdentity("enrolled after the backup", 1))
        assert revocations.allows(fresh)
        with pytest.raises(KeyRevokedError):
            store.current_key("enrolled after the backup")
        back = identities.enrol("b", b"new key b", identities.token("b"))
        revocations.update(*store.revocations(revocations.version))
        assert revocations.allows(DeviceIdentity("b", back))
        store.follow_restore()  # the same backup is restored again, at the same time
        assert identities.enrol("d", b"key d", identities.token("d")) > generation
        with pytest.raises(ConfigError):
            store.revoke("\n", "")

    def test_enrolments_at_once_never_use_a_token_too_often(self, identities: Identities, open_store: Open) -> None:
        """Of eight threads at each of two stores, which have connections of their own as machines have."""
        for uses in (1, 5):
            token = identities.token(uses=uses)

            def enrol(place: str, token: str, here: Identities) -> Callable[[int], bool]:
                def work(number: int) -> bool:
                    try:
                        here.enrol(f"{place}-{number}", b"%d" % number, token)
                    except IdentityRefusedError:
                        return False
                    return True

                return work

            other = Identities(open_store)
            names = [f"{uses}-here", f"{uses}-there"]
            works = [enrol(name, token, one) for name, one in zip(names, (identities, other), strict=True)]
            assert sum(at_once(8, *works)) == uses
            assert len(other.store.records(search=f"{uses}-")) == uses
            with pytest.raises(IdentityRefusedError, match="used up"):
                identities.enrol("late", b"late", token)

    def test_a_new_id_is_bound_to_one_key_whoever_asks_at_once(self, identities: Identities, open_store: Open) -> None:
        token, other = identities.token(uses=7), Identities(open_store)
        for round_ in range(5):

            def enrol(here: Identities, round_: int = round_) -> Callable[[int], bool]:
                def work(number: int) -> bool:
                    try:
                        here.enrol(f"same {round_}", b"%d %d" % (number, here is other), token)
                    except IdentityRefusedError:
                        return False
                    return True

                return work

            assert sum(at_once(2, enrol(identities), enrol(other))) == 1
        for number in range(2):  # a refused one was not counted
            identities.enrol(f"new {number}", b"key", token)
        with pytest.raises(IdentityRefusedError, match="used up"):
            identities.enrol("late", b"key", token)

    def test_a_reader_of_new_revocations_gets_each_of_them(self, identities: Identities, open_store: Open) -> None:
        """Two stores revoke at once, and a third one asks for what is newer than what it has, as a gateway does."""
        count, stores = 20, [identities, Identities(open_store)]
        token = identities.token(uses=2 * count)
        for number in range(2 * count):
            identities.enrol(f"d{number}", b"key", token)
        seen, watch, done = Revocations(), open_store(ManualClock()), threading.Event()
        versions = []

        def ask(_: int) -> bool:
            is_last = False
            while not is_last:
                is_last = done.is_set()
                version, lowest = watch.revocations(seen.version)
                versions.append(version)
                seen.update(version, lowest)
            return True

        def revoke(one: Identities, first: int) -> Callable[[int], bool]:
            def work(number: int) -> bool:
                return one.store.revoke(f"d{first + number}", "stolen").revoked_s is not None

            return work

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, 0)
            assert at_once(count, revoke(stores[0], 0), revoke(stores[1], count)) == [count, count]
            done.set()
            assert asking.result(_LIMIT_S)
        assert versions == sorted(versions)
        assert seen.lowest == {f"d{number}": 2 for number in range(2 * count)}

    def test_enrolment_and_revocation_at_once_leave_one_of_both_orders(
        self, identities: Identities, open_store: Open
    ) -> None:
        other = Identities(open_store)
        for number in range(6):
            device_id = f"d{number}"
            identities.enrol(device_id, b"first", identities.token(device_id))
            token = identities.token(device_id)

            def enrol(_: int, device_id: str = device_id, token: str = token) -> bool:
                try:
                    identities.enrol(device_id, b"second", token)
                except IdentityRefusedError:  # a revocation ends the tokens of before
                    return False
                return True

            def revoke(_: int, device_id: str = device_id) -> bool:
                return other.store.revoke(device_id, "stolen").revoked_s is not None

            enrolled, revoked = at_once(1, enrol, revoke)
            key = identities.store.bound_key(device_id)
            assert key is not None
            assert revoked
            assert (key.generation, key.is_revoked) == (1 + enrolled, True)
            lowest = Revocations(*identities.store.revocations(0))
            assert not lowest.allows(DeviceIdentity(device_id, key.generation))
            assert lowest.allows(DeviceIdentity(device_id, key.generation + 1))

    def test_texts_that_no_id_has_find_nothing_and_reasons_have_any(self, identities: Identities) -> None:
        identities.enrol("a\ufffd", b"key a", identities.token())
        for text in ("a\0", "\ud800"):
            assert identities.store.bound_key(text) is None
            assert identities.store.states([text, "a\ufffd"]).keys() == {"a\ufffd"}
            assert identities.store.records(search=text) == []
            with pytest.raises(ConfigError):
                identities.store.revoke(text, "")
        assert identities.store.revoke("a\ufffd", "lost\0 \ud800 'today'").reason.startswith("lost")

    def test_a_session_is_noted(self, identities: Identities) -> None:
        identities.enrol("a", b"key a", identities.token())
        identities.clock._now_s += 5
        identities.store.note_session("a")
        (record,) = identities.store.records()
        assert (record.seen_s, record.enrolled_s) == (identities.clock.time(), identities.clock.time() - 5)

    def test_a_purpose_has_one_token(self, identities: Identities) -> None:
        first = identities.store.make_token(uses=5, life_s=60.0, purpose="join.json")
        second = identities.store.make_token(uses=5, life_s=60.0, purpose="join.json")
        with pytest.raises(IdentityRefusedError):
            identities.enrol("a", b"key a", first)
        identities.enrol("a", b"key a", second)

    def test_an_id_that_no_device_can_have_is_refused(self, identities: Identities) -> None:
        for device_id in ("", "x" * 257, "a\nb", "a\x1b[2J", "\ud800"):
            with pytest.raises(ConfigError):
                identities.enrol(device_id, b"key", identities.token())

    def test_a_token_has_bounds(self, identities: Identities) -> None:
        for device_id, uses, life_s in (("", 0, 60.0), ("", 10**6, 60.0), ("a", 2, 60.0), ("", 1, 0.0)):
            with pytest.raises(ConfigError):
                identities.store.make_token(device_id, uses=uses, life_s=life_s)


class TestSqliteIdentityStore(IdentityStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Open:
        return lambda clock: IdentityStore.in_file(tmp_path / "identities.db", clock=clock)

    def test_only_the_owner_reads_the_file_and_tokens_are_stored_as_hashes(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        token = identities.store.make_token(uses=5, life_s=60.0)
        for file in tmp_path.iterdir():
            assert token.encode() not in file.read_bytes()
            assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "identities.db"
        path.write_bytes(b"not a database" * 100)
        with pytest.raises(IdentityStoreError, match=r"identities\.db") as raised:
            IdentityStore.in_file(path).open()
        assert error_status(raised.value) == 503  # the cloud's fault, and not the device's

    def test_a_full_disk_is_named_in_the_error(self, identities: Identities, monkeypatch: pytest.MonkeyPatch) -> None:
        """SQLite ends the transaction itself then; that it cannot be ended again must not hide the reason."""
        connect, token = sqlite3.connect, identities.token()

        def connect_to_full(*args: object, **kwargs: object) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(*args, **kwargs)  # type: ignore[call-overload]
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            database.execute(f"PRAGMA max_page_count = {pages}")
            return database

        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", connect_to_full)
            with pytest.raises(IdentityStoreError, match="full") as caught:
                identities.enrol("a", b"k" * 100_000, token)
        assert caught.value.status == 507


class TestPostgresIdentityStore(IdentityStoreContract):
    @pytest.fixture
    def open_store(self, postgres: PostgresServer) -> Iterator[Open]:
        from walle.store.sync_database import SyncDatabase

        self.dsn = postgres.make_database()
        databases = []

        def open_store(clock: Clock) -> IdentityStore:
            databases.append(SyncDatabase(self.dsn))
            return IdentityStore(databases[-1], clock)

        yield open_store
        for database in databases:
            database.close()

    def test_a_version_of_revocations_is_drawn_when_those_below_it_can_be_seen(
        self, identities: Identities, open_store: Open
    ) -> None:
        """Else a gateway that has seen the higher one never asks for the lower one, whose transaction ends later."""
        from walle.store.postgres_database import Connection
        from walle.store.sync_database import SyncDatabase

        for device_id in ("slow", "quick"):
            identities.enrol(device_id, b"key", identities.token())
        slow, begun, may_end = SyncDatabase(self.dsn), threading.Event(), threading.Event()

        async def revoke_slowly(connection: Connection) -> None:
            known = identities.store._find(["slow"])["slow"]
            change = revoke_key(known, 0, device_id="slow", reason="", now_s=1.0)
            assert change is not None
            await identity_store._apply(connection, change)
            begun.set()
            await asyncio.to_thread(may_end.wait, _LIMIT_S)

        other, token = open_store(identities.clock), identities.token("quick")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(slow.write, revoke_slowly)
            assert begun.wait(_LIMIT_S)
            second = pool.submit(other.certify, "quick", b"another key", token, expires_s=4e9)
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            while not second.done() and not slow.read(waits):
                pass
            seen = identities.store.revocations(0)
            may_end.set()
            first.result(_LIMIT_S)
            second.result(_LIMIT_S)
        assert seen == (0, {})
        assert identities.store.revocations(0) == (2, {"slow": 2, "quick": 2})
        slow.close()

    def test_the_database_has_hashes_of_tokens_alone(self, identities: Identities) -> None:
        from walle.store.sync_database import SyncDatabase

        token = identities.store.make_token(uses=5, life_s=60.0)
        identities.enrol("a", b"key a", token)
        database = SyncDatabase(self.dsn)
        tables = database.read("SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'walle'")
        rows = [str(row) for (name,) in tables for row in database.read(f"SELECT t::text FROM walle.{name} AS t")]
        assert any("a" in row for row in rows)
        assert not [row for row in rows if token in row]
        database.close()

    def test_a_database_that_does_not_answer_is_named_without_its_password(self) -> None:
        from walle.store.sync_database import SyncDatabase

        store = IdentityStore(SyncDatabase("postgresql://walle:hush@127.0.0.1:1/no%20such?sslmode=wrong"))
        with pytest.raises(IdentityStoreError, match=r"identities of devices, postgresql://walle@127") as raised:
            store.open()
        assert error_status(raised.value) == 503
        assert "hush" not in str(raised.value)
