"""Certificate authority of a cloud's devices, apart from the authority of its servers (docs/adr/0030).

Kept in the identity node's folder, readable by its owner only:

    devices.pem   the authority's key and certificate; whoever has it can pose as every device
"""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from walle.access.identity.certificates import check_unexpired, dated, key_usage, load_pair, make_authority, pem_of
from walle.base.clock import Clock, SystemClock
from walle.base.device_identity import DeviceIdentity
from walle.base.durable_file import make_folders, write_new_file

_AUTHORITY_LIFE = dt.timedelta(days=3650)
CERTIFICATE_LIFE_S = 30 * 86_400.0


class DeviceAuthority:
    """The authority in `folder`, made there at first use, by one of several processes at once, and loaded afterwards.

    Raises:
        AuthorityError: its file is damaged or expired.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        path = folder / "devices.pem"
        make_folders(folder, mode=0o700)
        if not path.exists():
            made = make_authority("Walle devices", self._now(), _AUTHORITY_LIFE)
            write_new_file(path, pem_of(*made))
        self._key, self._certificate = load_pair(path)
        check_unexpired(path, self._certificate, self._now(), remedy="enrol every device again")

    @property
    def ca_pem(self) -> str:
        """The certificate, with which servers check those of devices."""
        return pem_of(self._certificate).decode()

    def issue(
        self,
        identity: DeviceIdentity,
        public_key: ec.EllipticCurvePublicKey,
        *,
        life_s: float = CERTIFICATE_LIFE_S,
    ) -> str:
        """Return a certificate, as PEM, with which a client that has the key is this device for `life_s` seconds."""
        builder = (
            dated(x509.CertificateBuilder(), self._now(), dt.timedelta(seconds=life_s))
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle device")]))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.to_uri())]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return pem_of(builder.sign(self._key, hashes.SHA256())).decode()

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.time(), dt.UTC)
