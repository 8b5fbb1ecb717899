"""TLS context of HTTP clients: the certificates of authorities that they trust, read once for all of a process."""

import functools
import ssl

from walle.errors import ConfigError


def http_tls(ca_pem: str = "") -> ssl.SSLContext:
    """Return the context for `httpx.AsyncClient(verify=)`, the one that httpx makes itself for each client.

    With `ca_pem` it trusts that CA too: a cloud's own.

    Reading the authorities takes 21 ms of a processor and 0.8 MB: for each of a process's devices, that is 10 s and 400
    MB for 500. It is made at the first use, also for a cloud without TLS, as httpx does.

    Raises:
        ConfigError: `ca_pem` is not a certificate.
    """
    return _context(ca_pem)


@functools.lru_cache(maxsize=8)
def _context(ca_pem: str) -> ssl.SSLContext:
    import httpx

    context = httpx.create_ssl_context()
    if ca_pem:
        try:
            context.load_verify_locations(cadata=ca_pem)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the certificate of the cloud's CA cannot be read ({error})") from error
    return context
