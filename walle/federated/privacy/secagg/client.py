"""Client of secure aggregation: four answers to the server, of which only the sum of all clients can be computed.

Each step gives the same bytes again for the same message: a link that died may repeat it. Another message for a step
that was taken is refused, since two answers with the same masks would show their difference.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.keystream import KEY_BYTES, add_mask, subtract_mask
from walle.federated.privacy.secagg.agreement import (
    BOX_BYTES,
    BoxKeys,
    mask_private_key,
    pair_mask_key,
    self_mask_commitment,
    self_mask_key,
)
from walle.federated.privacy.secagg.graph import MOST_CLIENTS, neighbours_on, ring_order, roster_digest
from walle.federated.privacy.secagg.identity import Admits, AdvertisedKeys, leaf
from walle.federated.privacy.secagg.messages import (
    HEADER_BYTES,
    MessageError,
    RoundAbortedError,
    bitmap,
    bitmap_members,
    packed,
    require_size,
    unpacked,
)
from walle.federated.privacy.secagg.plan import SecAggPlan
from walle.federated.privacy.secagg.shares import SECRET_BYTES, SHARE_BYTES, split

LEAF_BYTES = 32
_ROSTER_BYTES = 64 << 20  # limit of a roster: all hashes, and some thousand neighbours with their evidence


@dataclass
class _Neighbour:
    keys: AdvertisedKeys
    leaf: bytes
    self_mask_share: bytes | None = None  # opens the neighbour's self-mask
    mask_key_share: bytes | None = None  # opens the neighbour's mask key


@dataclass
class _Roster:
    digest: bytes
    clients: int
    index: int  # place of this client
    threshold: int
    neighbours: dict[int, _Neighbour]  # by index in the roster, ascending
    senders: set[int] = field(default_factory=set)  # neighbours that shared their seeds: those it masks with


class SecAggClient:
    """One device in one round. Call `advertise`, `share`, `mask` and `unmask`, each with what the server sent.

    Args:
        plan: parameters of the round, from a source that the server cannot change (a signed directive).
        device: name of this device.
        key: Ed25519 key of this device.
        admits: says which keys are devices of the fleet.
        evidence: what `admits` of other clients needs to know about this device's key.
        random_bytes: source of secrets; for tests alone another one than the operating system's.
    """

    def __init__(
        self,
        plan: SecAggPlan,
        device: str,
        key: Ed25519PrivateKey,
        admits: Admits,
        *,
        evidence: bytes = b"",
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.plan = plan
        self._admits = admits
        self._random_bytes = random_bytes
        self._box_private = X25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES))
        self._mask_seed = random_bytes(SECRET_BYTES)
        self._self_seed = random_bytes(SECRET_BYTES)
        self._mask_private = mask_private_key(self._mask_seed, plan.digest)
        identity = key.public_key().public_bytes_raw()
        box_key, mask_key = (one.public_key().public_bytes_raw() for one in (self._box_private, self._mask_private))
        self._keys = AdvertisedKeys(device, identity, evidence, box_key, mask_key)
        self._advertised = self._keys.signed(plan.digest, key)
        self._leaf = leaf(self._advertised)
        self._boxes = BoxKeys(self._box_private, self._leaf, b"")
        self._roster: _Roster | None = None
        self._answers: dict[str, tuple[bytes, bytes]] = {}  # step -> digest of the message, answer

    def advertise(self) -> bytes:
        """Return this device's public keys for the round, signed."""
        return self._advertised

    def share(self, message: bytes) -> bytes:
        """Return shares of both seeds, sealed to each neighbour of the roster that the server sent.

        Raises:
            MessageError: the roster is malformed, or a neighbour is not a device of the fleet.
            RoundAbortedError: it has fewer clients than the round's minimum.
        """
        return self._once("roster", message, self._share)

    def mask(self, message: bytes, vector: Any) -> bytes:
        """Return the vector under the self-mask and the masks with all neighbours that shared their seeds.

        A repeated message gets the first answer again, whatever the vector: a second vector is never masked.

        Args:
            message: boxes of the neighbours, from the server.
            vector: flat uint32 array of the plan's length; sums are modulo 2**32.

        Raises:
            MessageError: the message is malformed.
            RoundAbortedError: fewer neighbours than the threshold shared their seeds.
            ConfigError: the vector has another dtype or length.
        """
        if str(vector.dtype) != "uint32" or tuple(vector.shape) != (self.plan.values,):
            raise ConfigError(
                f"vector of dtype {vector.dtype} and shape {tuple(vector.shape)}; the plan needs uint32 and "
                f"({self.plan.values},)"
            )
        return self._once("boxes", message, lambda data: self._mask(data, vector))

    def unmask(self, message: bytes) -> bytes:
        """Return one share for each neighbour: of the self-mask if it delivered, of the mask key if it was lost.

        Raises:
            MessageError: the request is malformed, asks for both shares of a client, names one that did not share, or
                differs from an earlier request.
            RoundAbortedError: fewer clients delivered than the minimum, or fewer neighbours than the threshold.
        """
        return self._once("request", message, self._unmask)

    def _once(self, step: str, message: bytes, take: Callable[[bytes], bytes]) -> bytes:
        digest = hashlib.sha256(message).digest()
        if step in self._answers:
            known, answer = self._answers[step]
            if known != digest:
                raise MessageError(step, "it differs from the one that was answered; a second one is never answered")
            return answer
        answer = take(message)
        self._answers[step] = digest, answer
        return answer

    def _share(self, message: bytes) -> bytes:
        hashes, advertised = unpacked("roster", message, (bytes, list), _ROSTER_BYTES)
        roster = self._read_roster(hashes, advertised)
        self._boxes = BoxKeys(self._box_private, self._leaf, roster.digest)
        count, threshold = len(roster.neighbours), roster.threshold
        self_shares, key_shares = (
            split(seed, count, threshold, self._random_bytes) for seed in (self._self_seed, self._mask_seed)
        )
        boxes = [
            self._boxes.seal(self_share + key_share, one.keys.box_key, one.leaf)
            for one, self_share, key_share in zip(roster.neighbours.values(), self_shares, key_shares, strict=True)
        ]
        self._roster = roster
        return packed("shares", [b"".join(boxes)])

    def _read_roster(self, hashes: bytes, advertised: list[Any]) -> _Roster:
        if len(hashes) % LEAF_BYTES or len(hashes) > LEAF_BYTES * MOST_CLIENTS:
            raise MessageError(
                "roster", f"{len(hashes)} bytes of hashes; each has {LEAF_BYTES}, at most {MOST_CLIENTS}"
            )
        leaves = [hashes[start : start + LEAF_BYTES] for start in range(0, len(hashes), LEAF_BYTES)]
        if any(first >= second for first, second in itertools.pairwise(leaves)):
            raise MessageError("roster", "its hashes are not in ascending order, each once")
        if self._leaf not in leaves:
            raise MessageError("roster", "this client's keys are not in it")
        if len(leaves) < self.plan.minimum:
            raise RoundAbortedError("roster", f"{len(leaves)} clients; the minimum is {self.plan.minimum}")
        chosen = self.plan.degree(len(leaves))
        digest = roster_digest(self.plan.digest, leaves)
        ring, own = ring_order(digest, leaves), leaves.index(self._leaf)
        indices = neighbours_on(ring, ring.index(own), chosen.neighbours)
        if len(advertised) != len(indices):
            raise MessageError("roster", f"keys of {len(advertised)} neighbours; the graph gives {len(indices)}")
        neighbours = {
            index: self._neighbour(data, leaves[index]) for index, data in zip(indices, advertised, strict=True)
        }
        identities = {self._keys.identity, *(one.keys.identity for one in neighbours.values())}
        if len(identities) <= len(neighbours):
            raise MessageError("roster", "one device is in it twice")
        return _Roster(digest, len(leaves), own, chosen.threshold, neighbours)

    def _neighbour(self, data: Any, expected: bytes) -> _Neighbour:
        if not isinstance(data, bytes) or leaf(data) != expected:
            raise MessageError("roster", "keys that are not those of the client at this place of the ring")
        return _Neighbour(AdvertisedKeys.verified(data, self.plan.digest, self._admits), expected)

    def _mask(self, message: bytes, vector: Any) -> bytes:
        roster = self._known_roster("boxes")
        bits, boxes = unpacked(
            "boxes", message, (bytes, bytes), HEADER_BYTES + (BOX_BYTES + 1) * len(roster.neighbours)
        )
        places = bitmap_members("boxes", "senders", bits, len(roster.neighbours))
        require_size("boxes", "boxes", boxes, BOX_BYTES * len(places))
        if len(places) < roster.threshold:
            reason = f"{len(places)} of {len(roster.neighbours)} neighbours shared their seeds; {roster.threshold} must"
            raise RoundAbortedError("boxes", reason)
        indices = list(roster.neighbours)
        senders = [indices[place] for place in sorted(places)]
        total = np.array(vector)
        add_mask(total, self_mask_key(self._self_seed, roster.digest))
        for at, index in enumerate(senders):
            one = roster.neighbours[index]
            box = boxes[BOX_BYTES * at : BOX_BYTES * (at + 1)]
            if (opened := self._boxes.open(box, one.keys.box_key, one.leaf)) is not None:
                one.self_mask_share, one.mask_key_share = opened[:SHARE_BYTES], opened[SHARE_BYTES:]
            key = pair_mask_key(self._mask_private, one.keys.mask_key, roster.digest)
            (add_mask if self._leaf < one.leaf else subtract_mask)(total, key)
        roster.senders = set(senders)
        return packed("masked", [total.tobytes(), self_mask_commitment(self._self_seed, roster.digest)])

    def _unmask(self, message: bytes) -> bytes:
        roster = self._known_roster("request")
        if "boxes" not in self._answers:
            raise MessageError("request", "it came before this client delivered its vector")
        delivered_bits, lost_bits = unpacked("request", message, (bytes, bytes), HEADER_BYTES + roster.clients)
        delivered = bitmap_members("request", "delivered", delivered_bits, roster.clients)
        lost = bitmap_members("request", "lost", lost_bits, roster.clients)
        if delivered & lost:
            raise MessageError("request", f"it asks for both seeds of {len(delivered & lost)} clients, never answered")
        if roster.index not in delivered:
            raise MessageError("request", "it does not count this client's vector")
        near = roster.neighbours.keys()
        if near & (delivered | lost) != roster.senders:
            raise MessageError("request", "its clients are not those that shared their seeds with this one")
        if len(delivered) < self.plan.minimum:
            raise RoundAbortedError("request", f"{len(delivered)} clients delivered; minimum {self.plan.minimum}")
        if len(near & delivered) < roster.threshold:
            reason = f"{len(near & delivered)} of {len(near)} neighbours delivered; {roster.threshold} must"
            raise RoundAbortedError("request", reason)
        held, shares = set(), []
        for place, (index, one) in enumerate(roster.neighbours.items()):
            given = one.self_mask_share if index in delivered else one.mask_key_share
            if index in roster.senders and given is not None:
                held.add(place)
                shares.append(given)
        return packed("answer", [bitmap(held, len(near)), b"".join(shares)])

    def _known_roster(self, step: str) -> _Roster:
        if self._roster is None:
            raise MessageError(step, "it came before the roster")
        return self._roster
