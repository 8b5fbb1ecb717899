"""Replica processes of fallback inference: some may get a node later than their cloud starts, or never."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray

from walle.actors.inference import InferenceActor
from walle.actors.node import NodeLostError, ask
from walle.actors.placement import cloud_name, of_replicas
from walle.actors.process import end_together, find, spawn
from walle.cloud import CloudConfig

_LOG = logging.getLogger(__name__)

_START_S = 30.0


def replica(
    config: CloudConfig, number: int, sockets: Path, scheduler_node: str, *, avoid: Iterable[str] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and options of one InferenceActor, on none of the nodes to `avoid`.

    Raises:
        ConfigError: as `of_replicas`.
    """
    options, cloud = of_replicas(config, scheduler_node, avoid=avoid), cloud_name(config)
    if not config.features:  # no features are read: another node need not know how to reach the uploads
        config = dataclasses.replace(config, uploads="")
    return (config, number, sockets / f"{number}", scheduler_node, cloud), options


class Replicas:
    """Actors by name, `inference-0` and so on, between `start` and `close`; Ray starts one that ends again.

    `sockets` is a folder on the scheduler's node of Ray, for the sockets of those that are there. `names` are options
    of Ray that make them known by their names.

    Raises:
        ConfigError: as `of_replicas`.
    """

    def __init__(
        self, config: CloudConfig, sockets: Path, scheduler_node: str, names: Mapping[str, Any] | None = None
    ) -> None:
        self._namespace = names["namespace"] if names else ""
        self.actors = {}
        for number in range(config.inference_processes):
            name = f"inference-{number}"
            arguments, options = replica(config, number, sockets, scheduler_node)
            named = {"name": name, **names} if names else {}
            self.actors[name] = spawn(InferenceActor, *arguments, **options, **named)
        self._wanted = ", ".join(config.inference_resources) or "what they need"
        self._starting: dict[str, asyncio.Task[Any]] = {}

    async def start(self) -> None:
        """Start them; those that Ray cannot place in _START_S join when it can.

        Raises:
            ConfigError, IngestError, OSError: as `InferenceActor.start`.
        """
        self._starting = {name: asyncio.create_task(ask(actor, "start")) for name, actor in self.actors.items()}
        done, waiting = await asyncio.wait(
            self._starting.values(), timeout=_START_S, return_when=asyncio.FIRST_EXCEPTION
        )
        for one in done:
            one.result()
        for name, one in self._starting.items():
            if one in waiting:
                one.add_done_callback(functools.partial(_note_end, name))
        if waiting:
            count = f"{len(waiting)} of {len(self.actors)}"
            _LOG.warning("%s processes of fallback inference wait for a node of Ray with %s", count, self._wanted)

    async def close(self) -> None:
        """End them; one that never started has nothing to close."""
        placed = []
        for name, first in self.actors.items():
            actor = self._present(name, first)
            one = self._starting.get(name)
            if one is None or one.done():
                placed.append(actor)
            else:
                one.cancel()
                ray.kill(actor)
        await end_together(placed)

    def _present(self, name: str, actor: Any) -> Any:
        """Return the actor with this name, which may have been moved; the one that was started where there is none."""
        if self._namespace:
            with contextlib.suppress(NodeLostError):
                return find(name, self._namespace)
        return actor


def _note_end(name: str, starting: asyncio.Task[Any]) -> None:
    if not starting.cancelled() and (error := starting.exception()) is not None:
        _LOG.warning("%s did not start: %r", name, error)
