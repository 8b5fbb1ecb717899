"""Calls from event loops into VMs: each loop has a queue to which VM threads send replies, and the calls that wait."""

import asyncio
import inspect
import itertools
import weakref
from collections.abc import Mapping
from typing import Any

from walle.engine_ext import _core
from walle.engine_ext.vm.callbacks import Callbacks
from walle.engine_ext.vm.host import signal_of
from walle.engine_ext.vm.imports import ForbiddenImport
from walle.errors import VMError


class TaskError(VMError):
    """The task raised, or its result is not plain data. `traceback_text` names the task's files and lines.

    `place` is "file:line in function" of the task's code, "" where the error passed none of it.
    """

    def __init__(self, task: str, type_name: str, message: str, traceback_text: str, place: str = "") -> None:
        super().__init__(task, type_name, message, traceback_text, place)
        self.task = task
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text
        self.place = place

    def __str__(self) -> str:
        return f"task {self.task}: {self.type_name}: {self.message}{f' ({self.place})' if self.place else ''}"


class NotPlainError(TaskError):
    """The task's result is not plain data. The message begins with the place: `result.prices[3] is of type set`."""

    def __init__(self, task: str, message: str) -> None:
        super().__init__(task, "TypeError", message, "")


class LimitExceeded(VMError):  # noqa: N818 -- as DeadlineExceeded, the public name of the design
    """The call exceeded a limit of task.toml and was stopped, or its result was refused.

    `place` is "file:line in function" of the task's code where it did; `refused` is the part of a result that was too
    much, "" for a call that was stopped.

    `limit` is the key, such as "memory_mb", and `maximum` its value.
    """

    def __init__(self, task: str, limit: str, maximum: float, place: str, refused: str = "") -> None:
        what = f" by its result: {refused}" if refused else f" and was stopped at {place or 'its end'}"
        super().__init__(f"task {task} exceeded its limit {limit} = {maximum:g}{what}")
        self.task = task
        self.limit = limit
        self.maximum = maximum
        self.place = place
        self.refused = refused


class DeadlineExceeded(LimitExceeded):
    """The call ran longer than `limit_s` and was stopped; `place` is what ran at that moment."""

    def __init__(self, task: str, limit_s: float, place: str) -> None:
        super().__init__(task, "deadline_ms", limit_s * 1000, place)
        self.args = (f"task {task} ran longer than {limit_s:g} s and was stopped at {place or 'its end'}",)
        self.limit_s = limit_s


