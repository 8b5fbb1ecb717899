"""The TLS context of HTTP clients: one for a process, and it verifies."""

import ssl

import pytest

from walle.base.http_roots import http_tls
from walle.client.cloud_client import CloudClient


@pytest.mark.asyncio
async def test_clients_of_a_process_read_the_authorities_once(monkeypatch: pytest.MonkeyPatch) -> None:
    context = http_tls()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.get_ca_certs()

    def read_again(*_: object, **__: object) -> None:
        raise AssertionError("the authorities were read again")

    monkeypatch.setattr(ssl, "create_default_context", read_again)
    for url in ("https://cloud.example", "http://cloud.example"):
        async with CloudClient(url):
            pass
