"""Whole rounds: the sum is exact for every set of lost devices within the limit, and there is none beyond it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.privacy.secagg.rounds import Exchange, names, plain_sum, vector_of
from walle import np
from walle.federated.privacy.fixed_point import FixedPoint
from walle.federated.privacy.secagg.messages import RoundAbortedError
from walle.federated.privacy.secagg.plan import SecAggPlan
from walle.federated.privacy.secagg.server import Stage


def check_a_round_with_losses(count: int, seed: int, data: st.DataObject) -> None:
    devices = names(count)
    lost = data.draw(st.lists(st.sampled_from(devices), max_size=int(0.3 * count), unique=True))
    steps = {device: data.draw(st.integers(1, 3)) for device in lost}  # the step at which a device is lost
    plan = SecAggPlan(f"round {seed}", 5, max(3, count - int(0.3 * count)))
    numbers = random.Random(seed)
    vectors = {device: vector_of(numbers, 5) for device in devices}
    exchange = Exchange(plan, devices, seed)

    def live(step: int) -> list[str]:
        return [device for device in devices if steps.get(device, 4) > step]

    boxes = exchange.share(live(1))
    requests = exchange.mask(live(2), boxes, vectors)
    found = exchange.unmask(live(3), requests)
    assert set(found.delivered) == set(live(2))
    assert set(found.lost) == set(devices) - set(live(2))
    assert found.total.tolist() == plain_sum([vectors[device] for device in live(2)]).tolist()


@given(st.integers(3, 12), st.integers(0, 1000), st.data())
def test_the_sum_is_exact_whichever_devices_are_lost_at_whichever_step(
    count: int, seed: int, data: st.DataObject
) -> None:
    check_a_round_with_losses(count, seed, data)


@pytest.mark.night
@given(st.integers(13, 40), st.integers(0, 1000), st.data())
def test_the_sum_of_many_devices_is_exact_whichever_are_lost(count: int, seed: int, data: st.DataObject) -> None:
    check_a_round_with_losses(count, seed, data)


def test_the_sum_of_a_graph_with_fewer_neighbours_than_clients_is_exact() -> None:
    devices = names(120)
    plan = SecAggPlan("round", 3, 80, dropout=0.2, corrupt=0.02)
    assert plan.degree(120).neighbours < 80
    numbers = random.Random(5)
    vectors = {device: vector_of(numbers, 3) for device in devices}
    exchange = Exchange(plan, devices)
    gone = numbers.sample(devices, 24)
    boxes = exchange.share([one for one in devices if one not in gone[:6]])
    live = [one for one in devices if one not in gone[:16]]
    requests = exchange.mask(live, boxes, vectors)
    found = exchange.unmask([one for one in devices if one not in gone], requests)
    assert found.total.tolist() == plain_sum([vectors[one] for one in live]).tolist()


def test_updates_of_clients_come_back_as_the_sum_of_their_rounded_values() -> None:
    devices, numbers = names(6), random.Random(3)
    coding = FixedPoint({"w": (2, 2), "b": (3,)}, 1.0, 20, 6)
    updates = {
        device: {name: np.asarray([numbers.uniform(-1, 1) for _ in range(size)], "float32").reshape(coding.shapes[name])
                 for name, size in (("w", 4), ("b", 3))}
        for device in devices
    }  # fmt: skip
    exchange = Exchange(SecAggPlan("round", coding.values, 4), devices)
    boxes = exchange.share(devices)
    vectors = {device: coding.encode(update).vector for device, update in updates.items()}
    requests = exchange.mask(devices[1:], boxes, vectors)
    found = coding.decode(exchange.unmask(devices[1:], requests).total)
    for name in coding.shapes:
        expected = plain_sum([updates[device][name].astype("float64") for device in devices[1:]])
        assert found[name].reshape(-1).tolist() == pytest.approx(expected.reshape(-1).tolist(), abs=6e-6)


def test_fewer_devices_than_the_minimum_stop_the_round_at_each_step() -> None:
    plan, devices = SecAggPlan("round", 2, 7), names(8)
    numbers = random.Random(1)
    vectors = {device: vector_of(numbers, 2) for device in devices}
    with pytest.raises(RoundAbortedError, match="'keys': 6 devices; the minimum is 7"):
        Exchange(plan, devices[:6]).advertise()
    with pytest.raises(RoundAbortedError, match="'shares': 6 devices that shared"):
        Exchange(plan, devices).share(devices[:6])
    exchange = Exchange(plan, devices)
    boxes = exchange.share(devices)
    with pytest.raises(RoundAbortedError, match="'masked': 6 devices that delivered"):
        exchange.mask(devices[:6], boxes, vectors)
    assert exchange.server.stage is Stage.ABORTED


def test_too_few_answers_give_no_sum() -> None:
    devices = names(10)
    plan = SecAggPlan("round", 2, 7)
    numbers = random.Random(1)
    exchange = Exchange(plan, devices)
    boxes = exchange.share(devices)
    vectors = {device: vector_of(numbers, 2) for device in devices}
    requests = exchange.mask(devices, boxes, vectors)
    threshold = plan.degree(10).threshold
    with pytest.raises(RoundAbortedError, match=f"{threshold - 1} shares of a seed of device .*; {threshold} open it"):
        exchange.unmask(devices[:threshold], requests)  # devices hold no share of their own seed
    assert exchange.server.stage is Stage.ABORTED


def test_a_server_is_ready_when_each_seed_has_its_threshold_of_shares() -> None:
    devices = names(10)
    plan = SecAggPlan("round", 2, 7)
    exchange = Exchange(plan, devices)
    boxes = exchange.share(devices)
    requests = exchange.mask(devices, boxes, {device: vector_of(random.Random(1), 2) for device in devices})
    ready = []
    for device in devices:
        exchange.server.add_answer(device, exchange.clients[device].unmask(requests[device]))
        ready.append(exchange.server.is_ready)
    threshold = plan.degree(10).threshold
    assert ready == [False] * threshold + [True] * (10 - threshold)


def test_a_repeated_message_changes_nothing() -> None:
    devices = names(5)
    plan = SecAggPlan("round", 4, 4)
    numbers = random.Random(2)
    vectors = {device: vector_of(numbers, 4) for device in devices}
    exchange = Exchange(plan, devices)
    boxes = exchange.share(devices)
    first = exchange.clients[devices[0]].mask(boxes[devices[0]], vectors[devices[0]])
    assert exchange.server.add_masked(devices[0], first)
    assert not exchange.server.add_masked(devices[0], first)
    requests = exchange.mask(devices[1:], boxes, vectors)
    answer = exchange.clients[devices[0]].unmask(requests[devices[0]])
    assert exchange.server.add_answer(devices[0], answer)
    assert not exchange.server.add_answer(devices[0], answer)
    assert exchange.unmask(devices[1:], requests).total.tolist() == plain_sum(list(vectors.values())).tolist()
