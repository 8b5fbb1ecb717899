import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.cloud_files import manifest_of, sha256_of
from walle.deploy.agent.installed import (
    CorruptedError,
    InstalledTasks,
    Standing,
    TaskNameError,
    TaskState,
    VersionRef,
    verify_files,
)
from walle.protocol import FileEntry, OutcomeKind, canonical_json

TASK = "shop/ipv"
DATA = b"data" * 1000


def _ref(number: int, release: str = "r") -> VersionRef:
    return VersionRef(f"v{number}", sha256_of(str(number).encode()), release)


def _entry(data: bytes, path: str = "main.pyc") -> FileEntry:
    return FileEntry(path, sha256_of(data), len(data))


# --- the pointer, pure ------------------------------------------------------------------------------------------------


_moves = st.one_of(
    st.tuples(st.just("activate"), st.integers(1, 4)),
    st.tuples(st.just("refuse"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["fall back", "corrupted", "remove", "begin"]), st.just(0)),
)


@given(st.lists(_moves, max_size=30))
def test_whatever_happens_a_bad_version_is_never_fallen_back_to(moves: list[tuple[str, int]]) -> None:
    state = TaskState(task=TASK)
    left_as_bad: set[str] = set()
    for serial, (move, number) in enumerate(moves, 1):
        before = state
        if move == "activate":
            state = state.activate(serial, _ref(number))
            assert state.active == _ref(number)
            left_as_bad.discard(_ref(number).version)
            if before.active is not None and int(before.active.version[1:]) > number:
                left_as_bad.add(before.active.version)
        elif move == "refuse":
            state = state.refuse(serial, _ref(number), "x", final=True)
            assert (state.active, state.previous) == (before.active, before.previous)
        elif move == "begin":
            state = state.begin(serial)
        elif move == "remove":
            state = state.remove(serial, "r")
            assert (state.active, state.previous, state.serial) == (None, None, serial)
        elif before.active is not None:
            state = state.fall_back("x", corrupted=move == "corrupted")
            left_as_bad.add(before.active.version)
            assert state.active is None or state.active == before.previous
            assert state.active is None or state.active.version not in left_as_bad
            assert state.outcome is not None
            assert (state.outcome.kind, state.outcome.version) == (OutcomeKind.REVERTED, before.active.version)
        assert state.active is None or state.previous is None or state.active.manifest != state.previous.manifest
        assert TaskState.from_bytes(state.to_bytes()) == state


def test_a_failed_version_stays_away_and_a_corrupted_one_may_return_by_the_same_directive() -> None:
    state = TaskState(task=TASK).activate(1, _ref(1)).activate(2, _ref(2))
    assert state.fall_back("x").standing is Standing.REFUSED
    assert state.fall_back("x", corrupted=True).standing is Standing.OPEN
    assert state.begin(3).fall_back("x").standing is Standing.OPEN  # directive 3 has not had its say
    assert TaskState(task=TASK).fall_back("x") == TaskState(task=TASK)


def test_a_step_back_is_recognised_by_version_number() -> None:
    assert _ref(9).is_back_from(_ref(10))
    assert not _ref(10).is_back_from(_ref(9))
    assert not VersionRef("canary", "", "").is_back_from(_ref(10))


def test_no_flipped_bit_of_a_state_goes_unseen() -> None:
    good = TaskState(task=TASK).activate(7, _ref(1)).activate(8, _ref(2)).to_bytes()
    state = TaskState.from_bytes(good)
    for position in range(len(good)):
        for bit in range(8):
            spoiled = bytearray(good)
            spoiled[position] ^= 1 << bit
            try:
                seen = TaskState.from_bytes(bytes(spoiled))
            except (ValueError, TypeError, KeyError):
                continue
            assert seen == state


# --- the disk ---------------------------------------------------------------------------------------------------------


def _put(installed: InstalledTasks, state: TaskState, data: bytes = DATA) -> None:
    assert state.active is not None
    staging = installed.staging(TASK, state.active.manifest)
    staging.prepare()
    staging.append(sha256_of(data), data)
    assert staging.seal(_entry(data))
    files = staging.assemble(b"envelope", [_entry(data), _entry(data, "lib/again.pyc")])
    assert sorted(path.name for path in files.rglob("*.pyc")) == ["again.pyc", "main.pyc"]
    installed.adopt(staging, state)


def test_the_layout_is_the_one_that_is_drawn(tmp_path: Path) -> None:
    installed = InstalledTasks(tmp_path / "made" / "here")
    assert installed.tasks() == []
    assert installed.read(TASK) == TaskState(task=TASK)
    state = TaskState(task=TASK).activate(1, _ref(1))
    _put(installed, state)
    folder = installed.folder / "shop%2Fipv"
    version = folder / "versions" / _ref(1).manifest
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        Path("state.json"),
        *(version.relative_to(folder) / name for name in ("manifest", "files/main.pyc", "files/lib/again.pyc")),
    }
    assert (version / "files/main.pyc").stat().st_mode & 0o777 == 0o444
    assert (version / "files/main.pyc").samefile(version / "files/lib/again.pyc")
    assert InstalledTasks(installed.folder).tasks() == [TASK]
    assert InstalledTasks(installed.folder).read(TASK) == state


