"""Checkpoints: a server that dies at any moment of a round continues it, with the same messages and the same sum."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.privacy.secagg.rounds import ADMITS, Exchange, names, plain_sum, vector_of
from walle.federated.privacy.secagg.messages import MessageError, RoundAbortedError
from walle.federated.privacy.secagg.plan import SecAggPlan
from walle.federated.privacy.secagg.server import SecAggServer, Stage

PLAN = SecAggPlan("round", 3, 5)
DEVICES = names(7)
VECTORS = {device: vector_of(random.Random(device), 3) for device in DEVICES}


@given(st.sets(st.integers(0, 30), max_size=6))
def test_a_round_over_restarts_has_the_sum_of_one_without(restarts: set[int]) -> None:
    """A restart comes after the numbered events: each message of a device, and each close of a stage."""
    exchange, happened = Exchange(PLAN, DEVICES), 0

    def event() -> None:
        nonlocal happened
        if happened in restarts:
            exchange.restart()
        happened += 1

    for device in DEVICES:
        exchange.server.add_keys(device, exchange.clients[device].advertise())
        event()
    exchange.server.close_keys()
    event()
    for device, message in exchange.server.outgoing().items():
        exchange.server.add_shares(device, exchange.clients[device].share(message))
        event()
    exchange.server.close_shares()
    event()
    for device, message in exchange.server.outgoing().items():
        if device != DEVICES[2]:
            masked = exchange.clients[device].mask(message, VECTORS[device])
            assert exchange.server.add_masked(device, masked)
            event()
            assert not exchange.server.add_masked(device, masked)  # a device repeats what was not acknowledged
    exchange.server.close_masked()
    event()
    for device, message in exchange.server.outgoing().items():
        answer = exchange.clients[device].unmask(message)
        assert exchange.server.add_answer(device, answer)
        event()
        assert not exchange.server.add_answer(device, answer)
    found = exchange.server.finish()
    assert found.lost == (DEVICES[2],)
    assert found.total.tolist() == plain_sum([VECTORS[one] for one in DEVICES if one != DEVICES[2]]).tolist()


def test_messages_of_a_stage_are_the_same_after_a_restart() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    exchange.restart()
    assert exchange.server.outgoing() == boxes
    requests = exchange.mask(DEVICES[:6], boxes, VECTORS)
    exchange.restart()
    assert exchange.server.outgoing() == requests
    exchange.unmask(DEVICES[:6], requests)
    assert exchange.server.outgoing() == {}


def test_a_round_that_stopped_stays_stopped() -> None:
    exchange = Exchange(PLAN, DEVICES[:4])
    with pytest.raises(RoundAbortedError):
        exchange.advertise()
    exchange.restart()
    assert exchange.server.stage is Stage.ABORTED
    with pytest.raises(MessageError, match="the round is at 'aborted'"):
        exchange.server.finish()


def test_a_checkpoint_of_another_plan_or_a_damaged_one_is_refused() -> None:
    checkpoint = Exchange(PLAN, DEVICES).server.checkpoint()
    with pytest.raises(MessageError, match="another plan"):
        SecAggServer.restored(SecAggPlan("other", 3, 5), ADMITS, checkpoint)
    with pytest.raises(MessageError, match="not MessagePack"):
        SecAggServer.restored(PLAN, ADMITS, checkpoint[:-1])
