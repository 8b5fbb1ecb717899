"""Certificate of the gateway's HTTP server, from files that the operator keeps: read again when they change."""

import asyncio
import logging
import ssl
from pathlib import Path

from walle.base.clock import Clock
from walle.errors import ConfigError

_LOG = logging.getLogger(__name__)
_LOOK_S = 30.0  # interval between two checks of the files


class CertificateFilesError(ConfigError):
    """A certificate or key that cannot be used."""


class CertificateFiles:
    """A certificate chain and its key, in PEM. `context` is the server's TLS context; new connections see a new one.

    Raises:
        CertificateFilesError: a file cannot be read, or the key is not that of the certificate.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._state = self._state_of_files()
        self.context = self._load(_new_context())

    def renew(self) -> bool:
        """Load the files if they have changed; return whether they had. What was loaded before stays after an error.

        Raises:
            CertificateFilesError: as the class.
        """
        state = self._state_of_files()
        if state == self._state:
            return False
        self._load(_new_context())  # a context that fails to load is left without a key: try with another
        self._load(self.context)
        self._state = state
        return True

    async def follow(self, clock: Clock) -> None:
        """Load the files whenever they change, until cancelled."""
        while True:
            await clock.sleep(_LOOK_S)
            try:
                if await asyncio.to_thread(self.renew):
                    _LOG.info("the certificate of HTTPS was loaded again from %s", self._certificate)
            except CertificateFilesError as error:
                _LOG.error("%s; the previous one stays in use, and the files are read again later", error)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            what = f"{error.reason or error}; they are a PEM chain and its own key without a password"
            raise CertificateFilesError(f"--tls-cert {self._certificate} and --tls-key {self._key}: {what}") from error
        except OSError as error:
            raise CertificateFilesError(f"{error.filename or self._certificate}: {error.strerror}") from error
        return context

    def _state_of_files(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError as error:
            raise CertificateFilesError(f"{error.filename}: {error.strerror}") from error
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    return ""  # OpenSSL would ask for a password at the terminal
