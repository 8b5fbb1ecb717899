"""Modules: layers and networks that hold parameters, buffers and other modules (as torch.nn.Module)."""

from __future__ import annotations

from walle.engine_ext._core import asarray
from walle.engine_ext.errors import DTypeError, ModelError
from walle.engine_ext.nn.tracing import Parameter
from walle.engine_ext.np.base import FLOATS
from walle.errors import EngineError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self

    from walle.engine_ext._core import ndarray

__all__ = ["Identity", "Module"]

_TABLES = ("_parameters", "_buffers", "_modules")


class Module:
    """Base class of layers and networks.

    A subclass calls `super().__init__()`, assigns its parts as attributes and defines `forward`. A `Parameter` becomes
    a parameter, a `Module` a part with parameters, and `register_buffer` adds an array that is saved but not trained.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, ndarray | None]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        own = self.__dict__
        own["training"] = True
        own["_parameters"], own["_buffers"], own["_modules"] = {}, {}, {}
        own["_transient"] = set()  # names of buffers that state_dict leaves out

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the outputs of the inputs; each subclass defines it.

        Raises:
            NotImplementedError: it does not.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward; define forward(self, *inputs)")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return `forward` of the inputs; the message of an EngineError begins with the path of the layer at fault."""
        try:
            return self.forward(*inputs, **options)
        except EngineError as error:
            _name_layer(error, self)
            raise

    # Attributes.

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        kind = "_parameters" if isinstance(value, Parameter) else "_modules" if isinstance(value, Module) else None
        if "_parameters" not in own:
            if kind is not None:
                raise AttributeError(_uninitialised(self, f"assigns {name!r}"))
            object.__setattr__(self, name, value)
            return
        if kind is not None:
            self._check_name(name)
            self.__delete(name)
            own[kind][name] = value
            return
        for table in _TABLES:
            if name in own[table]:
                if value is not None and table != "_buffers":
                    wanted = "Parameter" if table == "_parameters" else "Module"
                    raise TypeError(
                        f"{type(self).__name__}.{name} is a {wanted}; it takes a {wanted} or None, not "
                        f"{type(value).__name__}"
                    )
                own[table][name] = value
                return
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for table in _TABLES:
            if name in own.get(table, ()):
                return own[table][name]
        if "_parameters" not in own:
            raise AttributeError(_uninitialised(self, f"has no {name!r}"))
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if not self.__delete(name):
            object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        own = self.__dict__
        return sorted({*super().__dir__(), *(name for table in _TABLES for name in own.get(table, ()))})

    def __delete(self, name: str) -> bool:
        own = self.__dict__
        own["_transient"].discard(name)
        found = False
        for part in (*(own[table] for table in _TABLES), own):
            if name in part:
                del part[name]
                found = True
        return found

    def _check_name(self, name: str) -> None:
        if not name or "." in name:
            raise KeyError(f"{name!r} is not the name of a parameter, buffer or module: it is empty or has a dot")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None keeps the name without one (a layer without bias)."""
        self._register("_parameters", name, param)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add an array that is not trained; `state_dict` has it where it is persistent."""
        self._register("_buffers", name, None if tensor is None else asarray(tensor))
        if not persistent:
            self.__dict__["_transient"].add(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a module by name; None keeps the name without one."""
        self._register("_modules", name, module)

    add_module = register_module

    def _register(self, table: str, name: str, value: Any) -> None:
        own = self.__dict__
        if "_parameters" not in own:
            raise AttributeError(_uninitialised(self, f"registers {name!r}"))
        self._check_name(name)
        if hasattr(self, name) and name not in own[table]:
            raise KeyError(f"{type(self).__name__} has an attribute {name!r} already")
        own[table][name] = value

    # Parts.

    def named_modules(self, memo: set[int] | None = None, prefix: str = "",
                      remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:  # fmt: skip
        """Yield this module and all modules below it with their paths ("features.0"); this one's path is ""."""
        seen: set[int] = set() if memo is None else memo
        if id(self) in seen:
            return
        if remove_duplicate:
            seen.add(id(self))
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(seen, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all modules below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the direct parts with their names."""
        for name, module in self._modules.items():
            if module is not None:
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield the direct parts."""
        for _, module in self.named_children():
            yield module

    def get_submodule(self, target: str) -> Module:
        """Return the module at a path ("features.0").

        Raises:
            AttributeError: the path does not exist.
        """
        module: Module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(f"{type(self).__name__} has no module {target!r}")
            module = found
        return module

    def named_parameters(self, prefix: str = "", recurse: bool = True,
                         remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:  # fmt: skip
        """Yield the parameters with their paths ("features.0.weight"), a shared one once."""
        yield from self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix: str = "", recurse: bool = True,
                      remove_duplicate: bool = True) -> Iterator[tuple[str, ndarray]]:  # fmt: skip
        """Yield the buffers with their paths, a shared one once."""
        yield from self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[ndarray]:
        """Yield the buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def _named(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        owners = self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        seen: set[int] = set()
        for path, owner in owners:
            for name, value in owner.__dict__[table].items():
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    # State.

    def state_dict(self) -> dict[str, ndarray]:
        """Return copies of all parameters and persistent buffers by path.

        Departure: PyTorch's dictionary shares memory with the module, so that a later step changes it.
        """
        return {path: array.copy() for path, array in self._state().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Copy values into the parameters and buffers; return the missing and the unexpected paths.

        Values take the dtype of their parameter. Nothing changes where an error is raised.

        Raises:
            ModelError: shapes differ, or with `strict` paths are missing or unexpected; the message names each.
        """
        own = self._state()
        given = {path: asarray(value) for path, value in state_dict.items()}
        missing = [path for path in own if path not in given]
        unexpected = [path for path in given if path not in own]
        problems = []
        if strict and missing:
            problems.append(f"missing: {', '.join(missing)}")
        if strict and unexpected:
            problems.append(f"unexpected: {', '.join(unexpected)}")
        problems += [
            f"{path} has shape {given[path].shape}; the module's has {array.shape}"
            for path, array in own.items()
            if path in given and given[path].shape != array.shape
        ]
        if problems:
            raise ModelError(f"state of {type(self).__name__} cannot be loaded: {'; '.join(problems)}")
        for path, owner in self.named_modules(remove_duplicate=False):
            start = f"{path}." if path else ""
            for name, part in owner.__dict__["_parameters"].items():
                if part is not None and start + name in given:
                    part.data = given[start + name].astype(part.dtype)
            for name in owner.__dict__["_buffers"]:
                if start + name in given and start + name in own:
                    owner.__dict__["_buffers"][name] = given[start + name].astype(own[start + name].dtype)
        return missing, unexpected

    def _state(self) -> dict[str, ndarray]:
        """Return the arrays themselves by path."""
        state: dict[str, ndarray] = {}
        for path, owner in self.named_modules(remove_duplicate=False):
            start = f"{path}." if path else ""
            own = owner.__dict__
            state |= {start + name: part.data for name, part in own["_parameters"].items() if part is not None}
            state |= {
                start + name: array
                for name, array in own["_buffers"].items()
                if array is not None and name not in own["_transient"]
            }
        return state

    # Modes.

    def train(self, mode: bool = True) -> Self:
        """Set training mode in all modules; return this one."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set the mode of inference in all modules; return this one."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze all parameters, or train them; return this module."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def to(self, dtype: str) -> Self:
        """Convert all parameters and buffers of floats to a float dtype; return this module.

        Raises:
            DTypeError: the dtype is not a float.
        """
        if dtype not in FLOATS:
            raise DTypeError(f"{type(self).__name__}.to({dtype!r}); it takes {', '.join(sorted(FLOATS))}")
        for parameter in self.parameters():
            if parameter.dtype in FLOATS:
                parameter.data = parameter.data.astype(dtype)
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.dtype in FLOATS:
                    module._buffers[name] = buffer.astype(dtype)
        return self

    def double(self) -> Self:
        """Convert all parameters and buffers of floats to float64; return this module."""
        return self.to("float64")

    def float(self) -> Self:
        """Convert all parameters and buffers of floats to float32; return this module."""
        return self.to("float32")

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call a function with each module, parts before their owner; return this module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # Text.

    def extra_repr(self) -> str:
        """Return the arguments that `repr` shows."""
        return ""

    def _parts_repr(self) -> list[str]:
        return [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]

    def __repr__(self) -> str:
        name, arguments, parts = type(self).__name__, self.extra_repr(), self._parts_repr()
        if not parts:
            return f"{name}({arguments})"
        lines = [*([arguments] if arguments else []), *parts]
        return f"{name}(\n" + "".join(f"  {line}\n" for line in lines) + ")"


# Module has a subclass from the start: CPython makes a class's table of subclasses with the first one. If a class of a
# task were the first in a VM, the table would stay when the task ends.
class Identity(Module):
    """Returns its input; other arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _ = args, kwargs
        super().__init__()

    def forward(self, input: Any) -> ndarray:
        result: ndarray = input
        return result


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


def _uninitialised(module: Module, act: str) -> str:
    name = type(module).__name__
    return f"{name} {act} before its parts exist: call super().__init__() first in {name}.__init__"


def _name_layer(error: EngineError, module: Module) -> None:
    """Begin the error's message with the path, below `module`, of the layer that raised it."""
    layer, reason = error.__dict__.setdefault("_raised_by", (module, str(error)))
    for path, part in module.named_modules():
        if part is layer:
            kind = type(layer).__name__
            error.args = (f"layer {path!r} ({kind}): {reason}" if path else f"{kind}: {reason}",)
            return
