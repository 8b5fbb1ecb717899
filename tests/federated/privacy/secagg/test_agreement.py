"""Keys of pairs: equal at both ends, different for every other pair, round and purpose; boxes open at one end only."""

from __future__ import annotations

import itertools

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from walle.federated.privacy.secagg.agreement import (
    BOX_BYTES,
    BoxKeys,
    mask_private_key,
    pair_mask_key,
    self_mask_commitment,
    self_mask_key,
)

SEEDS = [bytes([number]) * 16 for number in range(4)]
ROSTERS = (bytes(32), b"\1" * 32)


def public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def test_pair_keys_are_equal_at_both_ends_and_unlike_all_others() -> None:
    privates = [mask_private_key(seed, b"plan") for seed in SEEDS]
    found = set()
    for first, second in itertools.combinations(privates, 2):
        for roster in ROSTERS:
            key = pair_mask_key(first, public(second), roster)
            assert key == pair_mask_key(second, public(first), roster)
            found.add(key)
    assert len(found) == 12


def test_a_seed_gives_different_keys_for_each_purpose_and_round() -> None:
    made = [
        *(self_mask_key(seed, roster) for seed in SEEDS for roster in ROSTERS),
        *(self_mask_commitment(seed, roster) for seed in SEEDS for roster in ROSTERS),
        *(mask_private_key(seed, plan).private_bytes_raw() for seed in SEEDS for plan in ROSTERS),
    ]
    assert len(set(made)) == 24


def test_a_box_opens_for_its_recipient_from_its_sender_in_its_round_only() -> None:
    first, second, third = (X25519PrivateKey.from_private_bytes(seed * 2) for seed in SEEDS[1:])
    sender, recipient = b"s" * 32, b"r" * 32
    box = BoxKeys(first, sender, ROSTERS[0]).seal(bytes(34), public(second), recipient)
    assert len(box) == BOX_BYTES
    assert BoxKeys(second, recipient, ROSTERS[0]).open(box, public(first), sender) == bytes(34)
    assert BoxKeys(second, recipient, ROSTERS[1]).open(box, public(first), sender) is None
    assert BoxKeys(second, sender, ROSTERS[0]).open(box, public(first), recipient) is None
    assert BoxKeys(second, recipient, ROSTERS[0]).open(box, public(third), sender) is None
    assert BoxKeys(third, recipient, ROSTERS[0]).open(box, public(first), sender) is None
    changed = bytes([box[0] ^ 1]) + box[1:]
    assert BoxKeys(second, recipient, ROSTERS[0]).open(changed, public(first), sender) is None
