"""Calls of a cloud by commands, with the address, the token and the CA that their options name."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import typer

from walle.cli.credentials import ca_of
from walle.client.cloud_client import CloudAddressError, CloudClient


@contextlib.asynccontextmanager
async def open_client[C: CloudClient](
    kind: type[C], url: str, token: str, *, ca_pem: str | None = None, option: str = "--url"
) -> AsyncIterator[C]:
    """Give a client of the cloud at `url`; without `ca_pem` it trusts what `ca_of` returns.

    Raises:
        typer.BadParameter: `url`, which `option` gave, is not an address.
        CredentialsError: the CA cannot be read.
    """
    try:
        client = kind(url, token, ca_pem=ca_of(url) if ca_pem is None else ca_pem)
    except CloudAddressError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    async with client:
        yield client


def call_cloud[C: CloudClient, T](
    kind: type[C], url: str, token: str, work: Callable[[C], Coroutine[Any, Any, T]], *, ca_pem: str | None = None
) -> T:
    """Return what `work` returns for a client of the cloud at `url`; raises as `open_client`."""

    async def within() -> T:
        async with open_client(kind, url, token, ca_pem=ca_pem) as client:
            return await work(client)

    return asyncio.run(within())