class VMClosedError(VMError):
    """The VM accepts no calls: it was closed, abandoned after a call that did not stop, or could not start."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"task {task}: {reason}")
        self.task = task
        self.reason = reason


class HostLost(VMClosedError):  # noqa: N818 -- as DeadlineExceeded
    """The VM host ended while the call waited or ran, and it is not certain that the call was the cause.

    The call may be made again: its VM is gone, and what it did in it too. Callbacks that it has called stay called. A
    pool runs it alone then, so that it is known which of several tasks was the cause. `phase` and `place` say what the
    task did at that moment, as those of HostCrashed.
    """

    def __init__(self, task: str, reason: str, phase: str = "", place: str = "") -> None:
        super().__init__(task, reason + _where(phase, place))
        self.phase = phase
        self.place = place


class HostCrashed(VMError):  # noqa: N818 -- as DeadlineExceeded
    """The call ended the VM host, in which no other VM ever was.

    `reason` says how; `signal` is the signal's name, "" if it was none. `phase` is that of the task, or the function
    that was called; `place` is "file:line in function" of the task's code: where its thread crashed, else the beginning
    of what it entered last. Both are "" where they are not known, and come from the host, which a task may have taken
    over.
    """

    def __init__(self, task: str, reason: str, phase: str = "", place: str = "") -> None:
        super().__init__(f"task {task} ended its VM host: {reason}{_where(phase, place)}")
        self.task = task
        self.phase = phase
        self.place = place
        self.reason = reason
        self.signal = signal_of(reason)


def _where(phase: str, place: str) -> str:
    """Return what a task did as its host ended, as errors show it."""
    what = f"phase {phase}" if phase else ""
    return f" ({', '.join(filter(None, (what, place)))})" if what or place else ""


class MissingCallback(LookupError):  # noqa: N818 -- its name is what a task reads
    """The caller of a run has no callback of the name that the task called."""


class _Call:
    """One call, in its event loop."""

    def __init__(
        self,
        vm: _core.VM,
        task: str,
        limits: Mapping[str, int],
        callbacks: Callbacks | None,
        limit_s: float | None,
        future: asyncio.Future[Any],
    ) -> None:
        self.vm = vm
        self.task = task
        self.limits = limits
        self.callbacks = callbacks or {}
        self.limit_s = limit_s
        self.future = future
        self.callback_run: asyncio.Task[None] | None = None


class LoopCalls:
    """One event loop's calls to VMs, and the queue to which VM threads send replies."""

    def __init__(self) -> None:
        self._replies = _core.ReplyQueue()
        self._calls: dict[int, _Call] = {}

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "LoopCalls":
        """Return the calls of this loop."""
        known = _loop_calls.get(loop)
        calls = known() if known is not None else None
        if calls is None:
            calls = cls()
            _loop_calls[loop] = weakref.ref(calls)
            loop.add_reader(calls._replies.fd, calls._process_replies)
        return calls

    async def call(
        self,
        vm: _core.VM,
        task: str,
        limits: Mapping[str, int],
        function: str,
        args: tuple[Any, ...],
        limit_s: float | None,
        callbacks: Callbacks | None,
    ) -> Any:
        """Run `VM.call`; `task` is what errors call it, `limits` what they quote."""
        call_id = next(_call_ids)
        call = _Call(vm, task, limits, callbacks, limit_s, asyncio.get_running_loop().create_future())
        self._calls[call_id] = call
        try:
            vm.submit(self._replies, call_id, function, args, limit_s)
            return await call.future
        except BaseException:  # cancelled, or the loop was closed
            vm.cancel(call_id)
            raise
        finally:
            self._calls.pop(call_id, None)
            if call.callback_run is not None and not call.future.get_loop().is_closed():
                call.callback_run.cancel()
            # Else its future's error would refer to this frame, and the arguments stay until cycles are collected.
            del call

    def _process_replies(self) -> None:
        for call_id, outcome, value, text in self._replies.take_all():
            call = self._calls.get(call_id)
            if call is None or call.future.done():
                continue
            try:
                if outcome == "callback":
                    name, args = value
                    call.callback_run = asyncio.ensure_future(self._run_callback(call_id, call, name, args))
                elif outcome == "ok":
                    call.future.set_result(value)
                else:
                    call.future.set_exception(_error(call, outcome, value, text))
            except Exception as error:  # noqa: BLE001 -- from a VM host that was taken over; other calls go on
                call.vm.cancel(call_id)
                call.future.set_exception(TaskError(call.task, "TypeError", f"a malformed reply: {error!r}", ""))

    async def _run_callback(self, call_id: int, call: _Call, name: str, args: tuple[Any, ...]) -> None:
        try:
            if name not in call.callbacks:
                raise MissingCallback(f"the caller has callbacks {sorted(call.callbacks)}")  # noqa: TRY301 -- answered as any other
            result = call.callbacks[name](*args)
            if inspect.isawaitable(result):
                result = await result
            call.vm.answer(call_id, result, False)
        except asyncio.CancelledError:  # the call has ended, or the callback cancelled itself while the task waits
            call.vm.answer(call_id, ("CancelledError", "the callback was cancelled"), True)
            raise
        except Exception as error:  # noqa: BLE001 -- the task handles it
            call.vm.answer(call_id, (type(error).__name__, _text(error)), True)


# Only the loop's reader refers to its LoopCalls. If the loop is closed first, they are freed, which stops their calls.
_loop_calls: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopCalls]]" = (
    weakref.WeakKeyDictionary()
)
_call_ids = itertools.count(1)


def forget_loop_calls() -> None:
    """Forget the loops' calls in the child of a fork: the child must not read replies from the parent's descriptors."""
    _loop_calls.clear()


def _text(error: Exception) -> str:
    try:
        text = str(error)[:2000]
    except Exception as other:  # noqa: BLE001 -- an error's __str__ may raise anything, and the task waits
        return f"(its text could not be read: {type(other).__name__})"
    return text.encode(errors="replace").decode()  # lone surrogates do not cross


def _error(call: _Call, outcome: str, value: Any, text: str) -> Exception:
    """Return the exception for a reply other than ok."""
    task = call.task
    if outcome == "deadline":
        return DeadlineExceeded(task, call.limit_s or 0.0, text)
    if outcome == "limit":
        maximum = call.limits.get(value, 0)
        if value == "output_kb":  # the text says which part of the result is too large
            return LimitExceeded(task, value, maximum, "", text)
        return LimitExceeded(task, value, maximum, text)
    if outcome == "not_plain":
        return NotPlainError(task, text)
    if outcome == "failed":
        if value is None:
            return TaskError(task, text.partition(":")[0], text, "")
        if "forbidden" in value:
            forbidden = ForbiddenImport(*value["forbidden"])
            forbidden.place = str(value["place"]) or forbidden.place
            return forbidden
        return TaskError(task, *(str(value[key]) for key in ("type", "message", "traceback", "place")))
    if outcome == "crashed":
        return HostCrashed(task, text, *call.vm.last_place)
    if outcome == "lost":
        return HostLost(task, text, *call.vm.last_place)
    if outcome == "not_received":
        return VMError(f"task {task}: the result could not be received: {text}")
    return VMClosedError(task, text or "the VM was closed")
