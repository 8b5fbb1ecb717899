"""Credentials of a device: a key that never leaves its folder, the certificate for it, and sessions over HTTP.

Kept in `identity/` of the device's folder, readable by its owner only:

    key.pem           made here, before anything is asked
    certificate.pem   of the cloud's authority of devices

The key is on disk before the enrolment token is used: a device that is killed before it has its certificate asks again
with the same key, which needs no token any more (docs/adr/0030-access-and-recovery.md). Times are intervals that the
cloud names, so that a wrong clock of the device changes nothing.
"""

import asyncio
import base64
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from walle.base.backoff import Backoff, retry_after_s
from walle.base.clock import Clock
from walle.base.device_identity import DeviceIdentity
from walle.base.durable_file import make_folders, remove_unfinished, write_file
from walle.protocol import session_proof

_LOG = logging.getLogger(__name__)

_RETRY_S = 1.0
_LONGEST_RETRY_S = 300.0
_RENEWAL_RETRY_S = 60.0
_RENEW_LEFT_S = 10 * 86_400.0  # a certificate has 30 days
_REVOKED = "KeyRevokedError"  # the cloud's name for the error
_UNKNOWN = "IdentityRefusedError"


class CloudRefusalError(httpx.HTTPStatusError):
    """The cloud refused a certificate or a session; the message has its reason. `kind` is the error's type there."""

    def __init__(self, what: str, kind: str, response: httpx.Response) -> None:
        super().__init__(what, request=response.request, response=response)
        self.kind = kind


def asked_pause_s(error: httpx.HTTPError, now_s: float) -> float:
    """Return the pause that an answer asked for (Retry-After), 0 where there was no answer or it has none."""
    if not isinstance(error, httpx.HTTPStatusError):
        return 0.0
    return retry_after_s(error.response.headers.get("Retry-After"), now_s)


