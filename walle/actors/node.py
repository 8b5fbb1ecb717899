"""Base class of cloud actors, each a node in its own process, and the handle with the node's methods."""

import asyncio
import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import ray
from ray.actor import ActorHandle

import walle
from walle.actors.head import HeadAwayError, ask_head
from walle.cloud import CloudConfig
from walle.errors import DeployError

WAIT_S = 20.0  # time for a process to be started again
_DEAD_S = 3.0  # time for an actor that Ray says is dead
_ASK_AGAIN_S = 0.1

# Calls that change something at most once, whatever happens to the answer, and calls that change nothing. After any
# other one, whose process ended meanwhile, only the caller can know whether to repeat it.
_REPEATABLE = frozenset(
    {
        *("all", "get", "history", "wait_change", "typed_policy", "signing", "exclusive_files", "settled"),
        *("beta_found", "verdict", "restamp", "publish_again", "set_gates", "backlog"),
        *("publish", "recent_devices", "stats", "uploads", "ray_node"),
        *("take", "take_reports", "totals", "failures", "evidence", "alarms", "watch", "unwatch", "groups"),
        *("note_profiles", "reach", "devices", "device", "device_failures"),
        *("keys", "revocations", "states", "current_key", "challenge", "revoke"),
        *("drain", "undrain", "progress"),
    }
)

_CANCELLED = frozenset({"answer_request"})  # calls that end when nobody waits for them any more


class NodeLostError(DeployError):
    """A process that has ended or cannot be reached. HTTP answers 503: another is started in its place."""

    status = 503
    retry_after_s = 1

    def __init__(self, method: str, why: str) -> None:
        super().__init__(f"the process that runs {method!r} is gone or cannot be reached: {why}")
        self.method = method
        self.why = why


@dataclasses.dataclass(frozen=True)
class Raised:
    """An error on its way to another process, as a result.

    Pickle rebuilds an error from its message, which is not what most of ours take as arguments; and Ray gives the
    caller an error of another class. Here its class, arguments and fields are restored, without `__init__`.
    """

    kind: type[Exception]
    args: tuple[Any, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> "Raised":
        text = "".join(traceback.format_exception(error)).strip()
        return cls(type(error), error.args, {**error.__dict__, "__notes__": [f"In the other process:\n{text}"]})

    def error(self) -> Exception:
        error = self.kind.__new__(self.kind, *self.args)
        error.__dict__.update(self.fields)
        return error


def returns_errors[**P, T](method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T | Raised]]:
    """Return an actor's method that gives what it raises as `Raised`; `ask` raises it."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | Raised:
        try:
            return await method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
            return Raised.of(error)

    return wrapper


async def ask(actor: ActorHandle[Any], method: str, *args: Any, **named: Any) -> Any:
    """Return what a `returns_errors` method of an actor gives, or raise what it raised.

    Raises:
        NodeLostError: the actor's process ended.
    """
    try:
        answer = await getattr(actor, method).remote(*args, **named)
    except ray.exceptions.RayActorError as error:
        raise _lost(method, args, error) from error
    return _opened(answer)


async def ask_until_cancelled(actor: ActorHandle[Any], method: str, *args: Any, **named: Any) -> Any:
    """Return what `ask` returns; where this is cancelled, the call is cancelled in the actor too."""
    reference = getattr(actor, method).remote(*args, **named)
    try:
        return _opened(await reference)
    except ray.exceptions.RayActorError as error:
        raise _lost(method, args, error) from error
    except asyncio.CancelledError:
        ray.cancel(reference)
        raise


async def ask_again(
    actor: ActorHandle[Any], method: str, *args: Any, find: Callable[[], ActorHandle[Any]] | None = None, **named: Any
) -> Any:
    """Return what `ask` returns; where the process is gone, ask the one that comes in its place, for WAIT_S.

    Where the actor itself was ended, `find` gives the one that is called so now: it may have been moved.

    Raises:
        NodeLostError: none came, or the actor was ended permanently.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        try:
            answer = await getattr(actor, method).remote(*args, **named)
        except ray.exceptions.RayActorError as error:
            is_dead = isinstance(error, ray.exceptions.ActorDiedError)  # Ray shows it too while an actor is restarted
            if loop.time() - began_s >= (_DEAD_S if is_dead else WAIT_S):
                raise _lost(method, args, error) from error
            if is_dead and find is not None:
                with contextlib.suppress(NodeLostError, HeadAwayError):
                    actor = await ask_head(find)
        else:
            return _opened(answer)
        await asyncio.sleep(_ASK_AGAIN_S)


def _opened(answer: Any) -> Any:
    if isinstance(answer, Raised):
        raise answer.error()
    return answer


def _lost(method: str, args: tuple[Any, ...], error: Exception) -> NodeLostError:
    return NodeLostError(str(args[0]) if method == "call" else method, str(error))


class NodeActor:
    """Holds one node between `open` and `close`, and passes calls on to it. Subclasses say which node."""

    def __init__(self, config: CloudConfig) -> None:
        self._config = config
        self._undo = contextlib.AsyncExitStack()
        self._node: Any = None

    @returns_errors
    async def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Return what `method` of the node gives."""
        return await getattr(self._node, method)(*args, **named)

    @returns_errors
    async def version(self) -> str:
        """Return the version of walle that this process runs."""
        return walle.__version__

    @returns_errors
    async def ray_node(self) -> str:
        """Return the id of the Ray node that this is on: Unix sockets reach the processes of one node."""
        return str(ray.get_runtime_context().get_node_id())

    @returns_errors
    async def close(self) -> None:
        await self._undo.aclose()


class Remote:
    """A node in another process: any method is awaited there, and its errors are raised here.

    A call during which the process ends is repeated where that is harmless, for WAIT_S; others raise NodeLostError.
    `find` gives the actor that is called so now, for one that may be moved.
    """

    def __init__(self, actor: ActorHandle[Any], find: Callable[[], ActorHandle[Any]] | None = None) -> None:
        self._actor = actor
        self._find = find

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)  # looked up by pickle and copy
        if method in _REPEATABLE:
            return functools.partial(self._ask_again, method)
        return functools.partial(self._ask, method)

    async def _ask(self, method: str, *args: Any, **named: Any) -> Any:
        how = ask_until_cancelled if method in _CANCELLED else ask
        try:
            return await how(self._actor, "call", method, *args, **named)
        except NodeLostError:
            await self._find_again()
            raise

    async def _ask_again(self, method: str, *args: Any, **named: Any) -> Any:
        try:
            return await ask(self._actor, "call", method, *args, **named)
        except NodeLostError:
            await self._find_again()
        return await ask_again(self._actor, "call", method, *args, find=self._find, **named)

    async def _touch(self) -> None:
        try:
            await ask(self._actor, "ray_node")
        except NodeLostError:
            await self._find_again()

    async def _find_again(self) -> None:
        if self._find is not None:
            with contextlib.suppress(NodeLostError, HeadAwayError):  # the next call finds an actor that is moving
                self._actor = await ask_head(self._find)


async def touch(peers: Iterable[Remote]) -> None:
    """Call each of some peers without effect.

    Ray makes the way to another process at the first call, and needs its head for that. So a call that comes first
    while the head is away would wait for the head, and calls after it do not.
    """
    await asyncio.gather(*(peer._touch() for peer in peers), return_exceptions=True)
