"""Walle ships machine-learning tasks to fleets of devices and lets devices and cloud work on them together.

Names are loaded on first use, so that a device and each of its task VMs import only what they run.
"""

import importlib

TYPE_CHECKING = False  # importing `typing` would take a third of a task VM's start-up
if TYPE_CHECKING:
    from walle.engine_ext.conversion import convert
    from walle.engine_ext.operators import OperatorInfo, operators
    from walle.engine_ext.session import Module, Session, backends
    from walle.engine_ext.session_info import BackendInfo, Plan, TensorInfo
    from walle.errors import WalleError

__version__ = "0.1.0"

_MODULE_OF = {
    "BackendInfo": "walle.engine_ext.session_info",
    "Module": "walle.engine_ext.session",
    "OperatorInfo": "walle.engine_ext.operators",
    "Plan": "walle.engine_ext.session_info",
    "Session": "walle.engine_ext.session",
    "TensorInfo": "walle.engine_ext.session_info",
    "WalleError": "walle.errors",
    "backends": "walle.engine_ext.session",
    "convert": "walle.engine_ext.conversion",
    "operators": "walle.engine_ext.operators",
}
_SUBMODULES = frozenset({"cv", "np", "onnx_backend", "search", "vm"})

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
    "search",
    "vm",
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"walle.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'walle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
