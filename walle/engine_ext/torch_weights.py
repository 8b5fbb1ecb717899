"""Reader of the weights in a PyTorch checkpoint (.pth, the format before 1.6), without PyTorch.

Such a file is five pickles (a mark, the protocol's version, the writer's type sizes, the tensors, the order of their
storages) and then the storages' bytes. A pickle is a program, so that a checkpoint is hostile input. This reader knows
the instructions that a dictionary of tensors needs, and three names: OrderedDict, the function that makes a tensor and
the types of storages. Anything else is refused before it has an effect.
"""

import io
import math
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from walle.engine_ext.errors import ModelError

MAX_TENSORS = 10_000
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_STORAGES: Mapping[str, Any] = {"FloatStorage": np.float32, "LongStorage": np.int64}
_MAX_AXES = 8
_MAX_ARGUMENTS = 7  # arguments of a call; a tuple is read once and used by any number of calls
_MAX_INSTRUCTIONS = 100 * MAX_TENSORS  # instructions of a pickle; one byte of it makes an object of 64 bytes or more
_MAX_TEXT_CHARS = 1_000  # two equal texts are compared whole, by any number of instructions
_SHARING = 4  # tensors may share a storage; each is copied, if it is not contiguous there
# Those that make objects or call their methods are not among them. Some are handled here, see _Reader.
_INSTRUCTIONS = (
    "PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "GLOBAL",
    "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
)  # fmt: skip
_read_text: Callable[..., None] = pickle._Unpickler.dispatch[pickle.BINUNICODE[0]]
_DAMAGE = (
    pickle.UnpicklingError, struct.error, EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError,
    OverflowError, RecursionError,
)  # fmt: skip


class _Storage(NamedTuple):
    kind: str
    key: str
    values: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements


def read_weights(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the tensors of a checkpoint's bytes by name, float32 or int64.

    Raises:
        ModelError: it is damaged, asks for anything but tensors, or has more than MAX_TENSORS.
    """
    file = io.BytesIO(data)
    try:
        _check_head(file)
        tensors, keys = (_Reader(file).load() for _ in range(2))
        return _filled(tensors, keys, file)
    except ModelError:
        raise
    except MemoryError as error:
        raise ModelError("needs more memory than this process has") from error
    except _DAMAGE as error:  # the error's text may be as large as the file wants it
        raise ModelError(f"is a damaged PyTorch checkpoint ({type(error).__name__})") from error


def _check_head(file: io.BytesIO) -> None:
    """Check the mark and the protocol's version, each before the next is read, and skip the sizes of types."""
    for expected in (_MAGIC, _PROTOCOL):
        if _Reader(file).load() != expected:
            raise ModelError("is not a PyTorch checkpoint of the format before 1.6: its mark is missing")
    _Reader(file).load()


def _filled(tensors: Any, keys: Any, file: io.BytesIO) -> dict[str, NDArray[Any]]:
    """Return the tensors with the values of their storages, which the rest of the file has in the order of `keys`."""
    if type(tensors) is not dict or type(keys) is not list or not all(type(key) is str for key in keys):
        raise ModelError("is not a dictionary of tensors")
    if len(tensors) > MAX_TENSORS or not all(type(one) is _Tensor for one in tensors.values()):
        raise ModelError(f"is not a dictionary of at most {MAX_TENSORS} tensors")
    storages = {one.storage.key: one.storage for one in tensors.values()}
    if len(keys) != len(set(keys)) or set(keys) != storages.keys():
        raise ModelError("its tensors name other storages than it has")
    values: dict[str, NDArray[Any]] = {}
    for key in keys:
        storage, (count,) = storages[key], struct.unpack("<q", file.read(8))
        dtype = np.dtype(_STORAGES[storage.kind])
        part = file.read(count * dtype.itemsize) if 0 <= count <= file.getbuffer().nbytes else b""
        if count != storage.values or len(part) != count * dtype.itemsize:
            raise ModelError(f"storage {key[:40]!r} is cut off, or is not of the size that its tensors say")
        values[key] = np.frombuffer(part, dtype)
    found = {}
    left = _SHARING * sum(one.values for one in storages.values())
    for name, (storage, offset, shape, strides) in tensors.items():
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if storage != storages[storage.key] or not 0 < math.prod(shape) <= storage.values or last >= storage.values:
            raise ModelError(f"tensor {name[:40]!r} is empty, or reaches beyond its storage")
        left -= math.prod(shape)
        if left < 0:
            raise ModelError(f"its tensors have more than {_SHARING} times the values of its storages")
        step = values[storage.key].itemsize
        view = np.lib.stride_tricks.as_strided(values[storage.key][offset:], shape, [step * each for each in strides])
        found[name] = np.ascontiguousarray(view).reshape(shape)
    return found


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """Return a tensor's place; its further arguments are whether it has a gradient, and hooks.

    Its cost is bounded, because a pickle may call it with the same long tuples any number of times.
    """
    if type(shape) is not tuple or type(strides) is not tuple or max(len(shape), len(strides)) > _MAX_AXES:
        raise ModelError(f"a tensor's shape or strides are not tuples of at most {_MAX_AXES} numbers")
    numbers = [offset, *shape, *strides]
    if type(storage) is not _Storage or any(type(each) is not int or each < 0 for each in numbers):
        raise ModelError("a tensor's storage, offset, shape or strides are not numbers")
    if len(shape) != len(strides):
        raise ModelError(f"a tensor has {len(shape)} axes and {len(strides)} strides")
    return _Tensor(storage, offset, shape, strides)


def _dictionary() -> dict[str, Any]:
    return {}


_NAMES: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _dictionary,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    **{("torch", kind): kind for kind in _STORAGES},
}


