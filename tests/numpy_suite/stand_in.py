"""A module in NumPy's place in its own test files: walle.np's names, and a stand-in for each that it does not have.

NumPy's tests expect float64 where no dtype is given, and walle.np gives float32 by design. Functions that create arrays
from Python floats therefore make float64 here, so that the tests show other differences.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy

import walle.np as walle_np
from tests.numpy_suite import comparison
from walle.engine_ext.errors import ShapeError


class NotPresent(Exception):  # noqa: N818 -- a finding, not a failure
    """A test uses a name that walle.np does not have."""


is_collecting = True  # while a file is imported, a name that is missing stops nothing


class Missing:
    """A name that walle.np does not have: any use in a test raises NotPresent."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name
        self.__name__ = name

    def _use(self) -> Missing:
        if not is_collecting:
            raise NotPresent(self.name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Missing:
        return self._use()

    def __getattr__(self, name: str) -> Any:
        if name == "__subclasses__":
            return list
        if name.startswith("__") or name in ("pytestmark", "_pytestfixturefunction"):
            raise AttributeError(name)
        self._use()
        return Missing(f"{self.name}.{name}")

    def __getitem__(self, key: Any) -> Any:
        self._use()
        return Missing(f"{self.name}[]")

    def __iter__(self) -> Iterator[Any]:
        self._use()
        return iter(())

    def __len__(self) -> int:
        self._use()
        return 0

    def __int__(self) -> int:
        self._use()
        return 0

    def _combine(self, other: object) -> Missing:
        return self._use()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _combine
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __or__ = __ror__ = __and__ = __rand__ = _combine
    __neg__ = _use

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        self._use()
        return (object,)


class Tolerant:
    """A function whose errors stop nothing while a file is imported."""

    def __init__(self, name: str, function: Any) -> None:
        self.__name__ = name
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_collecting:
            return self._function(*args, **kwargs)
        try:
            return self._function(*args, **kwargs)
        except Exception:
            return Missing(self.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    # Tables of functions are made while a file is imported, and are asked by the function itself in a test.
    def __hash__(self) -> int:
        return hash(self._function)

    def __eq__(self, other: object) -> bool:
        return bool(self._function == (other._function if isinstance(other, Tolerant) else other))


class _ArrayType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, walle_np.ndarray)

    def __getattr__(cls, name: str) -> Any:
        return getattr(walle_np.ndarray, name)


class ndarray(metaclass=_ArrayType):  # noqa: N801
    """walle.np.ndarray, which is final: classes derived from it are refused when they are created."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotPresent("subclass or constructor of ndarray")


def _wide(dtype: Any) -> Any:
    return "float64" if dtype is builtins.float else dtype


def _random64(function: Any) -> Any:
    """Return the function of walle.np.random; what it draws as float32 comes as float64, which NumPy's tests expect."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result.astype("float64") if getattr(result, "dtype", None) == "float32" else result

    return draw


def _float64(name: str) -> Callable[..., Any]:
    function = getattr(walle_np, name)

    def create(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_wide(one) for one in args)
        kwargs = {key: _wide(one) for key, one in kwargs.items()}
        result = function(*args, **kwargs)
        has_dtype = "dtype" in kwargs or (len(args) > _DTYPE_AT[name] and args[_DTYPE_AT[name]] is not None)
        is_array = bool(args) and name in _CONVERSIONS and isinstance(args[0], walle_np.ndarray | numpy.ndarray)
        if has_dtype or is_array or not isinstance(result, walle_np.ndarray) or result.dtype != "float32":
            return result
        return function(*args, **{**kwargs, "dtype": "float64"})

    return create


_CONVERSIONS = ("array", "asarray", "asanyarray", "ascontiguousarray")
_DTYPE_AT = {"array": 1, "asarray": 1, "asanyarray": 1, "ascontiguousarray": 1, "zeros": 1, "ones": 1, "empty": 1,
             "full": 2, "arange": 3, "linspace": 5, "logspace": 5, "geomspace": 4, "eye": 3, "identity": 1,
             "tri": 3}  # fmt: skip
_CLASSES = ("dtype", "finfo", "iinfo")  # names of these classes may be called with anything while a file is imported
_OWN: dict[str, Any] = {
    "typecodes": {
        "All": "?bhilqBHILQefd", "AllInteger": "bhilqBHILQ", "AllFloat": "efd", "Float": "efd", "Integer": "bhilq",
        "UnsignedInteger": "BHILQ", "Complex": "", "Character": "", "Datetime": "",
    },
    "ndarray": ndarray,
    "testing": comparison,
    "__version__": numpy.__version__,
    "sctypes": {"float": [walle_np.float16, walle_np.float32, walle_np.float64],
                "int": [walle_np.int8, walle_np.int16, walle_np.int32, walle_np.int64],
                "uint": [walle_np.uint8, walle_np.uint16, walle_np.uint32, walle_np.uint64],
                "complex": [], "others": []},
    "AxisError": ShapeError,
    "LinAlgError": walle_np.linalg.LinAlgError,
}  # fmt: skip


class StandIn:
    """NumPy, or one of its submodules, as its tests see it."""

    def __init__(self, *modules: Any) -> None:
        self._modules = modules

    def __getattr__(self, name: str) -> Any:
        found = self._find(name)
        is_function = callable(found) and not isinstance(found, str | Missing | type)
        return Tolerant(name, found) if is_collecting and (is_function or name in _CLASSES) else found

    def _find(self, name: str) -> Any:
        if name in _OWN:
            return _OWN[name]
        if name in _DTYPE_AT:
            return _float64(name)
        if name == "exceptions":
            return StandIn(numpy.exceptions)
        if name in ("fft", "linalg", "random", "lib"):
            return StandIn(getattr(walle_np, name), walle_np)
        for module in self._modules:
            if hasattr(module, name):
                found = getattr(module, name)
                is_drawn = module is walle_np.random and callable(found) and not isinstance(found, type)
                return _random64(found) if is_drawn else found
        if name.startswith("__") and name != "__config__":
            raise AttributeError(name)
        return Missing(name)


np = StandIn(walle_np)


def __getattr__(name: str) -> Any:
    """Return a name that a test file imports from any module of NumPy."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(StandIn(walle_np, walle_np.linalg, walle_np.random, numpy.exceptions), name)
