"""Containers of modules and parameters."""

from __future__ import annotations

from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.tracing import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
    from typing import Any, Self

__all__ = ["ModuleDict", "ModuleList", "ParameterList", "Sequential"]


class _Indexed(Module):
    """Modules under the names "0", "1" and on."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        modules = list(self._modules.values())
        return type(self)._of(modules[index]) if isinstance(index, slice) else modules[index]  # type: ignore[arg-type]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[index], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self._modules.values())
        del modules[index]
        self._renumber(modules)

    @classmethod
    def _of(cls, modules: list[Module]) -> Self:
        made = cls()
        made._renumber(modules)
        return made

    def _renumber(self, modules: Iterable[Module | None]) -> None:
        listed = list(modules)
        self._modules.clear()
        for at, module in enumerate(listed):
            self.register_module(str(at), module)

    def append(self, module: Module) -> Self:
        """Add a module at the end; return this container."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; return this container."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Add a module before an index; return this container."""
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._renumber(modules)
        return self


class Sequential(_Indexed):
    """Modules that are called one after the other: Sequential(first, second), or Sequential({"name": module})."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            for name, module in args[0].items():
                self.register_module(name, module)
        else:
            self._renumber(args)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleList(_Indexed):
    """A list of modules; it has no forward."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _parts_repr(self) -> list[str]:
        """Return one line for each run of equal modules, as PyTorch does."""
        runs: list[tuple[int, int, str]] = []
        for at, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], at, text)
            else:
                runs.append((at, at, text))
        lines = []
        for first, last, text in runs:
            name = f"({first})" if first == last else f"({first}-{last})"
            count = "" if first == last else f"{last - first + 1} x "
            lines.append(f"{name}: {count}" + text.replace("\n", "\n  "))
        return lines


class ModuleDict(Module):
    """Modules by name; it has no forward."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def keys(self) -> KeysView[str]:
        return self._modules.keys()

    def values(self) -> ValuesView[Any]:
        return self._modules.values()

    def items(self) -> ItemsView[str, Any]:
        return self._modules.items()

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules, in the mapping's order."""
        for key, module in modules.items():
            self[key] = module


class ParameterList(Module):
    """A list of parameters: arrays become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._parameters[list(self._parameters)[index]] = _as_parameter(value)

    def append(self, value: Any) -> Self:
        """Add a parameter at the end; return this list."""
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters at the end; return this list."""
        for value in values:
            self.append(value)
        return self

    def _parts_repr(self) -> list[str]:
        return [f"({at}): Parameter of shape {tuple(part.shape)}, {part.dtype}" for at, part in enumerate(self)]


def _as_parameter(value: Any) -> Parameter:
    if isinstance(value, Module):
        raise ModelError(f"a ParameterList takes arrays and parameters, not {type(value).__name__}; use a ModuleList")
    return value if isinstance(value, Parameter) else Parameter(value)
