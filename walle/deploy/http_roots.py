"""TLS context of HTTP clients: the certificates of authorities that they trust, read once for all of a process."""

import functools
import ssl

import httpx


@functools.cache
def http_tls() -> ssl.SSLContext:
    """Return the context for `httpx.AsyncClient(verify=)`, the one that httpx makes itself for each client.

    Reading the authorities takes 21 ms of a processor and 0.8 MB: for each of a process's devices, that is 10 s and 400
    MB for 500. It is made at the first use, also for a cloud without TLS, as httpx does.
    """
    return httpx.create_ssl_context()
