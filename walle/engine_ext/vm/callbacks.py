"""The VM's door to its caller: `call(name, *args)` runs `host[name]` of `VM.call` on the caller's side.

Runs inside a VM. The VM's thread waits without its GIL; the call's deadline goes on.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.errors import VMError

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from typing import Any


class HostError(VMError):
    """The caller's function raised, or the caller offers none of that name. Made in the VM, seen by the task."""

    def __init__(self, name: str, type_name: str, message: str) -> None:
        super().__init__(f"host function {name!r} raised {type_name}: {message}")
        self.name = name
        self.type_name = type_name
        self.message = message


def call(name: str, *args: Any) -> Any:
    """Return what the caller's function returned; arguments and result are plain data and arrays.

    Raises:
        HostError: the function raised, or there is none.
        TypeError: an argument is no plain data.
    """
    is_error, answer = _core.ask_host(name, args)
    if is_error:
        raise HostError(name, *answer)
    return answer
