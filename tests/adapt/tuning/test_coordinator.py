"""The coordinator of devices that tune: nearest peers first, models replaced, stale and bounded."""

from __future__ import annotations

import contextlib
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt.tuning.coordinator import MAX_MODEL_BYTES, CoordinatorLimits, SharedModelError, TuningCoordinator
from walle.adapt.tuning.hints import Hints
from walle.engine_ext.model import MAGIC

TASK = "shop/digits"


def share(coordinator: TuningCoordinator, device: str, latitude: float = 0.0, *, now_s: float = 0.0, size: int = 10,
          task: str = TASK) -> int:  # fmt: skip
    file = (MAGIC + device.encode()).ljust(size, b".")
    return coordinator.share(device, task, file, Hints(latitude), loss=0.1, accuracy=0.9, now_s=now_s)


def names(coordinator: TuningCoordinator, device: str, count: int = 4, *, now_s: float = 0.0) -> list[str]:
    return [one.device for one in coordinator.peers(device, TASK, count, now_s=now_s)]


def test_peers_are_those_of_the_task_with_the_nearest_hints() -> None:
    coordinator = TuningCoordinator(seed=1)
    for device, latitude in (("a", 10.0), ("far", 60.0), ("near", 10.1), ("next", 10.3)):
        share(coordinator, device, latitude)
    share(coordinator, "other task", 10.0, task="shop/words")
    assert names(coordinator, "a", 2) == ["near", "next"]
    assert names(coordinator, "a") == ["near", "next", "far"]


def test_a_model_replaces_the_one_before_it() -> None:
    coordinator = TuningCoordinator(seed=1)
    assert share(coordinator, "a") == 1
    assert share(coordinator, "b") == 1
    assert share(coordinator, "b", size=20) == 2
    (found,) = coordinator.peers("a", TASK, 4, now_s=0)
    assert (found.version, len(found.file), coordinator.size_bytes) == (2, 20, 30)
    assert coordinator.file("a", TASK, found.sha256, now_s=0) == found.file
    share(coordinator, "b", size=30)
    assert coordinator.file("a", TASK, found.sha256, now_s=0) is None


def test_who_shares_nothing_gets_nothing() -> None:
    coordinator = TuningCoordinator(seed=1)
    share(coordinator, "a")
    sha256 = coordinator._models[TASK, "a"].sha256
    with pytest.raises(SharedModelError, match="share one first"):
        names(coordinator, "b")
    with pytest.raises(SharedModelError, match="share one first"):
        coordinator.file("b", TASK, sha256, now_s=0)
    share(coordinator, "b", task="shop/words")
    with pytest.raises(SharedModelError, match="share one first"):
        coordinator.file("b", TASK, sha256, now_s=0)


def test_a_summary_of_another_length_keeps_no_device_out() -> None:
    coordinator = TuningCoordinator(seed=1)
    share(coordinator, "first")
    for device, part in (("a", 0.1), ("b", 0.2)):
        coordinator.share(device, TASK, MAGIC, Hints(summary=(part,)), loss=0, accuracy=0, now_s=0)
    assert names(coordinator, "a") == ["b"]
    assert names(coordinator, "first") == []
    share(coordinator, "a")  # summary left out
    assert names(coordinator, "a") == ["first"]
    assert names(coordinator, "b") == []


def test_a_file_that_is_not_a_model_is_refused_and_earns_no_peers() -> None:
    coordinator = TuningCoordinator(seed=1)
    share(coordinator, "a")
    for file in (b"x", MAGIC[:-1], b"x" + MAGIC):
        with pytest.raises(SharedModelError, match=r"not a \.walle file"):
            coordinator.share("b", TASK, file, Hints(), loss=0, accuracy=0, now_s=0)
    with pytest.raises(SharedModelError, match="share one first"):
        names(coordinator, "b")


def test_no_device_alone_removes_models_of_others() -> None:
    coordinator = TuningCoordinator(seed=1)
    share(coordinator, "a")
    for at in range(20):
        with contextlib.suppress(SharedModelError):
            share(coordinator, "greedy", size=MAX_MODEL_BYTES, task=f"shop/{at}")
    share(coordinator, "b")
    assert names(coordinator, "b") == ["a"]


def test_stale_models_are_removed() -> None:
    coordinator = TuningCoordinator(seed=1, limits=CoordinatorLimits(age_s=10))
    share(coordinator, "a", now_s=0)
    share(coordinator, "b", now_s=5)
    assert names(coordinator, "b", now_s=10) == ["a"]
    assert names(coordinator, "b", now_s=11) == []
    with pytest.raises(SharedModelError, match="share one first"):
        names(coordinator, "a", now_s=11)
    assert share(coordinator, "a", now_s=12) == 1


def test_files_counts_and_tasks_beyond_the_limits_are_refused() -> None:
    coordinator = TuningCoordinator(seed=1, limits=CoordinatorLimits(model_bytes=50, tasks=2))
    share(coordinator, "a")
    with pytest.raises(SharedModelError, match="51 bytes; it has 1 to 50"):
        share(coordinator, "a", size=51)
    with pytest.raises(SharedModelError, match="0 bytes"):
        coordinator.share("a", TASK, b"", Hints(), loss=0, accuracy=0, now_s=0)
    for count in (0, 65):
        with pytest.raises(SharedModelError, match="ask for 1 to 64"):
            names(coordinator, "a", count)
    share(coordinator, "a", task="second")
    with pytest.raises(SharedModelError, match="models of 2 tasks"):
        share(coordinator, "a", task="third")
    assert len(coordinator) == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(10, 40), st.integers(0, 30)), max_size=40))
def test_bounds_hold_and_the_latest_model_always_stays(calls: list[tuple[int, int, int]]) -> None:
    coordinator = TuningCoordinator(seed=1, limits=CoordinatorLimits(40, 100, 3, 2, 20.0))
    now_s = 0.0
    for device, size, pause_s in calls:
        now_s += pause_s
        share(coordinator, str(device), float(device), now_s=now_s, size=size)
        kept = coordinator._models.values()
        assert coordinator.size_bytes == sum(len(one.file) for one in kept) <= 100
        assert len(coordinator) <= 3
        assert all(one.shared_s + 20 >= now_s for one in kept)
        assert sum(len(index) for index in coordinator._indexes.values()) == len(coordinator)
        assert sum(coordinator._tasks.values()) == len(coordinator)
        assert set(names(coordinator, str(device), now_s=now_s)) == {one.device for one in kept} - {str(device)}


def test_no_argument_of_the_interface_has_samples() -> None:
    accepted = set(inspect.signature(TuningCoordinator.share).parameters) - {"self"}
    assert accepted == {"device", "task", "file", "hints", "loss", "accuracy", "now_s"}
