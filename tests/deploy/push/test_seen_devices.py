"""Devices that a gateway has seen: listed once, with the tasks that are known of them, in bounded memory."""

import asyncio

import pytest

from tests.sim.release_world import table_of
from walle.deploy.fleet.device_changes import MAX_SIGHTING_BYTES
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.seen_devices import MAX_SEEN, MAX_SEEN_BYTES
from walle.protocol import Profile, ShortProfile, part_digest, parts_of, parts_to_header

NAMES = [f"item_search_video_{number}" for number in range(348)]


def _ask(answerer: Answerer, device_id: str, app_version: str = "10", **tasks: str) -> bytes:
    """Have a device send a full profile; return its header."""
    raw = Profile(device_id, app_version, {}, {f"shop/{task}": version for task, version in tasks.items()})
    header = raw.to_header().encode()
    answerer.headers(header, device_id)
    return header


def _ask_short(answerer: Answerer, device_id: str, tasks: dict[str, str], said: str = "") -> None:
    """Have a device send a short profile with all its parts, written as clients do that escape no letters."""
    parts = parts_of(tasks, {})
    digests = [part_digest(part) if part else "" for part in parts]
    raw = ShortProfile("10.0", {"said": said}, digests).to_header().encode().decode("unicode_escape").encode()
    answerer.headers(raw, device_id, parts_to_header(parts).encode())


def _listed(answerer: Answerer) -> Profile:
    (header,) = answerer.devices.take().values()
    return Profile.from_header(header.decode(), max_bytes=MAX_SIGHTING_BYTES)


@pytest.mark.asyncio
async def test_the_devices_that_sent_profiles_are_handed_over_once_within_bounds() -> None:
    answerer = Answerer()
    devices = answerer.devices
    for _ in range(2):  # the second time from the cache
        raws = {f"d{number}": _ask(answerer, f"d{number}") for number in range(3)}
        async with asyncio.timeout(5):
            await devices.wait()
        assert devices.take() == raws
        assert devices.take() == {}
    _ask(answerer, "d0")
    changed = _ask(answerer, "d0", "11")
    answerer.headers(b"broken", "d0")
    assert devices.take() == {"d0": changed}
    for number in range(MAX_SEEN + 100):
        _ask(answerer, f"e{number}")
    assert (len(devices.take()), devices.unseen) == (MAX_SEEN, 100)
    for number in range(3000):
        _ask(answerer, f"f{number}", "1" * 8000)
    assert sum(map(len, devices.take().values())) <= MAX_SEEN_BYTES


def test_a_device_comes_once_among_the_recent_ones() -> None:
    answerer = Answerer(table_of(ipv="v1"))
    _ask(answerer, "a")
    _ask(answerer, "b")
    _ask(answerer, "a", ipv="v1")
    assert answerer.recent(10, Policy()) == ("a", "b")


def test_the_recent_devices_are_bounded() -> None:
    answerer = Answerer(table_of(ipv="v1"), recent_devices=2)
    for name in "abac":
        _ask(answerer, name)
    assert [one.device_id for one in answerer.devices.profiles()] == ["c", "b"]
    assert answerer.devices.profile("a") is None
    assert answerer.devices.profile("b") == Profile("b", "10")


def test_a_device_with_a_short_profile_is_listed_with_its_tasks() -> None:
    answerer = Answerer(table_of(1, **dict.fromkeys(NAMES, "v1")))
    tasks = {f"shop/{name}": "v1" for name in NAMES}
    _ask_short(answerer, "d0", tasks)
    profile = _listed(answerer)
    assert (profile.device_id, profile.app_version, profile.attributes) == ("d0", "10.0", {"said": ""})
    assert profile.tasks == tasks


@pytest.mark.parametrize("said", ["x" * 3_000, "\u0448" * 1_500, "\u0448" * 1_900])
def test_a_device_of_long_attributes_is_listed_with_the_tasks_that_fit(said: str) -> None:
    answerer = Answerer(table_of(1, ipv="v1"))
    _ask_short(answerer, "d0", {f"shop/{name}": "v1" for name in NAMES}, said)
    profile = _listed(answerer)
    assert profile.attributes == {"said": said}
    assert len(profile.tasks) == len(NAMES)


def test_a_device_with_long_names_lists_the_tasks_that_fit() -> None:
    answerer = Answerer(table_of(1, ipv="v1"))
    tasks = {f"shop/{name}_{'x' * 150}": "v1" for name in NAMES}
    _ask_short(answerer, "d0", tasks)
    assert 150 < len(_listed(answerer).tasks) < len(tasks)
