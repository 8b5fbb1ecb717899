"""Root and scenarios metadata against python-tuf, the reference implementation of The Update Framework.

Each case is a chain of metadata files. python-tuf's own client rules (`TrustedMetadataSet`) and those of a device must
agree on which are accepted; where a device is stricter on purpose, the case says so.
"""

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer._crypto_signer import CryptoSigner
from tuf.api._payload import DelegatedRole, Delegations, MetaFile, Root, Snapshot, Targets, Timestamp
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

from walle.base.clock import ManualClock
from walle.trust import metadata as trust
from walle.trust.folder import root_body, scenarios_body, sign_metadata
from walle.trust.metadata import RoleKeys, canonical_metadata
from walle.trust.signing import SignatureError, Signer

NOW_S = dt.datetime.now(dt.UTC).timestamp()
CLOCK = ManualClock(NOW_S)
KEYS = [Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(1, 8)]
TUF_KEYS = [
    CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(1, 8)
]  # the same keys; their ids are python-tuf's


def root(
    version: int, by: list[int], *, root_keys: tuple[int, ...] = (0,), threshold: int = 1, **changes: Any
) -> bytes:
    roles = {
        "root": RoleKeys.of([KEYS[number].public_key for number in root_keys], threshold),
        "targets": RoleKeys.of([KEYS[changes.pop("targets", 1)].public_key]),
        "snapshot": RoleKeys.of([KEYS[2].public_key]),
        "timestamp": RoleKeys.of([KEYS[3].public_key]),
    }
    body = {**root_body(version, "fleet", roles, CLOCK), **changes}
    return sign_metadata(body, [KEYS[number] for number in by])


def _edited(data: bytes, edit: Callable[[dict[str, Any]], None], by: list[int]) -> bytes:
    body = json.loads(data)["signed"]
    edit(body)
    return sign_metadata(body, [KEYS[number] for number in by])


def _broken_signature(data: bytes) -> bytes:
    value = json.loads(data)
    value["signatures"][0]["sig"] = "00" * 64
    return json.dumps(value).encode()


def _twice(data: bytes) -> bytes:
    value = json.loads(data)
    value["signatures"] *= 2
    return json.dumps(value).encode()


def _two_labels(body: dict[str, Any]) -> None:
    """List one key under two ids, with a threshold of 2."""
    (name,) = body["roles"]["root"]["keyids"]
    body["keys"]["again"] = body["keys"][name]
    body["roles"]["root"] = {"keyids": [name, "again"], "threshold": 2}


FIRST = root(1, [0])
CHAINS: dict[str, tuple[list[bytes], bool]] = {
    "one": ([FIRST], True),
    "next by the same key": ([FIRST, root(2, [0])], True),
    "new root key, both sign": ([FIRST, root(2, [0, 4], root_keys=(4,)), root(3, [4], root_keys=(4,))], True),
    "new root key, old alone signs": ([FIRST, root(2, [0], root_keys=(4,))], False),
    "new root key, new alone signs": ([FIRST, root(2, [4], root_keys=(4,))], False),
    "old key after its removal": ([FIRST, root(2, [0, 4], root_keys=(4,)), root(3, [0], root_keys=(4,))], False),
    "the same version again": ([FIRST, FIRST], False),
    "a version left out": ([FIRST, root(3, [0])], False),
    "unsigned": ([FIRST, root(2, [])], False),
    "signed by another role": ([FIRST, root(2, [1])], False),
    "broken signature": ([FIRST, _broken_signature(root(2, [0]))], False),
    "a signature twice": ([FIRST, _twice(root(2, [0]))], False),
    "threshold 2, two sign": (
        [root(1, [0, 4], root_keys=(0, 4), threshold=2), root(2, [0, 4], root_keys=(0, 4), threshold=2)],
        True,
    ),
    "threshold 2, one signs": (
        [root(1, [0, 4], root_keys=(0, 4), threshold=2), root(2, [0], root_keys=(0, 4), threshold=2)],
        False,
    ),
    "threshold raised, too few new": ([FIRST, root(2, [0], root_keys=(0, 4), threshold=2)], False),
    "threshold raised, enough": ([FIRST, root(2, [0, 4], root_keys=(0, 4), threshold=2)], True),
    "version 0": ([root(0, [0])], False),
    "no threshold": ([_edited(FIRST, lambda body: body["roles"]["root"].update(threshold=0), [0])], False),
    "a role is missing": ([_edited(FIRST, lambda body: body["roles"].pop("snapshot"), [0])], False),
    "a role too many": (
        [_edited(FIRST, lambda body: body["roles"].update(more=body["roles"]["root"]), [0])],
        False,
    ),
    "a key id twice": (
        [_edited(FIRST, lambda body: body["roles"]["root"].update(keyids=body["roles"]["root"]["keyids"] * 2), [0])],
        False,
    ),
    "targets in place of root": ([_edited(FIRST, lambda body: body.update(_type="targets"), [0])], False),
    "specification 2": ([_edited(FIRST, lambda body: body.update(spec_version="2.0.0"), [0])], False),
    "a later 1.x specification": ([_edited(FIRST, lambda body: body.update(spec_version="1.99.0"), [0])], True),
    "an expiry that is not a date": ([_edited(FIRST, lambda body: body.update(expires="soon"), [0])], False),
    "an unknown field": ([_edited(FIRST, lambda body: body.update(note="kept"), [0])], True),
    "not JSON": ([b"{"], False),
    "no object": ([b"[]"], False),
}


