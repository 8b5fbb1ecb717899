"""Groups of devices that a version is simulated for: the largest, and what stands for each of them."""

from pathlib import Path

import pytest

from walle.base.clock import ManualClock
from walle.deploy.fleet.device_group import MAX_GROUPS, DeviceGroup, TargetedGroups, not_simulated_text
from walle.deploy.fleet.registry import DeviceRegistry
from walle.deploy.policies.policy import Policy
from walle.protocol import Attribute, Profile


def profile(number: int, app_version: str, **attributes: Attribute) -> Profile:
    return Profile(f"d{number}", app_version, attributes, {})


def test_the_largest_groups_come_first_and_the_rest_is_counted() -> None:
    devices = [profile(n, f"{10 + n % 12}.0", os=("ios" if n % 12 < 6 else "android")) for n in range(600)]
    devices += [profile(1000 + n, "10.0", os="ios") for n in range(50)]
    found = TargetedGroups.of(devices)
    assert len(found.groups) == MAX_GROUPS
    assert (found.groups[0].app_version, found.groups[0].os, found.groups[0].devices) == ("10.0", "ios", 100)
    assert (found.others, found.other_devices) == (4, 200)
    assert found.other_names[0] == "app 18.0 on android (50 devices)"
    assert sum(group.devices for group in found.groups) + found.other_devices == len(devices)


def test_most_devices_decide_a_groups_attributes_and_one_device_makes_no_group() -> None:
    devices = [profile(n, "10.0", os="ios", memory_mb=4096, performance="high") for n in range(500)]
    devices += [profile(500 + n, "10.0", os="ios", memory_mb=1, performance=True) for n in range(200)]
    devices.append(profile(999, "666", os="\x1b[31mevil", performance="none"))
    found = TargetedGroups.of(devices)
    (group,) = found.groups
    assert group.device == {
        "app_version": "10.0",
        "os": "ios",
        "memory_mb": 4096,
        "performance": "high",
        "id": "simulated-10.0-ios",
    }
    assert (found.others, found.other_devices) == (1, 1)
    assert found.other_names == ("app 666 on \\x1b[31mevil (1 device)",)


def test_a_system_that_is_not_a_text_or_is_missing_is_a_separate_group() -> None:
    devices = [profile(1, "1"), profile(2, "1", os=7), profile(3, "1"), profile(4, "1", os="ios")]
    found = TargetedGroups.of([*devices, profile(5, "1", os="ios")])
    assert [(group.os, group.devices) for group in found.groups] == [("", 3), ("ios", 2)]
    assert "os" not in DeviceGroup(app_version="1", os="").device
    assert found.groups[0].name == "app 1 on no stated os"
    assert DeviceGroup(app_version="\x1b" + "9" * 100, os="").name.startswith("app \\x1b999")


@pytest.mark.parametrize("honest", [1, 3, 40])
def test_one_device_makes_up_no_group_in_a_small_fleet_either(honest: int) -> None:
    devices = [profile(n, "10.0", os="ios") for n in range(honest)]
    found = TargetedGroups.of([*devices, profile(999, "666", os="evil")])
    assert all(group.os != "evil" for group in found.groups)
    assert found.other_devices == len(devices) + 1 - sum(group.devices for group in found.groups)


def test_without_devices_there_are_no_groups() -> None:
    assert TargetedGroups.of([]) == TargetedGroups()


@pytest.mark.asyncio
async def test_the_registry_groups_the_devices_of_a_policy_that_were_seen_lately(tmp_path: Path) -> None:
    clock = ManualClock()
    async with DeviceRegistry.in_file(tmp_path / "devices.db", clock) as registry:
        for number in range(5):
            if number == 1:
                await clock.advance(10_000.0)
            one = profile(number, "10.0" if number % 2 else "9.0", os="ios")
            registry.note({one.device_id: one.to_header().encode()})
            await registry.flush()
        found = await registry.groups(Policy(app_version=">=10"), 3600.0)
        assert [(group.app_version, group.devices) for group in found.groups] == [("10.0", 2)]
        every = await registry.groups(Policy(), 3600.0)
        assert [(group.app_version, group.devices) for group in every.groups] == [("10.0", 2), ("9.0", 2)]


def test_groups_that_are_not_simulated_are_counted_with_the_reason() -> None:
    reason = "has fewer than 2 devices, has less than 1 % of the release's devices, or is not among the 8 largest"
    assert not_simulated_text(1) == f"1 group of devices was not simulated: it {reason}"
    assert not_simulated_text(3) == f"3 groups of devices were not simulated: each {reason}"


def test_groups_that_are_not_simulated_are_named_up_to_a_few() -> None:
    found = TargetedGroups.of(profile(number, f"{number}", os="ios") for number in range(6))
    assert found.other_names == tuple(f"app {number} on ios (1 device)" for number in range(4))
    text = not_simulated_text(found.others, found.other_names)
    assert text.startswith("6 groups of devices were not simulated: app 0 on ios (1 device), app 1 on ios")
    assert "app 3 on ios (1 device) and 2 more; each has fewer than 2 devices" in text
    one = not_simulated_text(1, ["app 2.0 on ios (1 device)"])
    assert one.startswith("1 group of devices was not simulated: app 2.0 on ios (1 device); it has fewer than")
