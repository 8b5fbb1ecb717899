"""Types of the ASGI interface between a server and an app."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

type Scope = MutableMapping[str, Any]
type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def address_of(scope: Scope) -> str:
    """Return the caller's address as the server knows it: that of the proxy's client where it trusts the proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""
