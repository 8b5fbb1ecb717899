"""The audit log: what is changed, removed, moved or cut is found and named; several writers; full disks."""

import asyncio
import contextlib
import dataclasses
import errno
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.sim.postgres_server import PostgresServer
from walle.access import audit as audit_module
from walle.access import audit_folder
from walle.access.audit import (
    HEAD_EVERY,
    MAX_DETAILS_BYTES,
    AuditError,
    AuditHead,
    AuditRecord,
    AuditStore,
    read_records,
    segments_of,
    verify,
)
from walle.access.audit_folder import AuditLog
from walle.base.clock import ManualClock
from walle.trust.signing import Signer

SIGNER = Signer.generate()

type MakeLog = Callable[..., AuditStore]


def log_in(folder: Path, signer: Signer = SIGNER, **options: int) -> AuditLog:
    return AuditLog(folder, ManualClock(), signer.sign_audit_head, **options)


def filled(folder: Path, count: int, **options: int) -> AuditLog:
    log = log_in(folder, SIGNER, **options)
    for number in range(count):
        log.append("release.start", who="anna", subject=f"ipv-v1-{number}", address="10.0.0.1")
    return log


def lines_of(folder: Path) -> list[bytes]:
    return segments_of(folder)[-1].read_bytes().splitlines(keepends=True)


def rewrite(folder: Path, lines: list[bytes]) -> None:
    segments_of(folder)[-1].write_bytes(b"".join(lines))


def faults(folder: Path, **options: Any) -> list[str]:
    return [str(fault) for fault in verify(folder, **options).faults]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    first = log.append("release.start", who="anna", subject="ipv-v1-1", address="10.0.0.1", details={"role": "release"})
    log.append("gate.reject", who="monitor", details={"failed": 3, "ok": 4, "ratio": 4.6})
    records = read_records(tmp_path)
    assert records[0] == first
    assert [record.number for record in records] == [1, 2]
    assert records[1].before == records[0].hash
    assert read_records(tmp_path, after=1) == records[1:]
    assert read_records(tmp_path, limit=1) == records[:1]
    found = verify(tmp_path)
    assert (found.ok, found.records, found.first, found.last) == (True, 2, 1, 2)


def test_texts_of_a_record_are_bounded_and_printable(tmp_path: Path) -> None:
    hostile = "\x1b[2J\u202e\n" + "x" * 10_000
    log = log_in(tmp_path)
    record = log.append(hostile, who=hostile, subject=hostile, details={hostile: [hostile, float("nan"), 1]})
    for text in (record.action, record.who, record.subject, *record.details):
        assert len(text) <= 500
        assert text.isprintable()
    large = log.append("x", who="anna", details={str(number): "y" * 400 for number in range(100)})
    assert len(large.body()) < MAX_DETAILS_BYTES
    assert large.details["cut"].startswith("details of ")
    assert verify(tmp_path).ok