def tuf_accepts(chain: list[bytes]) -> bool:
    try:
        known = TrustedMetadataSet(chain[0], EnvelopeType.METADATA)
        for data in chain[1:]:
            known.update_root(data)
    except (RepositoryError, ValueError):
        return False
    return True


def device_accepts(chain: list[bytes]) -> bool:
    try:
        root = trust.Root.trusted(chain[0])
        for data in chain[1:]:
            root = root.next(data)
    except SignatureError:
        return False
    return True


@pytest.mark.parametrize("name", CHAINS)
def test_a_device_and_python_tuf_agree_on_chains_of_roots(name: str) -> None:
    chain, accepted = CHAINS[name]
    assert (device_accepts(chain), tuf_accepts(chain)) == (accepted, accepted)


def test_a_key_under_two_ids_counts_once() -> None:
    """Stricter than python-tuf, as the specification asks in 4.3: a threshold counts keys."""
    data = _edited(FIRST, _two_labels, [0])
    value = json.loads(data)
    value["signatures"].append({"keyid": "again", "sig": value["signatures"][0]["sig"]})
    assert not device_accepts([json.dumps(value).encode()])


def test_a_device_follows_metadata_that_python_tuf_made_and_signed() -> None:
    root = Root(version=1, consistent_snapshot=True, unrecognized_fields={trust.FLEET_FIELD: "fleet"})
    root.expires = dt.datetime.fromtimestamp(NOW_S + 1000, dt.UTC).replace(microsecond=0)
    for role, number in (("root", 0), ("root", 4), ("targets", 1), ("snapshot", 2), ("timestamp", 3)):
        root.add_key(TUF_KEYS[number].public_key, role)
    root.roles["root"].threshold = 2
    signed = Metadata(root)
    signed.sign(TUF_KEYS[0])
    with pytest.raises(SignatureError, match="1 valid signatures of the 2"):
        trust.Root.trusted(signed.to_bytes())
    signed.sign(TUF_KEYS[4], append=True)
    mine = trust.Root.trusted(signed.to_bytes())
    assert (mine.fleet, mine.version, mine.expires_s) == ("fleet", 1, int(NOW_S + 1000))
    author = TUF_KEYS[5].public_key
    delegated = DelegatedRole("shop", [author.keyid], 1, terminating=True, paths=["shop/*"])
    targets = Targets(version=3, delegations=Delegations({author.keyid: author}, {"shop": delegated}))
    theirs = Metadata(targets)
    theirs.sign(TUF_KEYS[1])
    scenarios = trust.Scenarios.verified(theirs.to_bytes(), mine)
    assert scenarios.version == 3
    assert list(scenarios.delegations["shop"].keys.values()) == [KEYS[5].public_key]
    theirs.sign(TUF_KEYS[2])
    with pytest.raises(SignatureError, match="scenarios metadata: 0 valid signatures"):
        trust.Scenarios.verified(theirs.to_bytes(), mine)


@pytest.mark.parametrize("by", [1, 2, 0])
def test_python_tuf_and_a_device_agree_on_scenarios_metadata(by: int) -> None:
    body = scenarios_body(
        4, {"shop": RoleKeys.of([KEYS[5].public_key]), "toys": RoleKeys.of([KEYS[6].public_key])}, CLOCK
    )
    data = sign_metadata(body, [KEYS[by]])
    known = TrustedMetadataSet(FIRST, EnvelopeType.METADATA)
    later = dt.datetime.fromtimestamp(NOW_S + 1000, dt.UTC).replace(microsecond=0)
    stamp = Metadata(Timestamp(snapshot_meta=MetaFile(1), expires=later))
    stamp.sign(_with_id(3))
    known.update_timestamp(stamp.to_bytes())
    snapshot = Metadata(Snapshot(meta={"targets.json": MetaFile(4)}, expires=later))
    snapshot.sign(_with_id(2))
    known.update_snapshot(snapshot.to_bytes())
    try:
        theirs = known.update_targets(data)
        assert theirs.delegations is not None
        accepted = sorted(theirs.delegations.roles or ())
    except RepositoryError:
        accepted = []
    try:
        mine = sorted(trust.Scenarios.verified(data, trust.Root.trusted(FIRST)).delegations)
    except SignatureError:
        mine = []
    assert mine == accepted == (["shop", "toys"] if by == 1 else [])


def _with_id(number: int) -> CryptoSigner:
    """Return python-tuf's signer of a key under the id that root metadata of walle give it."""
    signer = TUF_KEYS[number]
    public = signer.public_key
    named = type(public)(KEYS[number].key_id, public.keytype, public.scheme, public.keyval)
    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32), named)


def test_canonical_form_is_that_of_python_tuf() -> None:
    from securesystemslib.formats import encode_canonical

    for value in ({"b": [1, 0, -5, True, None], "a": 'quote " and \\ slash', "A": {}}, json.loads(FIRST)["signed"]):
        assert canonical_metadata(value) == encode_canonical(value).encode()  # type: ignore[union-attr]
    for value in ({"a": "line\nbreak"}, {"a": "ü"}, {"a": 1.5}):
        with pytest.raises(ValueError, match="metadata"):
            canonical_metadata(value)
