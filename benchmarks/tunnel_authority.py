"""The authorities of a tunnel in one folder: the server's, whose contexts ask for devices' certificates, and theirs."""

import ssl
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from walle.access.identity.authority import Authority
from walle.access.identity.device_authority import CERTIFICATE_LIFE_S, DeviceAuthority
from walle.base.clock import Clock
from walle.base.device_identity import DeviceIdentity
from walle.pipeline.tunnel.client.client import client_context
from walle.pipeline.tunnel.client.sessions import ResumingContext


class TunnelAuthority(Authority):
    """An authority whose server knows devices, and which makes their keys and certificates: one for each id."""

    def __init__(self, folder: Path, *, hosts: Iterable[str] = (), clock: Clock | None = None) -> None:
        super().__init__(folder, hosts=hosts)
        self.devices = DeviceAuthority(folder / "devices", clock=clock)

    def server_context(self, *, client_ca_pem: str = "") -> ssl.SSLContext:
        return super().server_context(client_ca_pem=client_ca_pem or self.devices.ca_pem)

    def certificate(
        self, device_id: str, generation: int = 1, *, life_s: float = CERTIFICATE_LIFE_S
    ) -> tuple[Path, Path]:
        """Return the files with the certificate and the key of a device."""
        identity = DeviceIdentity(device_id, generation)
        name = identity.to_uri().replace("/", "_")
        certificate, key = (self.folder / "devices" / f"{name}-{life_s}.{kind}" for kind in ("crt", "key"))
        if not key.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            text = made.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            certificate.write_text(self.devices.issue(identity, made.public_key(), life_s=life_s))
            key.write_bytes(text)
        return certificate, key

    def device_context(
        self, device: int | str = 0, generation: int = 1, *, life_s: float = CERTIFICATE_LIFE_S
    ) -> ResumingContext:
        """Return a new TLS context of a device; a number stands for device-NUMBER."""
        device_id = f"device-{device}" if isinstance(device, int) else device
        context = client_context(self.ca_path)
        context.show(*self.certificate(device_id, generation, life_s=life_s))
        return context