def _counted(instruction: Callable[..., None]) -> Callable[["_Reader"], None]:
    """Return an instruction that fails once its reader has run _MAX_INSTRUCTIONS."""

    def run(reader: "_Reader") -> None:
        reader.instructions += 1
        if reader.instructions > _MAX_INSTRUCTIONS:
            raise ModelError(f"has a pickle of more than {_MAX_INSTRUCTIONS} instructions")
        instruction(reader)

    return run


class _Reader(pickle._Unpickler):
    """A pickle reader with few instructions and names. Its memory is a dictionary, which no index makes large."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    instructions = 0

    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise ModelError(f"asks for {module[:40]}.{name[:40]}, a name that a dictionary of tensors does not need")
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        mark, kind, key, _, count, view = pid
        if not all(type(each) is str for each in (mark, kind, key)) or type(count) is not int or view is not None:
            raise ModelError("has a storage without kind, key and size, or one that is a view")
        if mark != "storage" or kind not in _STORAGES or count < 0:
            raise ModelError(f"has a storage of kind {kind[:40]!r}; {', '.join(_STORAGES)} are supported")
        return _Storage(kind, key, count)

    def text(self) -> None:
        """Read a text, of which the length is bounded."""
        _read_text(self)
        if len(self.stack[-1]) > _MAX_TEXT_CHARS:
            raise ModelError(f"has a text of more than {_MAX_TEXT_CHARS} characters")

    def call(self) -> None:
        """Call one of _NAMES with the tuple of arguments on the stack."""
        arguments = self.stack.pop()
        if type(arguments) is not tuple or len(arguments) > _MAX_ARGUMENTS:
            raise ModelError(f"calls a name with what is not a tuple of at most {_MAX_ARGUMENTS} arguments")
        self.stack[-1] = self.stack[-1](*arguments)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._store([key, value])

    def set_items(self) -> None:
        self._store(self.pop_mark())

    def ignore_attributes(self) -> None:
        """Drop the attributes that a dictionary of tensors has: versions of the network's layers."""
        self.stack.pop()

    def _store(self, items: list[Any]) -> None:
        # A key of nested tuples would take exponential time to hash.
        if type(self.stack[-1]) is not dict or len(items) % 2 or not all(type(key) is str for key in items[::2]):
            raise ModelError("has a dictionary whose keys are not texts")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **{
            getattr(pickle, name)[0]: _counted(pickle._Unpickler.dispatch[getattr(pickle, name)[0]])
            for name in _INSTRUCTIONS
        },
        pickle.BINUNICODE[0]: _counted(text),
        pickle.REDUCE[0]: _counted(call),
        pickle.SETITEM[0]: _counted(set_item),
        pickle.SETITEMS[0]: _counted(set_items),
        pickle.BUILD[0]: _counted(ignore_attributes),
    }
