"""Processes of actors: how one is started, and ended."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import ray

from walle.actors.node import NodeLostError, ask

_LOG = logging.getLogger(__name__)

_STOP_S = 15.0


def spawn(kind: type, *arguments: Any, **options: Any) -> Any:
    """Return an actor of `kind` in a process of its own. It reserves no core: actors wait more than they compute."""
    remote: Any = ray.remote(**{"num_cpus": 0, **options})
    return remote(kind).remote(*arguments)


def find(name: str, namespace: str) -> Any:
    """Return the actor with this name. Raises NodeLostError."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError as error:
        raise NodeLostError(name, str(error)) from error


async def end(actor: Any) -> None:
    """Close what an actor holds, then end its process; one that does not answer is ended all the same."""
    try:
        async with asyncio.timeout(_STOP_S):
            await ask(actor, "close")
    except NodeLostError:
        pass  # its process has ended
    except Exception as error:  # noqa: BLE001 - it ends, whatever it says
        _LOG.warning("an actor did not close well: %r", error)
    finally:
        ray.kill(actor)


async def end_together(actors: Iterable[Any]) -> None:
    """End several actors at once."""
    await asyncio.gather(*(end(actor) for actor in actors))
