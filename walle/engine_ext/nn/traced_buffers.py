"""A model's buffers while it is traced."""

from __future__ import annotations

from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.tracing import Traced

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.module import Module

__all__ = ["TracedBuffers"]


class TracedBuffers:
    """The model's buffers as values of a trace, which `make` gives by path and array; the arrays again afterwards.

    Raises, at the end:
        ModelError: a module keeps a value of the trace elsewhere; the message names the attribute.
    """

    def __init__(self, model: Module, make: Callable[[str, ndarray], Traced]) -> None:
        self._model, self._make = model, make
        self._tables: list[tuple[str, Module, dict[str, Any]]] = []
        self._made: dict[str, tuple[Module, str, Traced]] = {}  # by path

    def __enter__(self) -> Self:
        for path, module in self._model.named_modules():
            table: dict[str, Any] = module._buffers
            self._tables.append((path, module, dict(table)))
            for name, array in list(table.items()):
                if array is not None:
                    full = f"{path}.{name}" if path else name
                    table[name] = self._make(full, array)
                    self._made[full] = (module, name, table[name])
        return self

    def assigned(self) -> dict[str, Traced]:
        """Return what was assigned to buffers since, by path."""
        now: dict[str, Any] = {full: module._buffers[name] for full, (module, name, _) in self._made.items()}
        return {full: now[full] for full, (_, _, traced) in self._made.items() if now[full] is not traced}

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        kept = []
        for path, module, table in self._tables:
            owner = f"{path}." if path else ""
            kept += [owner + name for name, value in module._buffers.items() if _leaks(value) and table[name] is None]
            module._buffers.clear()
            module._buffers.update(table)
            for name, value in list(module.__dict__.items()):
                if _leaks(value):
                    kept.append(owner + name)
                    module.__dict__[name] = None
        if kept and kind is None:
            raise ModelError(
                f"{type(self._model).__name__}.{kept[0]} keeps a value of the step that is planned, which later steps "
                "would not see: make it a buffer, register_buffer(name, array)"
            )


def _leaks(value: Any) -> bool:
    return isinstance(value, Traced) or (
        isinstance(value, list | tuple) and any(isinstance(one, Traced) for one in value)
    )
