"""Server of secure aggregation: forwards what clients seal for each other, adds masked vectors, removes the masks.

Memory: one vector for the sum, and for each client its keys and boxes, whose size does not depend on the model.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from walle import np
from walle.federated.privacy.keystream import add_mask, subtract_mask
from walle.federated.privacy.secagg.agreement import (
    BOX_BYTES,
    mask_private_key,
    pair_mask_key,
    require_usable,
    self_mask_commitment,
    self_mask_key,
)
from walle.federated.privacy.secagg.graph import MOST_CLIENTS, Degree, neighbours_on, ring_order, roster_digest
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
from walle.federated.privacy.secagg.shares import SHARE_BYTES, combine

_COMMITMENT_BYTES = 32


class Stage(enum.Enum):
    """Messages that the server accepts at the moment, in order."""

    KEYS = "keys"
    SHARES = "shares"
    VECTORS = "masked"
    ANSWERS = "answer"
    DONE = "done"
    ABORTED = "aborted"


@dataclass
class _Client:
    device: str
    index: int
    keys: AdvertisedKeys
    neighbours: list[int]  # indices in the roster, ascending
    boxes: dict[int, bytes] = field(default_factory=dict)  # by recipient; present if it shared its seeds
    commitment: bytes | None = None  # present if its vector is in the sum
    points: list[tuple[int, bytes]] = field(default_factory=list)  # shares of one of its seeds, and where they are


@dataclass(frozen=True)
class SecureSum:
    """Sum of the vectors of the clients that delivered."""

    total: Any  # flat uint32 array, modulo 2**32
    delivered: tuple[str, ...]  # devices whose vectors are in it
    lost: tuple[str, ...]  # devices that advertised keys and whose vectors are not


class SecAggServer:
    """One round: add the clients' messages of a stage, close it, send each client its message, and so on.

    Each `add` returns whether the message is new. The same bytes again change nothing; other ones are refused. `device`
    is the name that the transport authenticated.

    A server whose process dies continues from its `checkpoint`. Store one after each `close` and before anything is
    sent: a client answers one request for shares, and no second one that names other devices.

    Args:
        plan: parameters of the round.
        admits: says which keys are devices of the fleet.
    """

    def __init__(self, plan: SecAggPlan, admits: Admits) -> None:
        self.plan = plan
        self.stage = Stage.KEYS
        self._admits = admits
        self._advertised: dict[str, tuple[bytes, AdvertisedKeys]] = {}
        self._identities: set[bytes] = set()
        self._clients: dict[str, _Client] = {}  # by device
        self._by_index: list[_Client] = []
        self._degree = Degree(0, 0)
        self._digest = b""
        self._total: Any = np.zeros((plan.values,), "uint32")
        self._seen: dict[tuple[Stage, str], bytes] = {}  # digests of the messages

    def add_keys(self, device: str, message: bytes) -> bool:
        """Add a device to the round by its advertised keys.

        Raises:
            MessageError: it is malformed, not signed by a device of the fleet, of another device, or too late.
        """
        return self._add(Stage.KEYS, device, message, self._take_keys)

    def _take_keys(self, device: str, message: bytes) -> None:
        if len(self._advertised) >= MOST_CLIENTS:
            raise MessageError("keys", f"the round has {MOST_CLIENTS} clients", device)
        keys = AdvertisedKeys.verified(message, self.plan.digest, self._admits)
        if keys.device != device:
            raise MessageError("keys", f"they are those of device {keys.device!r}", device)
        if keys.identity in self._identities:
            raise MessageError("keys", "another device of the round has the same identity", device)
        require_usable(keys.box_key)
        require_usable(keys.mask_key)
        self._advertised[device] = message, keys
        self._identities.add(keys.identity)

    def close_keys(self) -> dict[str, bytes]:
        """Draw the graph and return each device's roster: it answers with its shares.

        Raises:
            RoundAbortedError: fewer devices than the minimum are in the round.
        """
        self._close(Stage.KEYS, Stage.SHARES, len(self._advertised), "devices")
        ordered = sorted((leaf(message), message, keys) for message, keys in self._advertised.values())
        leaves = [one[0] for one in ordered]
        self._degree = self.plan.degree(len(leaves))
        self._digest = roster_digest(self.plan.digest, leaves)
        ring = ring_order(self._digest, leaves)
        for position, index in enumerate(ring):
            keys = ordered[index][2]
            near = neighbours_on(ring, position, self._degree.neighbours)
            self._clients[keys.device] = _Client(keys.device, index, keys, near)
        self._by_index = sorted(self._clients.values(), key=lambda one: one.index)
        return self.outgoing()

    def add_shares(self, device: str, message: bytes) -> bool:
        """Add the boxes of shares that a device sealed to its neighbours.

        Raises:
            MessageError: it is malformed, of a device outside the round, or not of this stage.
        """
        return self._add(Stage.SHARES, device, message, self._take_shares)

    def _take_shares(self, device: str, message: bytes) -> None:
        client = self._client("shares", device)
        (boxes,) = unpacked("shares", message, (bytes,), self._most_bytes(client, BOX_BYTES), device)
        require_size("shares", "boxes", boxes, BOX_BYTES * len(client.neighbours), device)
        client.boxes = {
            index: boxes[BOX_BYTES * at : BOX_BYTES * (at + 1)] for at, index in enumerate(client.neighbours)
        }

    def close_shares(self) -> dict[str, bytes]:
        """Return the neighbours' boxes for each device that shared its seeds: it answers with its masked vector.

        Raises:
            RoundAbortedError: fewer devices than the minimum shared their seeds.
        """
        self._close(Stage.SHARES, Stage.VECTORS, len(self._sharing()), "devices that shared their seeds")
        return self.outgoing()

    def outgoing(self) -> dict[str, bytes]:
        """Return what each device is to get at this stage, the same whenever it is asked; for some stages nothing."""
        match self.stage:
            case Stage.SHARES:
                hashes = b"".join(leaf(self._advertised[one.device][0]) for one in self._by_index)
                return {one.device: self._roster_for(one, hashes) for one in self._by_index}
            case Stage.VECTORS:
                return {one.device: self._boxes_for(one) for one in self._sharing()}
            case Stage.ANSWERS:
                size, delivered = len(self._by_index), self._delivered()
                lost = {one.index for one in self._sharing()} - delivered
                request = packed("request", [bitmap(delivered, size), bitmap(lost, size)])
                return {self._by_index[index].device: request for index in sorted(delivered)}
            case _:
                return {}

    def _roster_for(self, client: _Client, hashes: bytes) -> bytes:
        near = [self._advertised[self._by_index[index].device][0] for index in client.neighbours]
        return packed("roster", [hashes, near])

    def _boxes_for(self, client: _Client) -> bytes:
        senders = {at for at, index in enumerate(client.neighbours) if self._by_index[index].boxes}
        boxes = [self._by_index[client.neighbours[at]].boxes[client.index] for at in sorted(senders)]
        return packed("boxes", [bitmap(senders, len(client.neighbours)), b"".join(boxes)])

    def add_masked(self, device: str, message: bytes) -> bool:
        """Add a device's masked vector to the sum.

        Raises:
            MessageError: it is malformed, of a device that did not share its seeds, or not of this stage.
        """
        return self._add(Stage.VECTORS, device, message, self._take_masked)

    def _take_masked(self, device: str, message: bytes) -> None:
        client = self._client("masked", device)
        if not client.boxes:
            raise MessageError("masked", "it did not share its seeds, so that its mask could not be removed", device)
        vector, commitment = unpacked("masked", message, (bytes, bytes), HEADER_BYTES + 4 * self.plan.values, device)
        require_size("masked", "vector", vector, 4 * self.plan.values, device)
        require_size("masked", "commitment", commitment, _COMMITMENT_BYTES, device)
        self._total += np.frombuffer(vector, "uint32")
        client.commitment = commitment

    def close_masked(self) -> dict[str, bytes]:
        """Return the request for shares to each device that delivered: it answers with one share a neighbour.

        Raises:
            RoundAbortedError: fewer devices than the minimum delivered, or so few neighbours of one that its seed
                could not be opened.
        """
        delivered = self._delivered()
        self._close(Stage.VECTORS, Stage.ANSWERS, len(delivered), "devices that delivered")
        for one in self._sharing():
            near = len(delivered.intersection(one.neighbours))
            if near < self._degree.threshold:
                raise self._aborted(
                    f"{near} neighbours of device {one.device!r} delivered; {self._degree.threshold} must"
                )
        return self.outgoing()

    def add_answer(self, device: str, message: bytes) -> bool:
        """Add a device's shares of its neighbours' seeds.

        Raises:
            MessageError: it is malformed, of a device that did not deliver, or not of this stage.
        """
        return self._add(Stage.ANSWERS, device, message, self._take_answer)

    def _take_answer(self, device: str, message: bytes) -> None:
        client = self._client("answer", device)
        if client.commitment is None:
            raise MessageError("answer", "it did not deliver, and was not asked", device)
        bits, shares = unpacked("answer", message, (bytes, bytes), self._most_bytes(client, SHARE_BYTES + 1), device)
        held = sorted(bitmap_members("answer", "held", bits, len(client.neighbours), device))
        require_size("answer", "shares", shares, SHARE_BYTES * len(held), device)
        for at, place in enumerate(held):
            owner = self._by_index[client.neighbours[place]]
            if owner.boxes:
                point = owner.neighbours.index(client.index) + 1
                owner.points.append((point, shares[SHARE_BYTES * at : SHARE_BYTES * (at + 1)]))

    @property
    def is_ready(self) -> bool:
        """Return whether `finish` has enough shares of every seed."""
        enough = all(len(one.points) >= self._degree.threshold for one in self._sharing())
        return self.stage is Stage.ANSWERS and enough

    def finish(self) -> SecureSum:
        """Return the sum without masks.

        Raises:
            RoundAbortedError: too few shares of a seed came, or they do not fit what its owner published.
        """
        self._require(Stage.ANSWERS, "finish")
        delivered = self._delivered()
        for one in self._sharing():
            if len(one.points) < self._degree.threshold:
                reason = (
                    f"{len(one.points)} shares of a seed of device {one.device!r}; {self._degree.threshold} open it"
                )
                raise self._aborted(reason)
        for one in self._sharing():
            if one.index in delivered:
                self._remove_self_mask(one)
            else:
                self._remove_pair_masks(one, delivered)
        self.stage = Stage.DONE
        names = tuple(one.device for one in self._by_index if one.index in delivered)
        lost = tuple(one.device for one in self._by_index if one.index not in delivered)
        return SecureSum(self._total, names, lost)

    def _remove_self_mask(self, client: _Client) -> None:
        seed = self._opened(client, lambda seed: self_mask_commitment(seed, self._digest) == client.commitment)
        subtract_mask(self._total, self_mask_key(seed, self._digest))

    def _remove_pair_masks(self, client: _Client, delivered: set[int]) -> None:
        """Remove from the sum the masks that the neighbours of a lost client have in common with it."""

        def fits(seed: bytes) -> bool:
            private = mask_private_key(seed, self.plan.digest)
            return private.public_key().public_bytes_raw() == client.keys.mask_key

        private = mask_private_key(self._opened(client, fits), self.plan.digest)
        for index in delivered.intersection(client.neighbours):
            key = pair_mask_key(private, self._by_index[index].keys.mask_key, self._digest)
            # The roster is in the order of the leaves, by which clients choose who adds the mask.
            (subtract_mask if index < client.index else add_mask)(self._total, key)

    def _opened(self, client: _Client, fits: Callable[[bytes], bool]) -> bytes:
        """Return the seed that the shares give; a few wrong shares among more than the threshold are left out."""
        for points in _windows(client.points, self._degree.threshold):
            seed = combine([at for at, _ in points], [share for _, share in points])
            if seed is not None and fits(seed):
                return seed
        raise self._aborted(f"shares of a seed of device {client.device!r} do not fit what it published")

    @staticmethod
    def _most_bytes(client: _Client, each: int) -> int:
        return HEADER_BYTES + each * len(client.neighbours)

    def checkpoint(self) -> bytes:
        """Return the state of the round, from which `restored` continues it in another process."""
        boxes = {one.device: b"".join(one.boxes.values()) for one in self._sharing()}
        commitments = {one.device: one.commitment for one in self._by_index if one.commitment is not None}
        points = {one.device: [list(point) for point in one.points] for one in self._by_index if one.points}
        seen = [[stage.value, device, digest] for (stage, device), digest in self._seen.items()]
        advertised = {device: message for device, (message, _) in self._advertised.items()}
        total = b"" if self._total is None else self._total.tobytes()
        fields = [self.plan.digest, self.stage.value, advertised, boxes, commitments, points, seen, total]
        return packed("checkpoint", fields)

    @classmethod
    def restored(cls, plan: SecAggPlan, admits: Admits, checkpoint: bytes) -> Self:
        """Return a server in the state of a checkpoint that a server with the same plan made.

        Raises:
            MessageError: it is damaged, or another plan's.
        """
        types = (bytes, str, dict, dict, dict, dict, list, bytes)
        fields = unpacked("checkpoint", checkpoint, types, len(checkpoint))
        digest, stage, advertised, boxes, commitments, points, seen, total = fields
        if digest != plan.digest:
            raise MessageError("checkpoint", "it is that of another plan")
        made = cls(plan, admits)
        for device, message in advertised.items():
            made.add_keys(device, message)
        if stage != Stage.KEYS.value and len(advertised) >= plan.minimum:
            made.close_keys()
        for device, joined in boxes.items():
            made.add_shares(device, packed("shares", [joined]))
        for device, commitment in commitments.items():
            made._clients[device].commitment = commitment
        for device, pairs in points.items():
            made._clients[device].points = [(at, share) for at, share in pairs]
        made.stage = Stage(stage)
        made._seen = {(Stage(at), device): digest for at, device, digest in seen}
        made._total = np.array(np.frombuffer(total, "uint32")) if total else None
        return made

    def _delivered(self) -> set[int]:
        return {one.index for one in self._by_index if one.commitment is not None}

    def _sharing(self) -> list[_Client]:
        return [one for one in self._by_index if one.boxes]

    def _client(self, kind: str, device: str) -> _Client:
        if device not in self._clients:
            raise MessageError(kind, "the device is not in the round", device)
        return self._clients[device]

    def _add(self, stage: Stage, device: str, message: bytes, take: Callable[[str, bytes], None]) -> bool:
        digest = hashlib.sha256(message).digest()
        known = self._seen.get((stage, device))
        if known == digest:
            return False
        if known is not None:
            raise MessageError(stage.value, "it differs from the device's first message, which counts", device)
        self._require(stage, stage.value, device)
        take(device, message)
        self._seen[stage, device] = digest
        return True

    def _require(self, stage: Stage, kind: str, device: str = "") -> None:
        if self.stage is not stage:
            raise MessageError(kind, f"the round is at {self.stage.value!r}, not at {stage.value!r}", device)

    def _close(self, stage: Stage, following: Stage, count: int, what: str) -> None:
        self._require(stage, f"close {stage.value}")
        if count < self.plan.minimum:
            raise self._aborted(f"{count} {what}; the minimum is {self.plan.minimum}")
        self.stage = following

    def _aborted(self, reason: str) -> RoundAbortedError:
        stage, self.stage = self.stage, Stage.ABORTED
        self._total = None  # removed, so that no part of it can be used
        return RoundAbortedError(stage.value, reason)


def _windows(points: Sequence[tuple[int, bytes]], size: int) -> list[list[tuple[int, bytes]]]:
    """Return the runs of `size` points, around the end too: one of them leaves out any single point."""
    extra = len(points) > size
    doubled = [*points, *points]
    return [doubled[start : start + size] for start in range(len(points) if extra else 1)]