class DeviceCredentials:
    """The key, certificate and session of one device, after `start`.

    `folder` is the device's, `token` its enrolment token, "" if it has none. `on_certificate(certificate, key)` gets
    the files after each change of the certificate. One call at a time asks the cloud; others wait for it.
    """

    def __init__(
        self,
        device_id: str,
        folder: Path,
        http: httpx.AsyncClient,
        clock: Clock,
        rng: random.Random,
        *,
        token: str,
        on_certificate: Callable[[Path, Path], None],
    ) -> None:
        self._device_id = device_id
        self._http = http
        self._clock = clock
        self._rng = rng
        self._on_certificate = on_certificate
        self._folder = folder / "identity"
        self._key_path = self._folder / "key.pem"
        self._certificate_path = self._folder / "certificate.pem"
        self._key: ec.EllipticCurvePrivateKey
        self._token = token
        self._has_certificate = False
        self._certified = asyncio.Event()
        self._session = ""
        self._session_s = 0.0  # time when half of the session's life is over
        self._asking = asyncio.Lock()

    async def start(self) -> None:
        """Load the key and the certificate; make the key if there is none.

        Raises:
            OSError: the folder cannot be written.
        """
        await asyncio.to_thread(self._load)
        if self._has_certificate:
            self._use_certificate()

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """The device's present key, which opens what is sealed to it."""
        return self._key

    @property
    def session_header(self) -> str:
        """The value of `X-Walle-Device` for the app's next request, "" while there is none."""
        return self._session

    async def wait_certificate(self) -> None:
        """Return once the device has a certificate."""
        await self._certified.wait()

    async def session(self) -> str:
        """Return a session; enrol the device first, or renew its certificate, where that is due.

        Raises:
            CloudRefusalError: the cloud refuses this device.
            httpx.HTTPError: the cloud does not answer.
        """
        async with self._asking:
            if not self._has_certificate:
                await self._certify()
            if not self._session or self._clock.monotonic() >= self._session_s:
                await self._ask_session()
            return self._session

    def drop_session(self, session: str) -> None:
        """Forget a session that the cloud refused."""
        if self._session == session:
            self._session = ""

    async def run(self) -> None:
        """Keep a session and the certificate valid, until cancelled."""
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_LONGEST_RETRY_S)
        while True:
            try:
                await self.session()
            except httpx.HTTPError as error:
                if isinstance(error, CloudRefusalError):
                    _LOG.warning("%s: the cloud refuses this device: %s", self._device_id, error)
                else:
                    _LOG.info("%s: the cloud does not answer: %s", self._device_id, error)
                delay_s = backoff.failed(asked_pause_s(error, self._clock.time()))
            else:
                backoff.worked()
                delay_s = max(_RETRY_S, self._session_s - self._clock.monotonic()) * self._rng.uniform(1.0, 1.1)
            await self._clock.sleep(delay_s)

    # --- internals ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        make_folders(self._folder, mode=0o700)
        remove_unfinished(self._folder)
        key: Any = None
        try:
            key = serialization.load_pem_private_key(self._key_path.read_bytes(), password=None)
        except FileNotFoundError:
            pass
        except (ValueError, TypeError) as error:  # a damaged key is worth as much as none
            _LOG.error(
                "%s: the key in %s cannot be read, and a new one is made: %s", self._device_id, self._key_path, error
            )
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            key = self._make_key()
        self._key = key
        self._has_certificate = self._is_certified()

    def _make_key(self) -> ec.EllipticCurvePrivateKey:
        self._certificate_path.unlink(missing_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_file(self._key_path, key.private_bytes(encoding, form, serialization.NoEncryption()), mode=0o600)
        return key

    def _is_certified(self) -> bool:
        """Return whether the certificate is of this key and this device."""
        try:
            certificate = x509.load_pem_x509_certificate(self._certificate_path.read_bytes())
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except FileNotFoundError:
            return False
        except (ValueError, x509.ExtensionNotFound) as error:
            where = self._certificate_path
            _LOG.warning("%s: the certificate in %s cannot be read: %s", self._device_id, where, error)
            return False
        known = [identity.device_id for identity in map(DeviceIdentity.from_uri, uris) if identity is not None]
        return known == [self._device_id] and certificate.public_key() == self._key.public_key()

    async def _certify(self) -> None:
        """Get a certificate for the key; where it was revoked, for another key, if there is a token left to try."""
        try:
            await self._ask_certificate()
        except CloudRefusalError as error:
            await self._replace_key(error)

    async def _replace_key(self, refusal: CloudRefusalError) -> None:
        """Get a certificate for a new key with the token, where the cloud has revoked the present one; else raise."""
        if refusal.kind != _REVOKED or not self._token:
            raise refusal
        _LOG.warning("%s: %s; trying the enrolment token with another key", self._device_id, refusal)
        self._has_certificate = False
        self._key = await asyncio.to_thread(self._make_key)
        try:
            await self._ask_certificate()
        except CloudRefusalError as error:
            self._token = ""  # the token admits nobody: once is enough
            raise CloudRefusalError(f"{refusal}; and {error}", _REVOKED, error.response) from error

    async def _ask_certificate(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle device")])  # the cloud names the device
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key, hashes.SHA256())
        body = {
            "device_id": self._device_id,
            "request": request.public_bytes(serialization.Encoding.PEM).decode(),
            "token": self._token,
        }
        answer = await self._post("certificate", body)
        await asyncio.to_thread(write_file, self._certificate_path, str(answer["certificate"]), mode=0o600)
        self._has_certificate = await asyncio.to_thread(self._is_certified)
        if self._has_certificate:
            self._use_certificate()
        else:
            _LOG.error("%s: the cloud gave a certificate of another device or key", self._device_id)

    def _use_certificate(self) -> None:
        self._on_certificate(self._certificate_path, self._key_path)
        self._certified.set()

    async def _ask_session(self) -> None:
        try:
            left_s = await self._prove()
        except CloudRefusalError as error:
            self._session = ""
            if error.kind == _UNKNOWN and self._token:  # enrolled after the backup that the cloud was restored from
                await self._certify()
            else:
                await self._replace_key(error)
            left_s = await self._prove()
        if left_s < _RENEW_LEFT_S:
            try:
                await self._ask_certificate()
            except httpx.HTTPError as error:  # the session is good all the same
                _LOG.warning("%s: the certificate was not renewed, trying again: %s", self._device_id, error)
                self._session_s = self._clock.monotonic() + _RENEWAL_RETRY_S

    async def _prove(self) -> float:
        """Get a session by a proof of the key; return the seconds that are left of the certificate."""
        challenge = str((await self._post("challenge", {}))["challenge"])
        signature = self._key.sign(session_proof(self._device_id, challenge), ec.ECDSA(hashes.SHA256()))
        body = {
            "device_id": self._device_id,
            "challenge": challenge,
            "signature": base64.b64encode(signature).decode(),
        }
        answer = await self._post("session", body)
        self._session = str(answer["token"])
        self._session_s = self._clock.monotonic() + float(answer["life_s"]) / 2
        return float(answer["certificate_left_s"])

    async def _post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a route of /v1/identity."""
        response = await self._http.post(f"/v1/identity/{what}", json=body)
        try:
            answer = response.json()
            if not isinstance(answer, dict):
                raise ValueError(type(answer).__name__)  # noqa: TRY301, TRY004 - as text that is not JSON
        except ValueError:
            answer = {}
        if response.is_error:
            reason = str(answer.get("error", f"{response.status_code} {response.reason_phrase}"))[:500]
            raise CloudRefusalError(f"{what}: {reason}", str(answer.get("type", "")), response)
        missing = {"certificate": "certificate", "challenge": "challenge", "session": "token"}[what] not in answer
        if missing:
            raise CloudRefusalError(f"{what}: the answer is not that of a Walle cloud", "", response)
        return answer
