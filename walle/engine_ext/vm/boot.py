"""Boot of a new interpreter: its boot code, the bytecode of walle's modules, and the path of the standard library.

Runs in the main interpreter. A VM neither searches for walle's modules nor compiles any, which would cost each VM
milliseconds and megabytes (an editable install may have no bytecode files, as where PYTHONDONTWRITEBYTECODE is set).
"""

import importlib.util
import itertools
import marshal
import os
import pkgutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import walle
import walle.engine_ext
from walle.engine_ext import _core

# Modules that VMs load at boot, or when tasks use them; and packages of which they may load any module.
_MODULES = (
    "__future__", "importlib", "importlib._abc", "types", "walle", "walle.cv", "walle.engine_ext",
    "walle.engine_ext.errors", "walle.engine_ext.lazy", "walle.engine_ext.session", "walle.engine_ext.session_info",
    "walle.engine_ext.vm", "walle.engine_ext.vm.bytecode", "walle.engine_ext.vm.callbacks",
    "walle.engine_ext.vm.dispatch", "walle.engine_ext.vm.imports", "walle.engine_ext.vm.reset",
    "walle.engine_ext.vm.sandbox", "walle.errors", "walle.nn", "walle.np", "walle.optim",
)  # fmt: skip
_PACKAGES = ("walle.engine_ext.np", "walle.engine_ext.cv", "walle.engine_ext.nn", "walle.engine_ext.optim")

# Runs in each new interpreter with `paths` and `find_module` (see `register_modules`) in its globals. Packages
# installed beside walle are not on the path.
_BOOT = """
import gc
import marshal
import sys

gc.disable()  # all that is created here stays; the first reset collects and enables it

class Registered:
    "Finder and loader of the modules whose bytecode the process registered."

    @staticmethod
    def find_spec(name, path=None, target=None):
        found = find_module(name)
        if found is None:
            return None
        code, file, folders = found
        spec = type(sys.__spec__)(name, Registered, origin=file, loader_state=code, is_package=folders is not None)
        if folders is not None:
            spec.submodule_search_locations = folders
        spec.has_location = True
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        code, module.__spec__.loader_state = module.__spec__.loader_state, None
        exec(marshal.loads(code), module.__dict__)

sys.path[:] = paths
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Registered)
from walle.engine_ext.vm.dispatch import Stopped, describe, dispatch, freeze, prepare, reset, start
prepare()
"""


def _stdlib_paths() -> list[str]:
    stdlib = sysconfig.get_path("stdlib")
    zipped = str(Path(stdlib).parent / f"python{sysconfig.get_config_var('py_version_nodot')}.zip")
    return [path for path in (zipped, stdlib, str(Path(stdlib) / "lib-dynload")) if Path(path).exists()]


type Modules = dict[str, tuple[bytes, str, list[str] | None]]  # name → (bytecode, file, folders of a package)

_modules: Modules = {}  # all that were registered, in order


def register_modules(*names: str) -> None:
    """Register the bytecode of these modules of walle, which the process keeps once for all VMs."""
    found: Modules = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader  # an importlib.abc.InspectLoader, or an editable install's equivalent
        folders = spec.submodule_search_locations
        if name == "walle.engine_ext":  # the native module's folder too
            folders = list(dict.fromkeys([*walle.engine_ext.__path__, str(Path(_core.__file__).parent)]))
        code = marshal.dumps(loader.get_code(name))
        found[name] = (code, spec.origin or "", None if folders is None else list(folders))
    _core.vm_register_modules(found)
    for name, module in found.items():
        _modules.setdefault(name, module)


def module_count() -> int:
    """Return the number of modules registered so far."""
    return len(_modules)


def modules(after: int = 0) -> Modules:
    """Return the registered modules, without the first `after`."""
    return dict(itertools.islice(list(_modules.items()), after, None))


def contents() -> dict[str, Any]:
    """Return what a VM host boots its interpreters with, besides the modules."""
    site = marshal.dumps(compile("", "site", "exec"))
    return {"site": site, "boot": marshal.dumps(compile(_BOOT, "<walle boot>", "exec")), "paths": _stdlib_paths()}


def counts_memory() -> bool:
    """Return whether the memory of VMs' Python objects is counted; blocks of debug allocators cannot be measured."""
    return not sys.flags.dev_mode and "PYTHONMALLOC" not in os.environ


def _all_of(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    return [package, *(f"{package}.{one.name}" for one in pkgutil.iter_modules(spec.submodule_search_locations))]


def set_up() -> None:
    """Pass the boot code and modules to the native core; once, before the first VM."""
    register_modules(*_MODULES, *(name for package in _PACKAGES for name in _all_of(package)))
    booted = contents()
    _core.vm_set_empty_site(booted["site"])
    _core.vm_set_boot(booted["boot"], booted["paths"])