def test_each_flipped_bit_is_found(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    path = segments_of(tmp_path)[0]
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert not verify(tmp_path).ok, (place, bytes(changed[place : place + 1]))
    path.write_bytes(data)
    assert verify(tmp_path).ok


def test_a_changed_record_is_named_also_where_its_hash_was_made_again(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    lines = lines_of(tmp_path)
    forged = json.loads(lines[2]) | {"who": "mallory"}
    rewrite(tmp_path, [*lines[:2], json.dumps(forged).encode() + b"\n", *lines[3:]])
    assert faults(tmp_path) == ["000000000001.jsonl:3: record 3 was changed"]
    record = AuditRecord(**forged)
    forged["hash"] = audit_module._hash(record.body())
    rewrite(tmp_path, [*lines[:2], json.dumps(forged).encode() + b"\n", *lines[3:]])
    assert faults(tmp_path) == ["000000000001.jsonl:4: record 4 does not follow record 3"]


def test_removed_moved_and_added_records_are_named(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    lines = lines_of(tmp_path)
    rewrite(tmp_path, [*lines[:1], *lines[3:]])
    assert faults(tmp_path) == ["000000000001.jsonl:2: records 2 to 3 are missing or moved: record 4 is here"]
    rewrite(tmp_path, [lines[0], lines[2], lines[1], *lines[3:]])
    assert "000000000001.jsonl:2: record 2 is missing or moved: record 3 is here" in faults(tmp_path)
    rewrite(tmp_path, [*lines[:2], lines[1], *lines[2:]])
    assert "000000000001.jsonl:3: record 2 was moved or added: record 3 was expected" in faults(tmp_path)
    rewrite(tmp_path, lines[1:])
    assert any("expected" in fault for fault in faults(tmp_path))


def test_a_cut_end_is_found_by_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    log = filled(tmp_path / "audit", 5)
    kept = log.head()
    lines = lines_of(tmp_path / "audit")
    rewrite(tmp_path / "audit", lines[:3])
    assert faults(tmp_path / "audit") == ["head.json: records 4 to 5 are missing at the end"]
    (tmp_path / "audit" / "head.json").unlink()  # a thief removes this one too
    assert faults(tmp_path / "audit") == []
    assert any("records 4 to 5 are missing at the end" in fault for fault in faults(tmp_path / "audit", heads=(kept,)))


def test_a_log_that_was_made_again_from_its_middle_is_found_by_a_kept_head(tmp_path: Path) -> None:
    kept = filled(tmp_path, 5).head()
    rewrite(tmp_path, lines_of(tmp_path)[:3])
    thief = log_in(tmp_path, Signer.generate())
    for _ in range(3):
        thief.append("nothing.happened", who="nobody")
    thief.head()
    assert verify(tmp_path).ok, "the chain itself is whole"
    found = faults(tmp_path, heads=(kept,))
    assert any("record 5 is not the one that was signed" in fault for fault in found)
    assert any(fault.startswith("head.json: is not signed by the key of") for fault in found)
    assert any("head.json: is not signed" in fault for fault in faults(tmp_path, public_key=SIGNER.public_key))


def test_a_head_that_was_changed_is_refused(tmp_path: Path) -> None:
    head = filled(tmp_path, 2).head()
    assert head.is_signed_by(SIGNER.public_key)
    assert not dataclasses.replace(head, number=1).is_signed_by(SIGNER.public_key)
    assert not dataclasses.replace(head, signature="?").is_signed_by(SIGNER.public_key)
    (tmp_path / "kept.json").write_text(head.to_json())
    assert AuditHead.load(tmp_path / "kept.json") == head
    for text in ("", "[]", '{"number": 1}', head.to_json().replace(": 2", ': "2"')):
        (tmp_path / "kept.json").write_text(text)
        with pytest.raises(AuditError, match="make one with: walle audit head"):
            AuditHead.load(tmp_path / "kept.json")


# --- both stores ------------------------------------------------------------------------------------------------------


class AuditContract:
    """Tests of every audit log; `make`, which opens it with options, is a fixture of its subclasses."""

    def test_records_make_a_chain_that_is_verified(self, make: MakeLog) -> None:
        log = make()
        first = log.append("release.start", who="anna", subject="r1", address="10.0.0.1", details={"a": "x\0y\ud800"})
        for number in range(HEAD_EVERY):
            log.append("gate.reject", who="monitor", details={"number": number})
        other = make()
        assert other.records()[0] == first
        assert [one.number for one in other.records(after=3, limit=2)] == [4, 5]
        found = other.verified(public_key=SIGNER.public_key)
        assert (found.ok, found.records, found.first, found.last) == (True, HEAD_EVERY + 1, 1, HEAD_EVERY + 1)
        assert other.append("x", who="anna").before == found.hash

    def test_writers_in_threads_make_one_chain(self, make: MakeLog) -> None:
        logs = [make() for _ in range(3)]

        def append_many(log: AuditStore) -> None:
            for _ in range(20):
                log.append("x", who="anna")

        with ThreadPoolExecutor(6) as threads:
            for log in logs * 2:
                threads.submit(append_many, log)
        found = make().verified()
        assert (found.ok, found.records) == (True, 120)

    def test_a_kept_head_finds_a_cut_end(self, make: MakeLog) -> None:
        log = make()
        for _ in range(5):
            log.append("x", who="anna")
        head = log.head()
        assert (head.number, head.is_signed_by(SIGNER.public_key)) == (5, True)
        assert log.verified(heads=(head,)).ok
        self.cut(log, 4)
        faults = [str(fault) for fault in make().verified(heads=(head,)).faults]
        assert "records 5 to 5 are missing at the end" in faults[-1]

    def test_a_changed_record_is_named(self, make: MakeLog) -> None:
        log = make()
        for _ in range(5):
            log.append("x", who="anna")
        self.change(log, 3, b'"who":"anna"', b'"who":"otto"')
        faults = [str(fault) for fault in make().verified().faults]
        assert any("record 3 was changed" in fault for fault in faults)

    def test_the_oldest_are_removed_and_a_record_says_so(self, make: MakeLog) -> None:
        log = make(small=True)
        for number in range(60):
            log.append("x", who="anna", details={"pad": "p" * 150, "number": number})
        found = log.verified()
        assert found.ok
        assert found.first > 1
        assert found.last > 60

    @pytest.mark.asyncio
    async def test_a_rollback_does_not_wait_for_its_audit_record_which_follows(self, make: MakeLog) -> None:
        log = make()
        await log.record("x", who="anna")
        with self.unwritable(log):
            with pytest.raises(AuditError):
                await log.record("release.start", who="anna")
            await log.record("release.rollback", who="anna", must=False)
        await log.record("y", who="anna")
        records = await asyncio.to_thread(log.records)
        assert [one.action for one in records] == ["x", "release.rollback", "y"]
        assert records[1].details == {"late": True}
        assert (await asyncio.to_thread(log.verified)).ok

    def cut(self, log: AuditStore, number: int) -> None:
        """Remove the records above a number."""
        raise NotImplementedError

    def change(self, log: AuditStore, number: int, old: bytes, new: bytes) -> None:
        """Change a record where it lies."""
        raise NotImplementedError

    def unwritable(self, log: AuditStore) -> AbstractContextManager[object]:
        """Let nothing be written within the block."""
        raise NotImplementedError


class TestAuditLogContract(AuditContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> MakeLog:
        self.folder = tmp_path / "audit"

        def make(small: bool = False) -> AuditStore:
            return log_in(self.folder, SIGNER, **({"segment_bytes": 3000, "max_segments": 3} if small else {}))

        return make

    def cut(self, log: AuditStore, number: int) -> None:
        rewrite(self.folder, lines_of(self.folder)[:number])

    def change(self, log: AuditStore, number: int, old: bytes, new: bytes) -> None:
        lines = lines_of(self.folder)
        lines[number - 1] = lines[number - 1].replace(old, new)
        rewrite(self.folder, lines)

    def unwritable(self, log: AuditStore) -> AbstractContextManager[object]:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no space")

        return patch.object(audit_folder, "write_all", full)


class TestPostgresAuditLog(AuditContract):
    @pytest.fixture
    def make(self, postgres: PostgresServer) -> Iterator[MakeLog]:
        pytest.importorskip("asyncpg", reason="asyncpg is not installed")
        from walle.access.postgres_audit import PostgresAuditLog
        from walle.store.sync_database import SyncDatabase

        dsn, opened = postgres.make_database(), []

        def make(small: bool = False) -> AuditStore:
            opened.append(SyncDatabase(dsn))
            options = {"max_records": 30, "removed": 10} if small else {}
            return PostgresAuditLog(opened[-1], ManualClock(), SIGNER.sign_audit_head, place=dsn, **options)

        yield make
        for database in opened:
            database.close()

    def cut(self, log: AuditStore, number: int) -> None:
        self._run(log, "DELETE FROM walle.audit WHERE number > $1 RETURNING 1", number)

    def change(self, log: AuditStore, number: int, old: bytes, new: bytes) -> None:
        ((line,),) = self._run(log, "SELECT line FROM walle.audit WHERE number = $1", number)
        query = "UPDATE walle.audit SET line = $2 WHERE number = $1 RETURNING 1"
        self._run(log, query, number, line.replace(old, new))

    def _run(self, log: AuditStore, query: str, *values: object) -> list[Any]:
        from walle.access.postgres_audit import PostgresAuditLog

        assert isinstance(log, PostgresAuditLog)
        return log._database.read(query, *values)

    @contextlib.contextmanager
    def unwritable(self, log: AuditStore) -> Iterator[None]:
        self._run(log, "SELECT 1 FROM walle.audit")
        rule = "CREATE RULE closed AS ON INSERT TO walle.audit DO INSTEAD SELECT 1 / 0"
        self._run(log, rule)
        yield
        self._run(log, "DROP RULE closed ON walle.audit")