def test_clean_keeps_what_the_state_points_at_and_nothing_else(tmp_path: Path) -> None:
    installed = InstalledTasks(tmp_path)
    state = TaskState(task=TASK)
    for number in (1, 2, 3):
        state = state.activate(number, _ref(number))
        _put(installed, state)
    installed.staging(TASK, _ref(4).manifest).prepare()
    (tmp_path / "shop%2Fipv/.state.json.0a.unfinished").write_bytes(b"half")
    installed.clean(state, partial_newer_than_s=0.0)
    assert [path.name for path in (tmp_path / "shop%2Fipv/staging").iterdir()] == [_ref(4).manifest]
    installed.clean(state)
    assert {
        path.name for path in (tmp_path / "shop%2Fipv").rglob("*") if path.parent.name in ("versions", "staging")
    } == {
        _ref(2).manifest,
        _ref(3).manifest,
    }
    assert not (tmp_path / "shop%2Fipv/.state.json.0a.unfinished").exists()
    installed.clean(state)


def test_a_state_of_another_task_is_corrupted(tmp_path: Path) -> None:
    installed = InstalledTasks(tmp_path)
    installed.write(TaskState(task="a/b", serial=5))
    (tmp_path / "a%2Fb").rename(tmp_path / "a%2Fc")
    with pytest.raises(CorruptedError, match="it is the state of 'a/b'"):
        installed.read("a/c")


@pytest.mark.parametrize("name", ["", "/", "a", "a/", "/a", "a//b", "a/" + "é" * 40, "a/\udcff"])
def test_names_that_are_no_tasks_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskNameError):
        InstalledTasks(tmp_path).task_folder(name)


@pytest.mark.parametrize("name", ["../..", "./.", "a/..", "a%2F/b", "a\0/b", "/".join("abc")])
def test_no_task_leaves_the_folder_or_takes_anothers(tmp_path: Path, name: str) -> None:
    installed = InstalledTasks(tmp_path)
    installed.write(TaskState(task=name, serial=3))
    installed.write(TaskState(task="a/b", serial=4))
    assert sorted(installed.tasks()) == sorted([name, "a/b"])
    assert installed.read(name).serial == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_blobs_come_in_pieces_and_only_the_right_bytes_are_sealed(tmp_path: Path) -> None:
    staging = InstalledTasks(tmp_path).staging(TASK, _ref(1).manifest)
    staging.prepare()
    entry = _entry(DATA)
    staging.append(entry.sha256, DATA[:100])
    assert staging.held_bytes(entry.sha256) == 100
    assert not staging.seal(entry)
    assert staging.held_bytes(entry.sha256) == 0
    staging.append(entry.sha256, DATA[:100])
    staging.prepare()
    staging.append(entry.sha256, DATA[100:])
    assert staging.seal(entry)
    assert staging.seal(entry)
    assert staging.seal(_entry(b"", "empty"))
    other = InstalledTasks(tmp_path).staging(TASK, _ref(2).manifest)
    other.prepare()
    assert not staging.folder.exists()


def test_files_are_copied_where_the_disk_has_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    installed = InstalledTasks(tmp_path)
    _put(installed, TaskState(task=TASK).activate(1, _ref(1)))
    files = installed.version_files(TASK, _ref(1))
    manifest = manifest_of(TASK, "v1", {"main.pyc": DATA, "lib/again.pyc": DATA})
    verify_files(files, manifest)
    assert not (files / "main.pyc").samefile(files / "lib/again.pyc")
    staging = installed.staging(TASK, _ref(2).manifest)
    staging.prepare()
    assert staging.take(files / "main.pyc", _entry(DATA))
    assert not staging.take(files / "main.pyc", _entry(b"other"))
    assert not staging.take(files / "absent", _entry(DATA))


def test_an_envelope_that_is_gone_or_another_is_corrupted(tmp_path: Path) -> None:
    installed = InstalledTasks(tmp_path)
    _put(installed, TaskState(task=TASK).activate(1, _ref(1)))
    with pytest.raises(CorruptedError, match="its sha256 is wrong"):
        installed.envelope(TASK, _ref(1))
    with pytest.raises(CorruptedError, match="No such file"):
        installed.envelope(TASK, _ref(2))


def test_a_state_can_be_read_by_programs_that_know_no_failures_of_an_outcome() -> None:
    state = TaskState(task=TASK).refuse(3, _ref(1), "its check failed", final=True)
    stored = json.loads(state.to_bytes())["state"]["outcome"]
    assert stored.keys() == {"task", "version", "release", "kind", "ok", "failed", "error", "place", "log"}
    assert TaskState.from_bytes(state.to_bytes()) == state


def test_a_state_of_an_older_walle_is_read_and_follows_the_first_era() -> None:
    body = json.loads(TaskState(task=TASK).activate(70, _ref(1)).to_bytes())["state"]
    del body["epoch"], body["era"]
    old = canonical_json({"format": 1, "state": body, "sha256": sha256_of(canonical_json(body))})
    state = TaskState.from_bytes(old)
    assert (state.serial, state.epoch, state.era, state.active) == (70, 0, "", _ref(1))
    first = state.within("fleet/1", 1)
    assert (first.serial, first.active) == (0, _ref(1))
    assert first.begin(5).within("fleet/1", 1).serial == 5
    assert TaskState.from_bytes(first.begin(5).to_bytes()) == first.begin(5)
    assert first.begin(5).remove(6, "r").within("fleet/1", 1).serial == 6
