"""Models of a task that devices share with each other, through their cloud (Mistify §5.1, ii). No data is sent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

import httpx

from walle.adapt.tuning.coordinator import MAX_MODEL_BYTES
from walle.adapt.tuning.hints import Hints
from walle.deploy.agent.fetch import FetchError, HttpFetcher
from walle.device.credentials import DeviceCredentials
from walle.errors import DeployError
from walle.protocol import DEVICE_HEADER

if TYPE_CHECKING:
    from walle.adapt.tuning.distillation import Exchange, Statistics

_LOG = logging.getLogger(__name__)

_MAX_LIST_BYTES = 64 << 10
_LISTS = 3  # limit of lists of peers for one answer: a model may be replaced between list and download
_EXCHANGE_S = 600.0  # limit of an exchange: 64 models of 4 MiB need 3.6 Mbit/s
_CHECK_S = 1.0  # time after which a waiting thread looks whether the loop still runs


class PeerModelError(DeployError):
    """A model that is too large to share, a list of peers that is not one, or a loop that cannot exchange models."""


class _Peer(NamedTuple):
    sha256: str
    size_bytes: int


class PeerModels:
    """A device's part of `walle.adapt.tuning`: its model goes up with hints, those of its peers come down.

    A model that this device has from an earlier call is not sent again.
    """

    def __init__(self, http: httpx.AsyncClient, credentials: DeviceCredentials) -> None:
        self._http = http
        self._fetcher = HttpFetcher(http)
        self._credentials = credentials
        self._held: dict[str, dict[str, bytes]] = {}  # files of the latest peers by SHA-256, by task

    async def share(self, task: str, file: bytes, hints: Hints, *, loss: float, accuracy: float) -> int:
        """Send the device's model of a task, "SCENARIO/TASK", and return its version.

        Raises:
            PeerModelError: the model is too large.
            httpx.HTTPError: the cloud does not answer, or refuses the model.
        """
        if len(file) > MAX_MODEL_BYTES:
            raise PeerModelError(f"a model of {len(file)} bytes; {MAX_MODEL_BYTES} are shared at most")
        query: dict[str, str | float] = {
            "loss": loss, "accuracy": accuracy, "latitude": hints.latitude, "longitude": hints.longitude,
            "time_s": hints.time_s, "summary": ",".join(f"{one:.9f}" for one in hints.summary),
        }  # fmt: skip

        async def post(headers: dict[str, str]) -> httpx.Response:
            return await self._http.post(f"/v1/tuning/{task}", params=query, content=file, headers=headers)

        session = await self._credentials.session()
        response = await post({DEVICE_HEADER: session})
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._credentials.drop_session(session)
            response = await post({DEVICE_HEADER: await self._credentials.session()})
        if response.is_error:
            what = f"{response.status_code} for the model of {task}: {response.text[:300]}"
            raise httpx.HTTPStatusError(what, request=response.request, response=response)
        return int(response.json()["version"])

    async def peers(self, task: str, count: int) -> list[bytes]:
        """Return files of up to `count` peers, those with the nearest hints first; `share` comes before.

        Raises:
            httpx.HTTPError: the cloud gives the device no session (docs/identity.md).
            FetchError: the cloud does not answer, or this device shares no model of the task.
            PeerModelError: the answer is not a list of peers.
        """
        found: dict[str, bytes] = {}
        for _ in range(_LISTS):
            listed = _listed(await self._get(f"/v1/tuning/{task}/peers?count={count}", _MAX_LIST_BYTES))[:count]
            held = self._held.get(task, {}) | found
            found = {}
            for one in listed:
                file = held.get(one.sha256) or await self._fetch(task, one)
                if file is not None:
                    found[one.sha256] = file
            if len(found) == len({one.sha256 for one in listed}):
                break
        self._held[task] = found
        return list(found.values())

    def exchange(self, task: str, hints: Hints, count: int, *, limit_s: float = _EXCHANGE_S) -> Exchange:
        """Return what `Tuner.run` calls to share a model and receive peers', in a thread beside that of this loop.

        `await asyncio.to_thread(tuner.run, device.peer_models.exchange(...))` tunes while the device goes on. A call
        raises as `share` and `peers`, TimeoutError after `limit_s`, and PeerModelError on the loop's own thread, which
        it would block, or once the loop has stopped.
        """
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        async def done(file: bytes, statistics: Statistics) -> list[bytes]:
            async with asyncio.timeout(limit_s):
                await self.share(task, file, hints, loss=statistics.loss, accuracy=statistics.accuracy)
                return await self.peers(task, count)

        def exchange(file: bytes, statistics: Statistics) -> list[bytes]:
            if threading.get_ident() == thread:
                raise PeerModelError("an exchange would block the device's event loop; tune in a thread")
            _check_runs(loop)
            work = asyncio.run_coroutine_threadsafe(done(file, statistics), loop)
            while not concurrent.futures.wait([work], _CHECK_S).done:
                _check_runs(loop)
            return work.result()

        return exchange

    async def _fetch(self, task: str, peer: _Peer) -> bytes | None:
        """Return a peer's file, None where it was replaced since, or is not what the list says."""
        try:
            file = await self._get(f"/v1/tuning/{task}/peers/{peer.sha256}", peer.size_bytes)
        except FetchError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            return None
        if hashlib.sha256(file).hexdigest() != peer.sha256:
            _LOG.warning("a peer's model of %s is not the one of the list; it is left out", task)
            return None
        return file

    async def _get(self, path: str, max_bytes: int) -> bytes:
        session = await self._credentials.session()
        try:
            return await self._fetcher.fetch_small(path, max_bytes=max_bytes, headers={DEVICE_HEADER: session})
        except FetchError as error:
            if error.status != httpx.codes.UNAUTHORIZED:
                raise
        self._credentials.drop_session(session)
        headers = {DEVICE_HEADER: await self._credentials.session()}
        return await self._fetcher.fetch_small(path, max_bytes=max_bytes, headers=headers)


def _check_runs(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_running():
        raise PeerModelError("the device's event loop has stopped; nothing was exchanged")


def _listed(data: bytes) -> list[_Peer]:
    try:
        peers = [_Peer(one["sha256"], one["size_bytes"]) for one in json.loads(data)["peers"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PeerModelError(f"the list of peers cannot be read: {error!r}") from error
    for one in peers:
        is_name = isinstance(one.sha256, str) and len(one.sha256) == 64 and one.sha256.isalnum()
        if not is_name or type(one.size_bytes) is not int or not 0 < one.size_bytes <= MAX_MODEL_BYTES:
            raise PeerModelError(f"the list of peers has an entry {one!r:.200}")
    return peers
