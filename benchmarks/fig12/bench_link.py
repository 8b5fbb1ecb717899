"""The link of Fig. 12 and the cloud's process at its far end: TUN devices, or the TCP proxy where those cannot be."""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.fig12.device import CloudAddress
from benchmarks.links.proxy import ProxyLink
from benchmarks.links.shape import LinkShape
from benchmarks.links.tun import NoTunError, TunLink
from benchmarks.tunnel_authority import TunnelAuthority

_ROOT = Path(__file__).parents[2]
_LOCAL = "127.0.0.1"

type Work[T] = Callable[[CloudAddress], Coroutine[Any, Any, T]]


class BenchLink:
    """An open link. `model` says how it emulates; `counts` are those of its packets once it is closed."""

    def __init__(self, model: str, tun: TunLink | None, shape: LinkShape, seed: int) -> None:
        self.model = model
        self._tun = tun
        self._shape = shape
        self._seed = seed
        self._address: CloudAddress

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return self._tun.counts if self._tun is not None else {}

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        folder: Path,
        shape: LinkShape,
        seed: int,
        *,
        each: bool = False,
        proxy: bool = False,
        sysctls: Mapping[str, str] | None = None,
    ) -> Iterator["BenchLink"]:
        """Give a link, with a cloud that keeps its files in `folder`; with `each`, a link for each device."""
        with contextlib.ExitStack() as undo:
            tun: TunLink | None = None
            model = "TCP proxy, a loss is a delay of one round trip (chosen by --proxy)"
            if not proxy:
                try:
                    tun = undo.enter_context(TunLink.open(shape, seed=seed, each=each, sysctls=sysctls))
                    model = f"IP packets between two TUN devices{', a link for each device' * each}"
                except NoTunError as error:
                    model = f"TCP proxy, a loss is a delay of one round trip (no TUN device: {error})"
            link = cls(model, tun, shape, seed)
            undo.enter_context(link._cloud(folder))
            yield link

    @contextlib.contextmanager
    def _cloud(self, folder: Path) -> Iterator[None]:
        host = self._tun.cloud.host if self._tun is not None else _LOCAL
        authority = TunnelAuthority(folder / "authority", hosts=[host])
        command = [sys.executable, "-m", "benchmarks.fig12.cloud", str(folder), host]

        def start() -> "subprocess.Popen[str]":
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)

        with self._tun.cloud.run(start).result() if self._tun is not None else start() as process:
            try:
                assert process.stdout is not None
                port = int(process.stdout.readline())
                self._address = CloudAddress(host, port, authority)
                yield
            finally:
                process.communicate()

    def run[T](self, work: Work[T]) -> T:
        """Run `work` at the device's end."""
        if self._tun is not None:
            return self._tun.device.run(lambda: asyncio.run(work(self._address))).result()

        async def through_proxy() -> T:
            async with self._proxied() as address:
                return await work(address)

        return asyncio.run(through_proxy())

    @contextlib.asynccontextmanager
    async def _proxied(self) -> AsyncIterator[CloudAddress]:
        proxy = ProxyLink(self._address.port, self._shape, random.Random(self._seed))
        async with proxy.open():
            yield CloudAddress(_LOCAL, proxy.port, self._address.authority)
