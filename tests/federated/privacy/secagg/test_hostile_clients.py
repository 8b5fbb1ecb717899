"""Server against clients that lie: foreign names, late and malformed messages, wrong shares."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.privacy.secagg.rounds import (
    ADMITS,
    AUTHORITY,
    Exchange,
    client_of,
    device_key,
    names,
    plain_sum,
    vector_of,
)
from walle.errors import ConfigError
from walle.federated.privacy.secagg.identity import AdvertisedKeys, voucher
from walle.federated.privacy.secagg.messages import MessageError, RoundAbortedError, packed
from walle.federated.privacy.secagg.plan import SecAggPlan
from walle.federated.privacy.secagg.server import SecAggServer, Stage
from walle.trust.ed25519_keys import KeyRefusedError

PLAN = SecAggPlan("round", 4, 5)
DEVICES = names(6)
VECTORS = {device: vector_of(random.Random(device), 4) for device in DEVICES}


def keys_message(box_key: bytes = b"\x09" + bytes(31), mask_key: bytes = b"\x09" + bytes(31)) -> bytes:
    key = device_key(DEVICES[0])
    public = key.public_key().public_bytes_raw()
    keys = AdvertisedKeys(DEVICES[0], public, voucher(AUTHORITY, DEVICES[0], public), box_key, mask_key)
    return keys.signed(PLAN.digest, key)


def test_keys_of_another_device_name_are_refused() -> None:
    server = SecAggServer(PLAN, ADMITS)
    with pytest.raises(MessageError, match="they are those of device 'device-1'") as caught:
        server.add_keys(DEVICES[0], client_of(PLAN, DEVICES[1]).advertise())
    assert caught.value.sender == DEVICES[0]


@pytest.mark.parametrize("small", [bytes(32), b"\1" + bytes(31), (2**255 - 19 - 1).to_bytes(32, "little")])
def test_keys_of_small_order_are_refused_before_they_reach_a_neighbour(small: bytes) -> None:
    for message in (keys_message(box_key=small), keys_message(mask_key=small)):
        with pytest.raises(MessageError, match="small order"):
            SecAggServer(PLAN, ADMITS).add_keys(DEVICES[0], message)
    assert SecAggServer(PLAN, ADMITS).add_keys(DEVICES[0], keys_message())


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (1, "", "name has 0 bytes"),
        (1, "x" * 201, "name has 201 bytes"),
        (2, bytes(31), "identity has 31 bytes"),
        (2, bytes(32), "signature is not"),
        (3, bytes(4100), "4100 bytes of evidence"),
        (3, bytes(5000), r"51\d\d bytes; at most 4808 are read"),
        (4, bytes(31), "box key has 31 bytes"),
        (6, bytes(64), "signature is not"),
        (6, 7, "fields"),
    ],
)
def test_malformed_keys_are_refused_by_field(field: int, value: Any, reason: str) -> None:
    fields = msgpack.unpackb(client_of(PLAN, DEVICES[0]).advertise())
    fields[field] = value
    with pytest.raises(MessageError, match=reason):
        SecAggServer(PLAN, ADMITS).add_keys(DEVICES[0], msgpack.packb(fields))


def test_an_authority_vouches_for_no_key_that_proves_nothing() -> None:
    with pytest.raises(KeyRefusedError, match="small order"):
        voucher(AUTHORITY, DEVICES[0], bytes(32))


def test_a_second_message_of_a_device_is_refused() -> None:
    server = SecAggServer(PLAN, ADMITS)
    server.add_keys(DEVICES[0], client_of(PLAN, DEVICES[0]).advertise())
    with pytest.raises(MessageError, match="differs from the device's first message"):
        server.add_keys(DEVICES[0], client_of(PLAN, DEVICES[0], seed=1).advertise())


def test_late_messages_and_those_of_strangers_are_refused() -> None:
    exchange = Exchange(PLAN, DEVICES)
    rosters = exchange.advertise()
    with pytest.raises(MessageError, match="the round is at 'shares', not at 'keys'"):
        exchange.server.add_keys("late", client_of(PLAN, "late").advertise())
    shares = exchange.clients[DEVICES[0]].share(rosters[DEVICES[0]])
    with pytest.raises(MessageError, match="'stranger': the device is not in the round"):
        exchange.server.add_shares("stranger", shares)
    with pytest.raises(MessageError, match="at 'shares', not at 'answer'"):
        exchange.server.finish()


def test_a_vector_of_a_device_that_shared_nothing_is_refused() -> None:
    exchange = Exchange(PLAN, DEVICES)
    exchange.share(DEVICES[:5])
    with pytest.raises(MessageError, match="did not share its seeds"):
        exchange.server.add_masked(DEVICES[5], packed("masked", [bytes(16), bytes(32)]))


def test_a_vector_of_another_length_is_refused_and_changes_nothing() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    for fields, reason in (([bytes(20), bytes(32)], "vector has 20"), ([bytes(16), bytes(31)], "commitment has 31")):
        with pytest.raises(MessageError, match=reason):
            exchange.server.add_masked(DEVICES[0], packed("masked", fields))
    found = exchange.unmask(DEVICES, exchange.mask(DEVICES, boxes, VECTORS))
    assert found.total.tolist() == plain_sum(list(VECTORS.values())).tolist()


def test_one_client_s_wrong_shares_do_not_spoil_the_sum() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    requests = exchange.mask(DEVICES[:5], boxes, VECTORS)
    kind, bits, shares = msgpack.unpackb(exchange.clients[DEVICES[0]].unmask(requests[DEVICES[0]]))
    exchange.server.add_answer(DEVICES[0], packed(kind, [bits, bytes(len(shares))]))
    found = exchange.unmask(DEVICES[1:5], requests)
    assert found.total.tolist() == plain_sum([VECTORS[device] for device in DEVICES[:5]]).tolist()


def test_wrong_shares_of_all_stop_the_round_by_name() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    requests = exchange.mask(DEVICES, boxes, VECTORS)
    for device in DEVICES:
        kind, bits, shares = msgpack.unpackb(exchange.clients[device].unmask(requests[device]))
        exchange.server.add_answer(device, packed(kind, [bits, bytes(len(shares))]))
    with pytest.raises(RoundAbortedError, match="do not fit what it published; no sum"):
        exchange.server.finish()
    assert exchange.server.stage is Stage.ABORTED


def test_boxes_that_cannot_be_opened_cost_their_sender_a_share_only() -> None:
    exchange = Exchange(PLAN, DEVICES)
    rosters = exchange.advertise()
    for device in DEVICES:
        message = exchange.clients[device].share(rosters[device])
        if device == DEVICES[0]:
            kind, boxes = msgpack.unpackb(message)
            message = packed(kind, [bytes(100) + boxes[100:]])  # two of five boxes are damaged
        exchange.server.add_shares(device, message)
    boxes_of = exchange.server.close_shares()
    found = exchange.unmask(DEVICES, exchange.mask(DEVICES, boxes_of, VECTORS))
    assert found.total.tolist() == plain_sum(list(VECTORS.values())).tolist()


@given(st.sampled_from(["keys", "shares", "masked", "answer"]), st.binary(max_size=60), st.integers(0))
def test_damaged_messages_raise_only_the_error_of_the_protocol(step: str, noise: bytes, at: int) -> None:
    exchange, device = Exchange(PLAN, DEVICES), DEVICES[0]
    if step == "keys":
        good, add = exchange.clients[device].advertise(), exchange.server.add_keys
    else:
        rosters = exchange.advertise()
        good, add = exchange.clients[device].share(rosters[device]), exchange.server.add_shares
        if step != "shares":
            exchange = Exchange(PLAN, DEVICES)
            boxes = exchange.share(DEVICES)
            good, add = exchange.clients[device].mask(boxes[device], VECTORS[device]), exchange.server.add_masked
            if step == "answer":
                requests = exchange.mask(DEVICES, boxes, VECTORS)
                good, add = exchange.clients[device].unmask(requests[device]), exchange.server.add_answer
    place = at % len(good)
    for damaged in (noise, good[:place], good[:place] + noise + good[place + len(noise) :]):
        try:
            add(device, damaged)
        except MessageError:
            continue
        break  # form is right; contents are checked where they are used


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("", 4, 5), "needs a name"),
        (("round", 0, 5), "vectors of 0 values"),
        (("round", 4, 2), "hides nobody"),
    ],
)
def test_plans_out_of_bounds_are_refused(fields: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SecAggPlan(*fields)
