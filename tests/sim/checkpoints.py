"""Made checkpoints: files as PyTorch wrote them before 1.6, without PyTorch, and a small EfficientNet-Lite0."""

import collections
import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
SIZES = {"short": 2, "int": 4, "long": 4}


class Named:
    """A global of a pickle by its name, so that no module of it is needed to write one."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Writer(pickle._Pickler):
    """A pickler that writes tensors as PyTorch does: a storage by a persistent id, the rest by a call."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)
    write: Callable[[bytes], None]

    def save_named(self, one: Named) -> None:
        self.write(pickle.GLOBAL + f"{one.module}\n{one.name}\n".encode())

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None

    dispatch[Named] = save_named


class Storage:
    def __init__(self, kind: str, key: str, count: int, view: Any = None) -> None:
        self.pid = ("storage", Named("torch", kind), key, "cpu", count, view)


class Tensor:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return (_rebuild, self.arguments)


def _rebuild(*_: Any) -> None:
    """Stand for torch._utils._rebuild_tensor_v2; `dumps` puts that name in its place."""


def dumps(value: Any) -> bytes:
    file = io.BytesIO()
    Writer(file, 2).dump(value)
    return file.getvalue().replace(f"{__name__}\n_rebuild\n".encode(), b"torch._utils\n_rebuild_tensor_v2\n")


def tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return Tensor(storage, offset, shape, strides, False, collections.OrderedDict())


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[k + 1 :], dtype=np.int64)) for k in range(len(shape)))


def checkpoint(arrays: dict[str, NDArray[Any]], tensors: Any = None) -> bytes:
    """Return a checkpoint of these arrays, or of other `tensors` over their storages."""
    kinds = {"f": "FloatStorage", "i": "LongStorage"}
    storages = {name: Storage(kinds[one.dtype.kind], name, one.size) for name, one in arrays.items()}
    if tensors is None:
        tensors = {name: tensor(storages[name], 0, one.shape, strides_of(one.shape)) for name, one in arrays.items()}
    file = io.BytesIO()
    for part in (MAGIC, PROTOCOL, SIZES, collections.OrderedDict(tensors), list(arrays)):
        file.write(dumps(part))
    for one in arrays.values():
        file.write(struct.pack("<q", one.size) + one.tobytes())
    return file.getvalue()


# Kernel, stride and widening of each block of EfficientNet-Lite0.
BLOCKS = (
    [(3, 1, 1)] + [(3, 2, 6), (3, 1, 6)] + [(5, 2, 6), (5, 1, 6)] + [(3, 2, 6)] + 2 * [(3, 1, 6)] + 3 * [(5, 1, 6)]
    + [(5, 2, 6)] + 3 * [(5, 1, 6)] + [(3, 1, 6)]
)  # fmt: skip


def lite0(*, channels: int = 4, classes: int = 1000) -> dict[str, NDArray[Any]]:
    """Return weights with the names of EfficientNet-Lite0 in PyTorch, narrow ones."""
    rng = np.random.default_rng(8)
    made: dict[str, NDArray[Any]] = {}

    def conv(name: str, norm: str, results: int, inputs: int, kernel: int) -> None:
        spread = (2 / (inputs * kernel * kernel)) ** 0.5
        made[f"{name}.weight"] = rng.normal(0, spread, (results, inputs, kernel, kernel)).astype(np.float32)
        made[f"{norm}.weight"] = rng.uniform(0.5, 1.5, results).astype(np.float32)
        made[f"{norm}.bias"] = rng.normal(0, 0.3, results).astype(np.float32)
        made[f"{norm}.running_mean"] = rng.normal(0, 0.3, results).astype(np.float32)
        made[f"{norm}.running_var"] = rng.uniform(0.5, 1.5, results).astype(np.float32)

    conv("_conv_stem", "_bn0", channels, 3, 3)
    for number, (kernel, _, widening) in enumerate(BLOCKS):
        wide, name = channels * widening, f"_blocks.{number}"
        if widening > 1:
            conv(f"{name}._expand_conv", f"{name}._bn0", wide, channels, 1)
        conv(f"{name}._depthwise_conv", f"{name}._bn1", wide, 1, kernel)
        conv(f"{name}._project_conv", f"{name}._bn2", channels, wide, 1)
    conv("_conv_head", "_bn1", 2 * channels, channels, 1)
    made["_fc.weight"] = rng.normal(0, 1, (classes, 2 * channels)).astype(np.float32)
    made["_fc.bias"] = rng.normal(0, 1, classes).astype(np.float32)
    return made
