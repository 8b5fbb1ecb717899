"""Pulls under way on a device, and checks of postponed versions, each of which a newer directive may end."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from walle.deploy.agent.agent_errors import SupersededError
from walle.protocol import Directive


class PullsUnderWay:
    """The pulls of all tasks, at most one of each."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def until_newer[T](self, directive: Directive, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, unless `cancel` ends it.

        Raises:
            SupersededError: it was ended.
        """
        running = asyncio.create_task(work)
        self._tasks[directive.task] = running
        try:
            return await running
        except asyncio.CancelledError as error:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise
            raise SupersededError(directive, str(error)) from None  # the reason that `cancel` gave
        finally:
            del self._tasks[directive.task]

    def cancel(self, task: str, why: str) -> None:
        """End the work for a task, if there is any, by SupersededError with this reason."""
        pull = self._tasks.get(task)
        if pull is not None:
            pull.cancel(why)
