"""A model's buffers while it is traced."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.module import Module
    from walle.engine_ext.nn.tracing import Traced

__all__ = ["TracedBuffers"]


class TracedBuffers:
    """The model's buffers as values of a trace, which `make` gives by path and array; the arrays again afterwards."""

    def __init__(self, model: Module, make: Callable[[str, ndarray], Traced]) -> None:
        self._model, self._make = model, make
        self._kept: list[tuple[Any, str, str, Any, Any]] = []

    def __enter__(self) -> Self:
        for path, module in self._model.named_modules():
            for name, array in list(module._buffers.items()):
                if array is not None:
                    full = f"{path}.{name}" if path else name
                    traced: Any = self._make(full, array)
                    self._kept.append((module, name, full, array, traced))
                    module._buffers[name] = traced
        return self

    def assigned(self) -> dict[str, Traced]:
        """Return what was assigned to buffers since, by path."""
        now = {full: module._buffers[name] for module, name, full, _, _ in self._kept}
        return {full: now[full] for _, _, full, _, traced in self._kept if now[full] is not traced}

    def __exit__(self, *error: object) -> None:
        for module, name, _, array, _ in self._kept:
            module._buffers[name] = array
