"""Ed25519 public keys that no role takes: points of small and mixed order, and encodings that are not canonical.

The arithmetic of the curve here is that of RFC 8032, section 5.1, written for this test alone.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from walle.access.audit import AuditHead
from walle.access.identity.sessions import SessionVerifier
from walle.base.clock import ManualClock
from walle.base.device_identity import Revocations
from walle.cli import app
from walle.cli.access.signer import public_key as read_public_key
from walle.trust.ed25519_keys import KeyRefusedError, checked_key
from walle.trust.folder import TrustFolder, root_body, scenarios_body
from walle.trust.metadata import ROLES, ROOT, SCENARIOS, RoleKeys, Root, Scenarios, canonical_metadata
from walle.trust.sealing import seal
from walle.trust.signing import MANIFEST_DOMAIN, SignatureError, Signer

CASE = Path(__file__).parents[3] / "shared" / "cases" / "security" / "small_order_key.json"
# As the case says: with A and R the identity and S zero, S B = R + k A holds for every k, so for every message.
IDENTITY = bytes.fromhex("01" + "00" * 31)
FORGED = IDENTITY + bytes(32)
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
ORDER = 2**252 + 27742317777372353535851937790883648493
CLOCK = ManualClock(1_000_000.0)
OWNER = Signer.generate()

type Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    product = D * one[0] * other[0] * one[1] * other[1]
    x = (one[0] * other[1] + other[0] * one[1]) * pow(1 + product, -1, P) % P
    y = (one[1] * other[1] + one[0] * other[0]) * pow(1 - product, -1, P) % P
    return x, y


def times(factor: int, point: Point) -> Point:
    result = (0, 1)
    while factor:
        if factor & 1:
            result = add(result, point)
        point, factor = add(point, point), factor >> 1
    return result


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decoded(key: bytes) -> Point | None:
    number = int.from_bytes(key, "little")
    y = number & (2**255 - 1)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    return (x if x & 1 == number >> 255 else -x % P), y


def _of_order_8() -> Point:
    for y in range(2, 100):
        point = decoded(y.to_bytes(32, "little"))
        if point is not None and times(4, small := times(ORDER, point)) != (0, 1):
            return small
    raise AssertionError("a point of order 8 is among any few")


SMALL = [times(factor, _of_order_8()) for factor in range(8)]
SMALL_KEYS = {f"order 8 times {factor}": encoded(point) for factor, point in enumerate(SMALL)}
OTHER_FORMS = {
    "identity, y + p": (1 + P).to_bytes(32, "little"),
    "identity, sign of zero": (1 | 1 << 255).to_bytes(32, "little"),
    "order 4, y + p": P.to_bytes(32, "little"),
    "order 2, sign of zero": (P - 1 | 1 << 255).to_bytes(32, "little"),
    "y + p of a point": (3 + P).to_bytes(32, "little"),
    "not of the curve": next(key for y in range(2, 50) if decoded(key := y.to_bytes(32, "little")) is None),
    "31 bytes": bytes(31),
}
own_point = decoded(OWNER.public_key)
assert own_point is not None
MIXED = {f"mixed {factor}": encoded(add(own_point, SMALL[factor])) for factor in range(1, 8)}
REFUSED: Mapping[str, bytes] = {**SMALL_KEYS, **OTHER_FORMS, **MIXED}


def test_the_case_is_a_key_with_a_signature_for_every_message() -> None:
    if not CASE.exists():
        pytest.skip(f"{CASE} is not here: the folder of cases is beside the checkout")
    case = json.loads(CASE.read_text())
    assert (bytes.fromhex(case["public"]), bytes.fromhex(case["sig"])[:64]) == (IDENTITY, FORGED)
    for message in (b"", b"any", MANIFEST_DOMAIN):
        Ed25519PublicKey.from_public_bytes(IDENTITY).verify(FORGED, message)  # OpenSSL takes it


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_that_proves_nothing_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(KeyRefusedError, match=r"order|canonical|not a point|31 bytes") as caught:
        checked_key(REFUSED[name])
    assert REFUSED[name].hex() in str(caught.value)


def test_keys_that_are_made_are_taken() -> None:
    for _ in range(50):
        signer = Signer.generate()
        checked_key(signer.public_key).verify(signer.sign(b"text"), b"text")


def test_the_check_is_that_of_the_order_of_the_point() -> None:
    """Each encoding of a point is accepted exactly where the order of the subgroup maps it to the identity."""
    found = {True: 0, False: 0}
    for y in range(2, 200):
        key = (y * y * 0x9E3779B97F4A7C15 + y).to_bytes(32, "little")
        point = decoded(key)
        expected = point is not None and times(ORDER, point) == (0, 1)
        try:
            checked_key(key)
            accepted = True
        except KeyRefusedError:
            accepted = False
        assert accepted == expected
        found[expected] += 1
    assert min(found.values()) > 5


def _root(role: str, key: bytes, threshold: int) -> bytes:
    """Return root metadata with `key` beside the owner's in one role, signed by the owner and, for the key, FORGED."""
    body = root_body(1, "fleet", {name: RoleKeys.of([OWNER.public_key]) for name in ROLES}, CLOCK)
    body["keys"]["more"] = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": key.hex()}}
    body["roles"][role] = {"keyids": [OWNER.key_id, "more"], "threshold": threshold}
    return _signed(body)


