"""Quota of a device: its text, and the memory that the counts take."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.pipeline.ingest.upload_samples import received
from walle.base.clock import ManualClock
from walle.errors import ConfigError
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store import quota as quota_module
from walle.pipeline.ingest.store.quota import DeviceQuota, QuotaKeeper, StoredPart


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DeviceQuota()),
        ("500MB", DeviceQuota(size_bytes=500 * 10**6)),
        ("1.5GB,20", DeviceQuota(size_bytes=1_500_000_000, topics=20)),
    ],
)
def test_a_quota_is_read(text: str, expected: DeviceQuota) -> None:
    assert DeviceQuota.parse(text) == expected


@pytest.mark.parametrize("text", ["x", "10", "10GB,many", "infGB", "nanGB", ",5", "1e9MB", "-5GB"])
def test_a_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the quota of a device; write a size, and the number of topics"):
        DeviceQuota.parse(text)


@pytest.mark.parametrize("text", ["0GB", "0.5MB", "1GB,0", "1GB,-1"])
def test_a_quota_that_no_device_could_keep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is too small; give it 1MB and 1 topic at least"):
        DeviceQuota.parse(text)


def test_the_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_module, "_MAX_DEVICES", 100)
    monkeypatch.setattr(quota_module, "_MAX_TOPICS", 50)
    store = SqliteUploadStore.__new__(SqliteUploadStore)
    keeper = QuotaKeeper(DeviceQuota(), store.stored_parts, ManualClock())
    for number in range(1000):
        keeper.note([received(1, device=f"d{number}", topic=f"{number}" * 1000)])
        assert len(keeper._accounts) <= 100
        assert len(keeper._known) <= 50
        assert all(len(topic) <= 200 for topic in keeper._known)
    assert keeper.refused([received(1)]) == {}


@pytest.mark.asyncio
@pytest.mark.parametrize("quota", [DeviceQuota(size_bytes=10**6), DeviceQuota(topics=160)])
async def test_a_forged_device_is_measured_among_more_devices_than_are_counted(
    monkeypatch: pytest.MonkeyPatch, quota: DeviceQuota
) -> None:
    monkeypatch.setattr(quota_module, "_MAX_DEVICES", 100)
    measured = set[str]()

    async def measure(device_id: str) -> AsyncIterator[StoredPart]:
        measured.add(device_id)
        yield StoredPart([], 0)

    keeper = QuotaKeeper(quota, measure, ManualClock())
    for number in range(20):
        keeper.note([received(1, device=f"d{number}-{device}") for device in range(50)])
        keeper.note([received(number, device="forged", topic=f"t{number}", payload=bytes(10_000))])
        await asyncio.sleep(0.001)
    await keeper.aclose()
    assert measured == {"forged"}
