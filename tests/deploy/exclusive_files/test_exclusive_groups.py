"""Exclusive files of groups: one encrypted file for each rule, and the same sealed bytes from every gateway."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from walle.base.clock import ManualClock
from walle.deploy.exclusive_files import groups as exclusive_groups
from walle.deploy.exclusive_files.groups import GroupFile, GroupFiles, GroupKey, TooManyGroupFilesError
from walle.deploy.exclusive_files.store import DeviceFiles, ExclusiveStore
from walle.deploy.policies import rule_budget
from walle.deploy.policies.attribute_schema import ColumnType, JoinedProfile
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule_budget import PatternBudgetError
from walle.errors import ConfigError
from walle.protocol import MAX_EXCLUSIVE_FILES, Profile, SealedFile, seal_info
from walle.trust.sealing import open_sealed

TASK = "shop/ipv"
SCHEMA = {"os": ColumnType.STRING, "uploaded.group": ColumnType.STRING}
ANDROID = Policy(rule="os == 'android'").typed(SCHEMA)
GOLD = Policy(rule="uploaded.group == 'gold'").typed(SCHEMA)
PHONE = JoinedProfile("d1", "10.1", {"os": "android"}, {}, {"uploaded.group": "gold"})
KEY = ec.generate_private_key(ec.SECP256R1())
DER = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def groups_of(folder: Path) -> GroupFiles:
    store = ExclusiveStore.in_file(folder / "exclusive.db", clock=ManualClock()).open()
    return GroupFiles(store, lambda: GroupKey(folder / "key"), clock=ManualClock())


def names(found: list[GroupFile]) -> list[tuple[str, str]]:
    return [(file.name, file.policy.rule) for file in found]


def contents(groups: GroupFiles, profile: Profile = PHONE) -> dict[str, bytes]:
    """Return what a device reads of what its groups give it."""
    files = groups.of(profile)
    found = {}
    for entry in groups.part(profile.device_id, 1, DER, files):
        sealed = groups.sealed(profile.device_id, 1, DER, files, entry.sha256)
        assert sealed is not None
        assert len(sealed) == entry.size_bytes
        found[entry.name] = open_sealed(sealed, KEY, seal_info(profile.device_id, 1, entry.task, entry.name))
    return found


def test_a_device_has_the_newest_file_of_its_groups(folder: Path) -> None:
    groups = groups_of(folder)
    assert groups.of(PHONE) == []
    assert groups.serial() == 0
    groups.put(TASK, "a", ANDROID, b"android", by="anna")
    groups.put(TASK, "b", ANDROID, b"b", by="anna")
    groups.put(TASK, "a", GOLD, b"gold", by="anna")
    assert names(groups.of(PHONE)) == [("a", GOLD.rule), ("b", ANDROID.rule)]
    assert contents(groups) == {"a": b"gold", "b": b"b"}
    assert contents(groups, Profile("d2", "10.1", {"os": "android", "uploaded.group": "gold"})) == {
        "a": b"android",
        "b": b"b",
    }
    assert contents(groups, Profile("d3", "10.1", {"os": "ios"})) == {}
    groups.put(TASK, "a", ANDROID, b"newer", by="anna")  # replaces the file for the same rule, and is the newest now
    assert contents(groups) == {"a": b"newer", "b": b"b"}
    assert len(groups.files("shop")) == 3
    assert groups.remove(TASK, "a", ANDROID)
    assert contents(groups) == {"a": b"gold", "b": b"b"}
    assert not groups.remove(TASK, "a", ANDROID)
    assert groups.has(TASK, "a", Policy(rule=GOLD.rule))  # whatever is declared now
    assert groups.remove(TASK, "a", Policy(rule=GOLD.rule))
    assert groups.serial() == 6
    assert [file.name for file in groups.files("shop", task="ipv")] == ["b"]
    assert groups.files("shop", task="other") == groups.files("sho") == []


def test_every_gateway_makes_the_same_bytes_and_keeps_nothing_for_a_device(folder: Path) -> None:
    one, other = groups_of(folder), groups_of(folder)
    one.put(TASK, "a", GOLD, b"secret of gold", by="anna")
    files = other.of(PHONE)
    size_bytes = (folder / "exclusive.db").stat().st_size
    entries = {
        device: (one.part(device, 1, DER, one.of(PHONE)), other.part(device, 1, DER, files)) for device in ("d1", "d2")
    }
    for made in entries.values():
        assert made[0] == made[1]
    assert entries["d1"][0] != entries["d2"][0]
    assert one.part("d1", 2, DER, files) != entries["d1"][0]  # the device's new key changes it
    assert other.sealed("d2", 1, DER, files, entries["d1"][0][0].sha256) is None
    assert (folder / "exclusive.db").stat().st_size == size_bytes
    one.put(TASK, "a", GOLD, b"secret of gold", by="anna")  # the same contents: devices have the file already
    assert one.part("d1", 1, DER, one.of(PHONE)) == entries["d1"][0]
    for path in folder.glob("exclusive.db*"):
        assert b"secret of gold" not in path.read_bytes()


def test_without_the_clouds_key_a_file_is_left_out_and_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups_of(folder).put(TASK, "a", GOLD, b"x", by="anna")
    (folder / "key").unlink()  # a cloud that was restored without keys
    groups = groups_of(folder)
    assert contents(groups) == {}
    assert "cannot be read with this cloud's key; put it again" in caplog.text
    groups.put(TASK, "a", GOLD, b"y", by="anna")
    assert contents(groups) == {"a": b"y"}
    for text in ("ab", "not hex"):
        (folder / "key").write_text(text)
        with pytest.raises(ConfigError, match="is damaged; remove it"):
            GroupKey(folder / "key")


def test_files_of_groups_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of(folder)
    monkeypatch.setattr(exclusive_groups, "MAX_GROUP_FILES", 2)
    monkeypatch.setattr(exclusive_groups, "_REMEMBERED", 1)
    groups.put(TASK, "a", GOLD, b"a", by="anna")
    groups.put(TASK, "b", GOLD, b"b", by="anna")
    groups.put(TASK, "a", GOLD, b"c", by="anna")
    with pytest.raises(TooManyGroupFilesError):
        groups.put(TASK, "c", GOLD, b"c", by="anna")
    assert contents(groups) == {"a": b"c", "b": b"b"}
    assert len(groups._known) == 1


def test_the_patterns_of_a_scenarios_group_files_have_a_budget_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def policy(letter: str) -> Policy:
        return Policy(rule=f"os.matches('(a|b)*a(a|b){{20}}{letter}')").typed(SCHEMA)

    groups = groups_of(folder)
    monkeypatch.setattr(rule_budget, "MAX_INSTRUCTIONS", 500)
    groups.put(TASK, "a", policy("c"), b"a", by="anna")
    groups.put(TASK, "b", policy("d"), b"b", by="anna")
    with pytest.raises(PatternBudgetError, match="exclusive files of groups of scenario shop have"):
        groups.put(TASK, "c", policy("e"), b"c", by="anna")
    groups.put(TASK, "c", policy("d"), b"c", by="anna")  # equal rules count once
    groups.put("bank/x", "c", policy("e"), b"c", by="anna")  # another scenario
    groups.put(TASK, "c", ANDROID, b"c", by="anna")
    groups.remove(TASK, "a", policy("c"))
    groups.put(TASK, "c", policy("e"), b"c", by="anna")


def test_a_devices_own_files_go_first_and_the_serial_never_falls(caplog: pytest.LogCaptureFixture) -> None:
    def entry(name: str, digit: str) -> SealedFile:
        return SealedFile(task=TASK, name=name, sha256=digit * 64, size_bytes=100)

    own = DeviceFiles(3, (entry("b", "1"),))
    assert own.with_groups(5, (entry("a", "2"), entry("b", "3"))) == DeviceFiles(8, (entry("a", "2"), entry("b", "1")))
    assert own.with_groups(6, ()) == DeviceFiles(9, (entry("b", "1"),))
    many = DeviceFiles(1, tuple(entry(f"o{number}", "1") for number in range(MAX_EXCLUSIVE_FILES - 1)))
    found = many.with_groups(1, (entry("x", "2"), entry("y", "2")))
    assert [file.name for file in found.files if file.sha256[0] == "2"] == ["x"]
    assert "1 of groups are left out" in caplog.text
