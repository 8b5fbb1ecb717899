"""The audit log in a folder: segments, what a killed or a full process leaves, several writers."""

import base64
import errno
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from walle.access import audit_folder
from walle.access.audit import HEAD_EVERY, AuditError, AuditHead, read_records, segments_of, verify
from walle.access.audit_folder import AuditLog
from walle.base.clock import ManualClock
from walle.trust.signing import Signer

SIGNER = Signer.generate()


def log_in(folder: Path, signer: Signer = SIGNER, **options: int) -> AuditLog:
    return AuditLog(folder, ManualClock(), signer.sign_audit_head, **options)


def filled(folder: Path, count: int, **options: int) -> AuditLog:
    log = log_in(folder, SIGNER, **options)
    for number in range(count):
        log.append("release.start", who="anna", subject=f"ipv-v1-{number}", address="10.0.0.1")
    return log


def lines_of(folder: Path) -> list[bytes]:
    return segments_of(folder)[-1].read_bytes().splitlines(keepends=True)


def faults(folder: Path, **options: Any) -> list[str]:
    return [str(fault) for fault in verify(folder, **options).faults]


def test_heads_are_signed_now_and_then(tmp_path: Path) -> None:
    filled(tmp_path, HEAD_EVERY - 1)
    assert not (tmp_path / "head.json").exists()
    log_in(tmp_path).append("x", who="anna")
    head = AuditHead.load(tmp_path / "head.json")
    assert head.number == HEAD_EVERY
    assert base64.b64decode(head.public_key) == SIGNER.public_key
    (tmp_path / "head.json").unlink()
    assert faults(tmp_path) == ["head.json: is missing"]


def test_old_segments_are_removed_and_a_record_says_so(tmp_path: Path) -> None:
    filled(tmp_path, 60, segment_bytes=2_000, max_segments=3)
    segments = segments_of(tmp_path)
    assert len(segments) == 3
    assert sum(segment.stat().st_size for segment in segments) < 3 * 3_500
    found = verify(tmp_path)
    assert found.ok, found.faults
    assert found.first > 1
    assert found.records == found.last - found.first + 1
    removed = [record for record in read_records(tmp_path) if record.action == "audit.remove"]
    assert removed[-1].details["last"] == found.first - 1
    segments[0].unlink()  # removed by hand: no record says so
    assert any("are missing, and none says why" in fault for fault in faults(tmp_path))


def test_a_log_continues_after_a_start(tmp_path: Path) -> None:
    for _ in range(3):
        filled(tmp_path, 2)
    assert [record.number for record in read_records(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert verify(tmp_path).ok


def test_a_record_that_was_not_finished_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its writer was killed before the record was durable, so that it did not act."""
    filled(tmp_path, 3)
    path = segments_of(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole + lines_of(tmp_path)[-1][:40])
    assert faults(tmp_path) == ["000000000001.jsonl:4: the last record is incomplete"]
    log_in(tmp_path).append("x", who="anna")
    assert "40 bytes of a record that was not finished are removed" in caplog.text
    assert verify(tmp_path).ok
    assert read_records(tmp_path)[-1].number == 4


def test_a_segment_that_was_begun_and_not_written_continues(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / "000000000004.jsonl").touch()
    log_in(tmp_path).append("x", who="anna")
    assert [record.number for record in read_records(tmp_path)] == [1, 2, 3, 4]
    assert verify(tmp_path).ok


def test_a_log_whose_end_is_damaged_is_not_appended_to(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = segments_of(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-20] + b"}\n")
    with pytest.raises(AuditError, match=r"its last line is not a record .*; see: walle audit verify"):
        log_in(tmp_path).append("x", who="anna")


def _append_many(folder: Path, count: int) -> None:
    filled(folder, count, segment_bytes=5_000)


def test_writers_in_several_processes_and_threads_make_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append_many, args=(tmp_path, 30)) for _ in range(2)]
    for process in processes:
        process.start()
    log = log_in(tmp_path, segment_bytes=5_000)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: log.append("x", who=f"thread {number}"), range(40)))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = verify(tmp_path)
    assert found.ok, found.faults
    assert found.records == 100


@pytest.mark.asyncio
async def test_a_full_disk_refuses_actions_other_than_rollbacks_and_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, 1)

    def full(_handle: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(audit_folder, "write_all", full)
        with pytest.raises(AuditError, match="No space left on device; nothing that needs a record is done"):
            await log.record("release.start", who="anna")
        await log.record("release.rollback", who="anna", subject="ipv-v1-1", must=False)
    assert verify(tmp_path).records == 1
    await log.record("release.start", who="anna", subject="ipv-v2-2")
    records = read_records(tmp_path)
    assert [record.action for record in records] == ["release.start", "release.rollback", "release.start"]
    assert records[1].details == {"late": True}
    assert verify(tmp_path).ok


@pytest.mark.asyncio
async def test_a_record_whose_head_finds_no_room_is_a_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, HEAD_EVERY - 2)

    def full(path: Path, _data: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(audit_folder, "write_file", full)
        for number in range(2):
            await log.record("release.rollback", who="anna", subject=f"v{number}", must=False)
        await log.record("release.start", who="anna")
    await log.record("release.start", who="anna")
    assert [record.subject for record in read_records(tmp_path)][HEAD_EVERY - 2 :] == ["v0", "v1", "", ""]
    assert verify(tmp_path).ok


@pytest.mark.asyncio
async def test_a_half_written_record_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)

    def half(handle: int, data: bytes) -> None:
        os.write(handle, data[:50])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(audit_folder, "write_all", half)
        with pytest.raises(AuditError):
            await log.record("x", who="anna")
    assert verify(tmp_path).ok
    log.append("y", who="anna")
    assert [record.number for record in read_records(tmp_path)] == [1, 2]
