"""Processes of actors: how one is started, and ended."""

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import Any

import ray

from walle.actors.head import HeadAwayError, ask_head
from walle.actors.node import NodeLostError, ask

_LOG = logging.getLogger(__name__)

_STOP_S = 15.0
_NAME_S = 10.0  # time after an actor's end until another may have its name
_ALONE_S = 30.0  # time that a cloud may be without its keeper
_LOOK_S = 5.0
_AGAIN_S = 1.0
KEEPER = "nodes"


def spawn(kind: type, *arguments: Any, **options: Any) -> Any:
    """Return an actor of `kind` in a separate process. It reserves no core: actors wait more than they compute."""
    remote: Any = ray.remote(**{"num_cpus": 0, **options})
    return remote(kind).remote(*arguments)


def find(name: str, namespace: str) -> Any:
    """Return the actor with this name. Raises NodeLostError."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError as error:
        raise NodeLostError(name, str(error)) from error


async def find_soon(name: str, namespace: str) -> Any:
    """Return what `find` returns. Raises NodeLostError; HeadAwayError as `ask_head`."""
    return await ask_head(find, name, namespace)


def actor_names(namespace: str) -> set[str]:
    """Return the names of the actors that a namespace has now."""
    found: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"] for one in found if one["namespace"] == namespace}


async def spawn_in_place(kind: type, *arguments: Any, **options: Any) -> Any:
    """Return an actor with the name of one that was ended just now, once the name is free.

    Where Ray cannot start one now, it is tried again for as long as it takes: nobody else would start it.

    Raises:
        NodeLostError: another actor has the name.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        try:
            return await asyncio.to_thread(spawn, kind, *arguments, **options)
        except ValueError as error:
            if loop.time() - began_s > _NAME_S:
                raise NodeLostError(str(options.get("name")), str(error)) from error
        except ray.exceptions.RayError as error:
            _LOG.warning("%s cannot be started now: %s; trying again", options.get("name"), error)
            began_s = loop.time()
            await asyncio.sleep(_AGAIN_S)
        await asyncio.sleep(0.05)


async def end_with_cloud(namespace: str) -> None:
    """End this process once its cloud has gone, for an actor that outlives who started it; else never return.

    A cloud without a keeper of nodes has none of these actors.
    """
    seen = False
    alone_s = 0.0
    while alone_s < _ALONE_S:
        await asyncio.sleep(_LOOK_S)
        try:
            await find_soon(KEEPER, namespace)
        except NodeLostError:
            alone_s += _LOOK_S if seen else 0.0
        except HeadAwayError as error:
            _LOG.debug("whether the cloud still runs is unknown: %s", error)
        else:
            seen, alone_s = True, 0.0
    _LOG.error("the cloud of this process has gone; it ends")
    os._exit(1)


async def end(actor: Any, *, is_again: bool = False) -> None:
    """Close what an actor holds, then end its process; one that does not answer is ended all the same.

    `is_again`: Ray starts another process for it.
    """
    try:
        async with asyncio.timeout(_STOP_S):
            await ask(actor, "close")
    except NodeLostError:
        pass  # the actor's process has ended
    except Exception as error:  # noqa: BLE001 - it ends, whatever it says
        _LOG.warning("an actor failed to close: %r", error)
    finally:
        ray.kill(actor, no_restart=not is_again)


async def end_together(actors: Iterable[Any]) -> None:
    """End several actors at once."""
    await asyncio.gather(*(end(actor) for actor in actors))
