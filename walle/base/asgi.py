"""Types of the ASGI interface between a server and an app."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ANSWERED = "walle.answered"  # key in a scope: the profile of this request was answered before

type Scope = MutableMapping[str, Any]
type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class NotedSend:
    """`send` of a request; `has_begun` once its answer has, after which no other can be sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def address_of(scope: Scope) -> str:
    """Return the caller's address as the server knows it: that of the proxy's client where it trusts the proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""
