"""Client against a server that lies: made-up clients, other rosters, both seeds of one client, second requests."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.privacy.secagg.rounds import ADMITS, AUTHORITY, Exchange, client_of, names, vector_of
from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.secagg.client import SecAggClient
from walle.federated.privacy.secagg.identity import leaf, voucher
from walle.federated.privacy.secagg.messages import MessageError, RoundAbortedError, bitmap, packed
from walle.federated.privacy.secagg.plan import SecAggPlan

PLAN = SecAggPlan("round", 4, 5)
DEVICES = names(6)
OWN = DEVICES[0]


def numbers_of(device: str) -> Any:
    return vector_of(random.Random(device), 4)


def masked_round(lost: str = "") -> tuple[Exchange, dict[str, bytes]]:
    """Return a round of which all but one device delivered, and the requests for shares."""
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    live = [device for device in DEVICES if device != lost]
    return exchange, exchange.mask(live, boxes, {device: numbers_of(device) for device in DEVICES})


def bits_of(*members: int) -> bytes:
    return bitmap(set(members), 6)


def index_of(exchange: Exchange, device: str) -> int:
    return exchange.server._clients[device].index


def test_both_shares_of_one_client_are_refused() -> None:
    exchange, _ = masked_round()
    everybody = bits_of(*range(6))
    with pytest.raises(MessageError, match="asks for both seeds of 1 clients, never answered"):
        exchange.clients[OWN].unmask(packed("request", [everybody, bits_of(index_of(exchange, DEVICES[3]))]))


def test_the_other_share_of_a_client_is_refused_after_the_first() -> None:
    exchange, requests = masked_round()
    client, victim = exchange.clients[OWN], index_of(exchange, DEVICES[3])
    first = client.unmask(requests[OWN])
    others = set(range(6)) - {victim}
    with pytest.raises(MessageError, match="a second one is never answered"):
        client.unmask(packed("request", [bits_of(*others), bits_of(victim)]))
    assert client.unmask(requests[OWN]) == first


def test_an_answer_has_the_key_share_of_a_lost_client_and_the_self_mask_share_of_others() -> None:
    exchange, requests = masked_round(lost=DEVICES[4])
    client = exchange.clients[OWN]
    assert client._roster is not None
    _, bits, shares = msgpack.unpackb(client.unmask(requests[OWN]))
    assert bits == bitmap(set(range(5)), 5)
    for at, (index, one) in enumerate(client._roster.neighbours.items()):
        assert one.self_mask_share
        assert one.mask_key_share
        is_lost = index == index_of(exchange, DEVICES[4])
        assert shares[17 * at : 17 * at + 17] == (one.mask_key_share if is_lost else one.self_mask_share)
        assert (one.self_mask_share if is_lost else one.mask_key_share) not in shares


@pytest.mark.parametrize(
    ("delivered", "lost", "error", "reason"),
    [
        (range(6), {7}, MessageError, "bits beyond the 6 clients"),
        (range(5), set(), MessageError, "not those that shared"),
        (range(4), {4, 5}, RoundAbortedError, "4 clients delivered; minimum 5"),
    ],
)
def test_requests_that_do_not_fit_the_round_are_refused(
    delivered: range, lost: set[int], error: type[Exception], reason: str
) -> None:
    exchange, _ = masked_round()
    places = sorted(range(6), key=lambda index: index != index_of(exchange, OWN))  # this client's own place first
    request = packed("request", [bits_of(*(places[at] for at in delivered)), bits_of(*lost) if lost != {4, 5} else
                                 bits_of(places[4], places[5])])  # fmt: skip
    with pytest.raises(error, match=reason):
        exchange.clients[OWN].unmask(request)


def test_a_request_that_leaves_out_this_client_s_vector_is_refused() -> None:
    exchange, _ = masked_round()
    own = index_of(exchange, OWN)
    request = packed("request", [bits_of(*(set(range(6)) - {own})), bits_of(own)])
    with pytest.raises(MessageError, match="does not count this client's vector"):
        exchange.clients[OWN].unmask(request)


def test_too_few_neighbours_that_delivered_are_refused() -> None:
    """A server that names enough strangers as delivered, and most neighbours as lost, gets no shares."""
    devices = names(120)
    plan = SecAggPlan("round", 1, 60, dropout=0.2, corrupt=0.02)
    exchange = Exchange(plan, devices)
    boxes = exchange.share(devices)
    client = exchange.clients[devices[0]]
    client.mask(boxes[devices[0]], np.zeros((1,), "uint32"))
    assert client._roster is not None
    near = set(client._roster.neighbours)
    few = set(sorted(near)[: client._roster.threshold - 1])
    delivered = (set(range(120)) - near) | few
    with pytest.raises(RoundAbortedError, match=f"{len(few)} of {len(near)} neighbours delivered"):
        client.unmask(packed("request", [bitmap(delivered, 120), bitmap(near - few, 120)]))


def test_a_second_vector_is_never_masked() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    client = exchange.clients[OWN]
    first = client.mask(boxes[OWN], numbers_of(OWN))
    assert client.mask(boxes[OWN], numbers_of("another")) == first
    kind, bits, sealed = msgpack.unpackb(boxes[OWN])
    fewer = packed(kind, [bitmap(set(range(4)), 5), sealed[: len(sealed) * 4 // 5]])
    assert bits == bitmap(set(range(5)), 5)
    with pytest.raises(MessageError, match="a second one is never answered"):
        client.mask(fewer, numbers_of(OWN))


def test_fewer_boxes_than_the_threshold_stop_the_client() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    kind, _, sealed = msgpack.unpackb(boxes[OWN])
    few = packed(kind, [bitmap({0, 1}, 5), sealed[: len(sealed) * 2 // 5]])
    with pytest.raises(RoundAbortedError, match="2 of 5 neighbours shared their seeds; 3 must"):
        exchange.clients[OWN].mask(few, numbers_of(OWN))


def roster(advertised: list[bytes], own: SecAggClient) -> bytes:
    """Return the roster of a complete graph for one client."""
    ordered = sorted(advertised, key=leaf)
    return packed(
        "roster", [b"".join(leaf(one) for one in ordered), [one for one in ordered if one != own.advertise()]]
    )


def advertised_by_all() -> list[bytes]:
    return [client_of(PLAN, device).advertise() for device in DEVICES[1:]]


def test_made_up_clients_are_refused() -> None:
    own, key = client_of(PLAN, OWN), Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    forgeries = {
        "the fleet does not know": SecAggClient(PLAN, "made-up", key, ADMITS, evidence=voucher(key, "made-up", public)),
        "signature is not": SecAggClient(
            SecAggPlan("another round", 4, 5), "made-up", key, ADMITS, evidence=voucher(AUTHORITY, "made-up", public)
        ),
    }
    for reason, forged in forgeries.items():
        with pytest.raises(MessageError, match=reason):
            own.share(roster([own.advertise(), forged.advertise(), *advertised_by_all()[1:]], own))
    own.share(roster([own.advertise(), *advertised_by_all()], own))  # the real ones are admitted


def test_one_device_in_two_places_is_refused() -> None:
    own = client_of(PLAN, OWN)
    twice = client_of(PLAN, DEVICES[1], seed=1).advertise()
    with pytest.raises(MessageError, match="one device is in it twice"):
        own.share(roster([own.advertise(), twice, *advertised_by_all()[:4]], own))
    with pytest.raises(MessageError, match="one device is in it twice"):
        own.share(roster([own.advertise(), client_of(PLAN, OWN, seed=2).advertise(), *advertised_by_all()[:4]], own))


def test_rosters_that_do_not_fit_are_refused() -> None:
    own, others = client_of(PLAN, OWN), advertised_by_all()
    advertised = [own.advertise(), *others]
    kind, hashes, near = msgpack.unpackb(roster(advertised, own))
    for faulty, reason in (
        ([hashes[:-1], near], "bytes of hashes"),
        ([hashes[32:] + hashes[:32], near], "ascending"),
        ([b"".join(sorted(map(leaf, others))), near], "this client's keys are not in it"),
        ([hashes, near[1:]], "keys of 4 neighbours; the graph gives 5"),
        ([hashes, [*near[1:], near[0]]], "not those of the client at this place"),
        ([hashes, [*near[1:], 7]], "not those of the client at this place"),
    ):
        with pytest.raises(MessageError, match=reason):
            own.share(packed(kind, faulty))
    with pytest.raises(RoundAbortedError, match="4 clients; the minimum is 5"):
        own.share(roster(advertised[:4], own))


def test_steps_out_of_order_are_refused() -> None:
    client = client_of(PLAN, OWN)
    with pytest.raises(MessageError, match="before the roster"):
        client.mask(packed("boxes", [b"", b""]), numbers_of(OWN))
    with pytest.raises(MessageError, match="before the roster"):
        client.unmask(packed("request", [b"", b""]))
    exchange = Exchange(PLAN, DEVICES)
    exchange.share(DEVICES)
    with pytest.raises(MessageError, match="before this client delivered"):
        exchange.clients[OWN].unmask(packed("request", [bits_of(*range(6)), bits_of()]))


def test_vectors_that_do_not_fit_the_plan_are_refused() -> None:
    exchange = Exchange(PLAN, DEVICES)
    boxes = exchange.share(DEVICES)
    for vector in (np.zeros((5,), "uint32"), np.zeros((4,), "int32"), np.zeros((2, 2), "uint32")):
        with pytest.raises(ConfigError, match="the plan needs uint32"):
            exchange.clients[OWN].mask(boxes[OWN], vector)


@given(st.sampled_from(["roster", "boxes", "request"]), st.binary(max_size=60), st.integers(0), st.booleans())
def test_damaged_messages_raise_only_the_errors_of_the_protocol(
    step: str, noise: bytes, at: int, is_changed: bool
) -> None:
    rosters = Exchange(PLAN, DEVICES).advertise()
    exchange, requests = masked_round()
    good = {"roster": rosters[OWN], "boxes": exchange.received[OWN][2], "request": requests[OWN]}[step]
    fresh = client_of(PLAN, OWN)
    take = {
        "roster": fresh.share,
        "boxes": lambda data: _shared(rosters).mask(data, numbers_of(OWN)),
        "request": exchange.clients[OWN].unmask,
    }[step]
    place = at % len(good)
    damaged = good[:place] + noise + good[place + len(noise) :] if is_changed else noise
    try:
        take(damaged)
    except (MessageError, RoundAbortedError):
        return
    # Boxes are opened one by one: one that was changed is not used, and its owner's seed is opened by others.
    assert step == "boxes" or damaged == good


def _shared(rosters: dict[str, bytes]) -> SecAggClient:
    client = client_of(PLAN, OWN)
    client.share(rosters[OWN])
    return client
