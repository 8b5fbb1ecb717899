"""The asyncio side of calls into VMs: each event loop has a desk where its calls wait for what VM threads post."""

import asyncio
import inspect
import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from walle.engine_ext import _core
from walle.engine_ext.vm.imports import ForbiddenImport
from walle.errors import VMError

type Host = Mapping[str, Callable[..., Any]]


class TaskError(VMError):
    """The task raised, or its result is no plain data. `traceback_text` names the task's files and lines."""

    def __init__(self, task: str, type_name: str, message: str, traceback_text: str) -> None:
        super().__init__(f"task {task}: {type_name}: {message}")
        self.task = task
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text


class LimitExceeded(VMError):  # noqa: N818 -- as DeadlineExceeded, the public name of the design
    """The call broke a limit of task.toml and was stopped. `place` is file:line of the task's code where it did.

    `limit` is the key, such as "memory_mb", and `most` what it may be.
    """

    def __init__(self, task: str, limit: str, most: float, place: str) -> None:
        super().__init__(f"task {task} broke its limit {limit} = {most:g} and was stopped at {place or 'its end'}")
        self.task = task
        self.limit = limit
        self.most = most
        self.place = place


class DeadlineExceeded(LimitExceeded):
    """The call ran longer than `limit_s` and was stopped; `place` is file:line of the task's code at that moment."""

    def __init__(self, task: str, limit_s: float, place: str) -> None:
        super().__init__(task, "deadline_ms", limit_s * 1000, place)
        self.args = (f"task {task} ran longer than {limit_s:g} s and was stopped at {place or 'its end'}",)
        self.limit_s = limit_s


class VMClosedError(VMError):
    """The VM takes no calls: it was closed, abandoned after a call that did not stop, or could not start."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"task {task}: {reason}")
        self.task = task
        self.reason = reason


class _Call:
    """One call as its loop sees it."""

    def __init__(
        self,
        vm: _core.VM,
        task: str,
        limits: Mapping[str, int],
        host: Host | None,
        limit_s: float | None,
        future: asyncio.Future[Any],
    ) -> None:
        self.vm = vm
        self.task = task
        self.limits = limits
        self.host = host or {}
        self.limit_s = limit_s
        self.future = future
        self.answering: asyncio.Task[None] | None = None


class Desk:
    """One event loop's calls to VMs and the mailbox where VM threads answer them."""

    def __init__(self) -> None:
        self._mailbox = _core.Mailbox()
        self._calls: dict[int, _Call] = {}

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Desk":
        """Return the loop's own desk."""
        known = _desks.get(loop)
        desk = known() if known is not None else None
        if desk is None:
            desk = cls()
            _desks[loop] = weakref.ref(desk)
            loop.add_reader(desk._mailbox.fd, desk._drain)
        return desk

    async def call(
        self,
        vm: _core.VM,
        task: str,
        limits: Mapping[str, int],
        function: str,
        args: tuple[Any, ...],
        limit_s: float | None,
        host: Host | None,
    ) -> Any:
        """As `VM.call`; `task` is what errors call it, `limits` what they quote."""
        call_id = next(_call_ids)
        call = _Call(vm, task, limits, host, limit_s, asyncio.get_running_loop().create_future())
        self._calls[call_id] = call
        try:
            vm.submit(self._mailbox, call_id, function, args, limit_s)
            return await call.future
        except BaseException:  # cancelled, or closed with a loop that is gone
            vm.cancel(call_id)
            raise
        finally:
            self._calls.pop(call_id, None)
            if call.answering is not None and not call.future.get_loop().is_closed():
                call.answering.cancel()

    def _drain(self) -> None:
        for call_id, outcome, value, text in self._mailbox.drain():
            call = self._calls.get(call_id)
            if call is None or call.future.done():
                continue
            if outcome == "ask":
                call.answering = asyncio.ensure_future(self._answer(call_id, call, *value))
            elif outcome == "ok":
                call.future.set_result(value)
            else:
                call.future.set_exception(_error(call, outcome, value, text))

    async def _answer(self, call_id: int, call: _Call, name: str, args: tuple[Any, ...]) -> None:
        try:
            if name not in call.host:
                raise LookupError(f"the caller offers {sorted(call.host)}")  # noqa: TRY301 -- answered as any other
            answer = call.host[name](*args)
            if inspect.isawaitable(answer):
                answer = await answer
            call.vm.answer(call_id, answer, False)
        except asyncio.CancelledError:  # the call is over, or the function cancelled itself, and then the task waits
            call.vm.answer(call_id, ("CancelledError", "the host's function was cancelled"), True)
            raise
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the task's to handle
            call.vm.answer(call_id, (type(error).__name__, _text(error)), True)


# Only its loop's reader keeps a desk, so that what waits at it goes, and stops its calls, if the loop is closed first.
_desks: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Desk]]" = weakref.WeakKeyDictionary()
_call_ids = itertools.count(1)


def forget_desks() -> None:
    """In the child of a fork: the loops' descriptors are the parent's too, who must not miss what they tell."""
    _desks.clear()


def _text(error: Exception) -> str:
    try:
        text = str(error)[:2000]
    except Exception as other:  # noqa: BLE001 -- an error's __str__ may raise anything, and the task waits
        return f"(its text cannot be had: {type(other).__name__})"
    return text.encode(errors="replace").decode()  # lone surrogates do not cross


def _error(call: _Call, outcome: str, value: Any, text: str) -> Exception:
    """Return the exception that a notice other than ok stands for."""
    task = call.task
    if outcome == "deadline":
        return DeadlineExceeded(task, call.limit_s or 0.0, text)
    if outcome == "limit":
        return LimitExceeded(task, value, call.limits.get(value, 0), text)
    if outcome == "not_plain":
        return TaskError(task, "TypeError", text, "")
    if outcome == "failed":
        if value is None:
            return TaskError(task, text.partition(":")[0], text, "")
        if "forbidden" in value:
            return ForbiddenImport(*value["forbidden"])
        return TaskError(task, value["type"], value["message"], value["traceback"])
    return VMClosedError(task, text or "the VM was closed")
