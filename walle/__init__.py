"""Walle ships machine-learning tasks to fleets of devices and lets devices and cloud work on them together.

Names are loaded when they are first used, so that a device, and each task VM in it, imports only what it runs.
"""

import importlib

TYPE_CHECKING = False  # not from typing, whose import would be a third of a task VM's start
if TYPE_CHECKING:
    from walle.engine_ext.onnx_import import convert
    from walle.engine_ext.operators import OperatorInfo, operators
    from walle.engine_ext.session import Module, Session, backends
    from walle.engine_ext.session_info import BackendInfo, Plan, TensorInfo
    from walle.errors import WalleError

__version__ = "0.1.0"

_HOMES = {
    "BackendInfo": "walle.engine_ext.session_info",
    "Module": "walle.engine_ext.session",
    "OperatorInfo": "walle.engine_ext.operators",
    "Plan": "walle.engine_ext.session_info",
    "Session": "walle.engine_ext.session",
    "TensorInfo": "walle.engine_ext.session_info",
    "WalleError": "walle.errors",
    "backends": "walle.engine_ext.session",
    "convert": "walle.engine_ext.onnx_import",
    "operators": "walle.engine_ext.operators",
}
_MODULES = frozenset({"cv", "np", "onnx_backend", "vm"})

__all__ = [
    "BackendInfo",
    "Module",
    "OperatorInfo",
    "Plan",
    "Session",
    "TensorInfo",
    "WalleError",
    "__version__",
    "backends",
    "convert",
    "cv",
    "np",
    "onnx_backend",
    "operators",
    "vm",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"walle.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'walle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
