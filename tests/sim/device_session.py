"""Session headers and TLS contexts of devices of a cloud in this process, as its identity node makes them."""

import time

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from walle.access.identity.device_authority import DeviceAuthority
from walle.access.identity.sessions import SessionSigner
from walle.base.device_identity import DeviceIdentity
from walle.cloud import CloudHome
from walle.pipeline.tunnel.client.client import client_context
from walle.pipeline.tunnel.client.sessions import ResumingContext
from walle.protocol import DEVICE_HEADER


def session_headers(home: CloudHome, device_id: str, generation: int = 1, *, life_s: float = 3600.0) -> dict[str, str]:
    """Return the header with a session of a device, which need not be enrolled."""
    signer = SessionSigner(home.identity_folder)
    return {DEVICE_HEADER: signer.sign(DeviceIdentity(device_id, generation), time.time() + life_s)}


def enrol(home: CloudHome, device_id: str) -> None:
    """Bind a new key to a device, which has none of it: for tests of what is sealed to devices that do not run."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    identities = home.identities()
    token = identities.make_token(device_id, life_s=60.0)
    identities.certify(device_id, der, token, expires_s=time.time() + 86_400.0)


def device_context(home: CloudHome, device_id: str, generation: int = 1) -> ResumingContext:
    """Return the TLS context of a device for the tunnel, which need not be enrolled."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = [home.folder / f"{device_id}.{kind}" for kind in ("crt", "key")]
    files[0].write_text(
        DeviceAuthority(home.identity_folder).issue(DeviceIdentity(device_id, generation), key.public_key())
    )
    files[1].write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    context = client_context(home.authority().ca_path)
    context.show(files[0], files[1])
    return context
