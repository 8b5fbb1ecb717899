import json

import pytest

from walle.deploy.fleet.device_count import EXACT, DeviceCount


def test_few_devices_are_counted_exactly_and_once() -> None:
    count = DeviceCount()
    assert [count.add(f"d{number % 500}") for number in range(1000)] == [True] * 500 + [False] * 500
    assert len(count) == 500


@pytest.mark.parametrize("devices", [EXACT, EXACT + 1, 20_000, 120_000])
def test_many_devices_are_counted_within_three_percent(devices: int) -> None:
    count = DeviceCount()
    for _ in range(2):
        for number in range(devices):
            count.add(f"device-{number}")
    assert abs(len(count) - devices) <= (0 if devices <= EXACT else 0.03 * devices)


def test_the_memory_is_bounded() -> None:
    count = DeviceCount()
    for number in range(5 * EXACT):
        count.add(str(number))
    assert len(json.dumps(count.to_plain())) < 25_000


@pytest.mark.parametrize("devices", [0, 10, 3 * EXACT])
def test_a_count_goes_through_json(devices: int) -> None:
    count = DeviceCount()
    for number in range(devices):
        count.add(str(number))
    again = DeviceCount.from_plain(json.loads(json.dumps(count.to_plain())))
    assert len(again) == len(count)
    again.add("0")
    assert len(again) == max(len(count), 1)