def _signed(body: dict[str, object]) -> bytes:
    own = OWNER.sign(canonical_metadata(body)).hex()
    signatures = [{"keyid": OWNER.key_id, "sig": own}, {"keyid": "more", "sig": FORGED.hex()}]
    return json.dumps({"signatures": signatures, "signed": body}).encode()


@pytest.mark.parametrize("key", REFUSED.values(), ids=REFUSED)
def test_root_metadata_of_threshold_2_need_two_true_signatures(key: bytes) -> None:
    with pytest.raises(SignatureError, match=r"signed\.keys\.more\.keyval\.public"):
        Root.trusted(_root(ROOT, key, 2))


@pytest.mark.parametrize("role", ROLES)
def test_no_role_of_root_metadata_takes_a_key_of_small_order(role: str) -> None:
    with pytest.raises(SignatureError, match="small order"):
        Root.trusted(_root(role, IDENTITY, 1))


def test_root_metadata_do_not_bring_a_key_of_small_order_to_a_device_that_has_some() -> None:
    first = Root.trusted(_root(ROOT, Signer.generate().public_key, 1))
    body = json.loads(_root(ROOT, IDENTITY, 2))["signed"]
    with pytest.raises(SignatureError, match="small order"):
        first.next(_signed({**body, "version": 2}))


@pytest.mark.parametrize("key", REFUSED.values(), ids=REFUSED)
def test_a_scenario_is_not_delegated_to_such_a_key(key: bytes) -> None:
    root = Root.trusted(_root(SCENARIOS, Signer.generate().public_key, 1))
    body = scenarios_body(1, {"shop": RoleKeys.of([OWNER.public_key])}, CLOCK)
    body["delegations"]["keys"]["more"] = {
        "keytype": "ed25519",
        "scheme": "ed25519",
        "keyval": {"public": key.hex()},
    }
    body["delegations"]["roles"][0].update(keyids=[OWNER.key_id, "more"], threshold=2)
    with pytest.raises(SignatureError, match=r"signed\.delegations\.keys\.more\.keyval\.public"):
        Scenarios.verified(_signed(body), root)


@pytest.mark.parametrize(
    "key", [IDENTITY, OTHER_FORMS["order 4, y + p"], MIXED["mixed 1"]], ids=["identity", "other form", "mixed"]
)
def test_no_command_takes_such_a_key(tmp_path: Path, key: bytes) -> None:
    TrustFolder(tmp_path).make("fleet", ["shop"], CLOCK)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command in (["delegate", str(tmp_path), "shop"], ["keys", "add", str(tmp_path)]):
        result = CliRunner().invoke(app, ["trust", *command, "--public-key", key.hex()])
        assert result.exit_code == 2, result.output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_pem_file_with_such_a_key_is_refused(tmp_path: Path) -> None:
    pem = Ed25519PublicKey.from_public_bytes(IDENTITY).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(pem)
    with pytest.raises(typer.BadParameter, match="small order"):
        read_public_key(str(tmp_path / "key.pem"))


@pytest.mark.parametrize("key", REFUSED.values(), ids=REFUSED)
def test_neither_sessions_nor_heads_are_verified_by_such_a_key(key: bytes) -> None:
    with pytest.raises(KeyRefusedError):
        SessionVerifier(key, Revocations())
    head = AuditHead(1, "0" * 64, 1.0, base64.b64encode(key).decode(), base64.b64encode(FORGED).decode())
    assert not head.is_signed_by(key)


def test_a_signature_has_one_form() -> None:
    """S + L is refused, so that nobody can make a second signature of the same bytes from one."""
    signature = OWNER.sign(b"text")
    s = int.from_bytes(signature[32:], "little")
    for other in (s + ORDER, s + (ORDER << 1)):
        with pytest.raises(InvalidSignature):
            checked_key(OWNER.public_key).verify(signature[:32] + other.to_bytes(32, "little"), b"text")


def test_a_key_of_a_device_is_a_point_of_its_curve() -> None:
    """P-256 has no points but those of prime order and the one at infinity; cryptography refuses all others."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    seal(b"data", der, b"info")
    for wrong in (der[:-1] + bytes([der[-1] ^ 1]), der[:-65] + b"\x04" + bytes(64)):
        with pytest.raises(ValueError, match=r"[Pp]oint|[Kk]ey|parse"):
            seal(b"data", wrong, b"info")
