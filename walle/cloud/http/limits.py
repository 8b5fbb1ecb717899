"""Limits of the gateway's HTTP server.

A client is refused with 408 (slow), 413 (body too large), 431 (header too large), 429 (too much of one address) or
503 (the gateway is full); the last two say in Retry-After when to try again. docs/adr/0029-gateway-http.md
says why these limits, and why most of them are not by address.
"""

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence

RETRY_AFTER_S = 5
_UNBOUNDED = 1 << 62


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Limits of all connections, of one, and of one request.

    `unfinished_each` connections of one address may be without a finished request: the oldest makes room for a new
    one. `body_rate` bytes a second are the least that a client sends of a body, after `grace_s`. A client that takes
    nothing of an answer for `stalled_s` is disconnected. `business_body_bytes` is for paths that are not Walle's.
    """

    connections: int = 2048
    unfinished_each: int = 1024
    requests_each: int = 10_000  # requests on one connection
    streams: int = 256  # streams of server-sent events
    streams_each: int = 32  # streams of one address
    header_bytes: int = 16 << 10
    headers: int = 100
    business_body_bytes: int = 64 << 20
    handshake_s: float = 5.0
    header_s: float = 10.0
    idle_s: float = 5.0
    grace_s: float = 10.0
    body_rate: int = 1024
    stalled_s: float = 60.0


@dataclasses.dataclass(frozen=True)
class BodyRule:
    """Limit of the bodies of some paths. `known_only`: no byte is read before the client has shown a valid token."""

    paths: re.Pattern[str]
    max_bytes: int
    known_only: bool


@dataclasses.dataclass(frozen=True)
class RequestRules:
    """Rules of an app for the server, by the path of a request.

    `bodies`: the first that fits a path; those of other paths are the business app's. `new_work`: POST of these begins
    work that a full disk would break off. `streams`: an answer to GET of these does not end by itself.
    """

    bodies: Sequence[BodyRule]
    new_work: re.Pattern[str]
    streams: re.Pattern[str]

    def body_rule(self, path: str, limits: HttpLimits) -> BodyRule:
        """Return the rule of a path."""
        for rule in self.bodies:
            if rule.paths.fullmatch(path):
                return rule
        return BodyRule(re.compile(""), limits.business_body_bytes, known_only=False)

    def is_new_work(self, method: str, path: str) -> bool:
        """Return whether a request begins work that a full disk would break off."""
        return method == "POST" and self.new_work.fullmatch(path) is not None

    def is_stream(self, path: str) -> bool:
        """Return whether the answer to a GET of the path does not end by itself."""
        return self.streams.fullmatch(path) is not None


type Knows = Callable[[Mapping[bytes, bytes]], bool]
"""`knows(headers)` says whether a request's headers, by names in lower case, hold a token that is valid.

It may raise DeployError instead, with what the client is told: that its key was revoked, for instance.
"""


def behind_edges(limits: HttpLimits) -> HttpLimits:
    """Return the limits of a gateway behind edge gateways, whose few addresses have all of its connections."""
    return dataclasses.replace(limits, unfinished_each=limits.connections, requests_each=_UNBOUNDED)


def address_key(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
