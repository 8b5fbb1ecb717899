"""Callbacks: functions of a VM's caller that task code may call, as `call(name, *args)`.

`call` runs inside a VM. The VM's thread waits without its GIL, and the call's deadline keeps running.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.errors import VMError

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

type Callbacks = Mapping[str, Callable[..., Any]]  # by name; plain or async functions, run in the caller's event loop


class CallbackError(VMError):
    """The caller's function raised, or the caller has no callback of that name. Raised in the task."""

    def __init__(self, name: str, type_name: str, message: str) -> None:
        super().__init__(f"callback {name!r} raised {type_name}: {message}")
        self.name = name
        self.type_name = type_name
        self.message = message


def call(name: str, *args: Any) -> Any:
    """Return the result of the caller's callback; arguments and result are plain data and arrays.

    Raises:
        CallbackError: the callback raised, or does not exist.
        TypeError: an argument is not plain data.
    """
    is_error, result = _core.call_back(name, args)
    if is_error:
        raise CallbackError(name, *result)
    return result
