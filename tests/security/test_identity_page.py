"""docs/identity.md: its bytes, names and numbers are those of the code."""

import base64
import json
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from walle.access.identity.device_authority import CERTIFICATE_LIFE_S
from walle.access.identity.refusals import RENEWAL_GRACE_S
from walle.access.identity.sessions import SessionSigner
from walle.base.device_identity import DeviceIdentity
from walle.protocol import session_proof

PAGE = (Path(__file__).parents[2] / "docs" / "identity.md").read_text()


def test_the_bytes_of_a_proof_are_those_of_the_page() -> None:
    (written,) = re.findall(r"```text\n([0-9a-f]+)\n```", PAGE)
    assert session_proof("phone 1", "1700000060.00.ab").hex() == written


def test_a_name_is_percent_encoded_as_the_page_says() -> None:
    assert DeviceIdentity("a_.-~/ü", 3).to_uri() == "urn:walle:device:3:a_.-~%2F%C3%BC"


def test_a_session_is_signed_as_the_page_says(tmp_path: Path) -> None:
    signer = SessionSigner(tmp_path)
    claim, signature = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        for part in signer.sign(DeviceIdentity("phone 1", 2), 1_700_000_000.5).split(".")
    )
    assert claim == b'["phone 1",2,1700000000]'
    assert json.loads(claim) == ["phone 1", 2, 1_700_000_000]
    Ed25519PublicKey.from_public_bytes(signer.public_key).verify(signature, b"walle device session 1\0" + claim)


def test_the_times_are_those_of_the_page() -> None:
    assert f"for {CERTIFICATE_LIFE_S / 86_400:.0f} days" in PAGE
    assert f"until {RENEWAL_GRACE_S / 86_400:.0f} days after" in PAGE
