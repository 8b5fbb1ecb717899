"""The event loop of the programs: uvloop's where it is installed, asyncio's elsewhere.

With its own transports uvloop holds a TLS connection in a sixth of the memory (docs/adr/0029-gateway-http.md); the
tunnel's server uses aiofastnet's on either loop (docs/adr/0023-tunnel.md). Libraries do not choose: they run on
whatever loop their program runs. Ray's async actors choose in the same way.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


def run[T](work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a new event loop, as `asyncio.run` does."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    result: T = uvloop.run(work)
    return result
