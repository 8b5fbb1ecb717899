"""Files of a task below resources/, in its VM: mapped bytes, loaded models, and the names of those that exist."""

from __future__ import annotations

from sys import modules

from walle.engine_ext import _core
from walle.engine_ext.vm import dispatch
from walle.engine_ext.vm.reset import load_shared
from walle.errors import EngineError, PipelineError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from walle.engine_ext.session import Module, Session

MODEL_ENDINGS = ("", ".walle", ".onnx")
_ROOT = "resources/"
_MAX_SHOWN = 8  # names in an error
_MAX_DEPTH = 8  # folders within folders that are searched for them

# A VM is one task's, and a task's files do not change under it: what was loaded once serves every later run.
_sessions: dict[str, Session | Module] = {}
_resources: dict[str, memoryview] = {}
_elsewhere: set[str] = set()  # paths below resources/ of the version's files that only the cloud has, on a device


class TaskContextError(PipelineError):
    """A request to `ctx` for something that does not exist, or for more than a run may put."""


def set_elsewhere(paths: Iterable[str]) -> None:
    """Set the files below resources/ that only the cloud has, on a device."""
    _elsewhere.clear()
    _elsewhere.update(paths)


def is_open(name: str) -> bool:
    """Return whether a model was loaded by this name."""
    return name in _sessions


def session(name: str) -> Session | Module:
    """Return the loaded model `resources/NAME`; `.walle` may be left out.

    Raises:
        TaskContextError: the task does not have the file; the message lists those that it has.
        EngineError: the engine cannot load it; it names the file.
    """
    if name not in _sessions:
        _sessions[name] = _open_session(name)
    return _sessions[name]


def resource(name: str) -> memoryview:
    """Return the read-only bytes of `resources/NAME`; raises TaskContextError as `session`."""
    if name not in _resources:
        _resources[name] = _open_resource(name)
    return _resources[name]


def _open_session(name: str) -> Session | Module:
    path = next((name + ending for ending in MODEL_ENDINGS if _has_resource(name + ending)), None)
    if path is None:
        for ending in MODEL_ENDINGS:
            _check_here(name + ending)
        raise TaskContextError(_no_model(name))
    if path.endswith(".onnx"):
        target = f"{_ROOT}{path.removesuffix('.onnx')}.walle"
        what = f"{_ROOT}{path} is not converted in a task's VM; convert it before"
        raise TaskContextError(f"{what}: walle model convert {_ROOT}{path} {target}")
    task = dispatch.task()
    load_model = load_shared("walle.engine_ext.session").load
    try:
        return load_model(f"{task.folder}/{_ROOT}{path}" if task.folder else task.files[_ROOT + path])  # type: ignore[no-any-return]
    except EngineError as error:
        text = str(error)
        if task.folder:
            text = text.replace(f"{task.folder}/{_ROOT}{path}", _ROOT + path)
        raise type(error)(text if _ROOT + path in text else f"model {_ROOT + path!r}: {text}") from None


def _open_resource(name: str) -> memoryview:
    _check_here(name)
    task = dispatch.task()
    if not task.folder:
        if _ROOT + _checked(name) not in task.files:
            raise TaskContextError(_no_file(name))
        return memoryview(task.files[_ROOT + name])
    try:
        with open(f"{task.folder}/{_ROOT}{_checked(name)}", "rb") as file:
            if file.seek(0, 2) == 0:
                return memoryview(b"")
            return _core.map_file(file.fileno())
    except FileNotFoundError:
        raise TaskContextError(_no_file(name)) from None
    except OSError as error:
        raise TaskContextError(f"the task's {_ROOT}{name} cannot be read: {error.strerror}") from error


def _checked(name: str) -> str:
    if not name or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise TaskContextError(f"{name!r} is not a path below resources/")
    return name


def _has_resource(name: str) -> bool:
    task = dispatch.task()
    if not task.folder:
        return _ROOT + name in task.files
    try:
        with open(f"{task.folder}/{_ROOT}{_checked(name)}", "rb"):
            return True
    except OSError:
        return False


def _check_here(name: str) -> None:
    if name in _elsewhere:
        raise TaskContextError(
            f'only the cloud has {_ROOT}{name}, which task.toml lists as "cloud"; use ctx.escalate,'
            ' or list the file as "shared"'
        )


# --- Errors that say what exists --------------------------------------------------------------------------------------


def _no_model(name: str) -> str:
    file = name if name.endswith(".walle") else f"{name}.walle"
    what = f"the task has no model {_ROOT}{file}"
    if models := [path.removesuffix(".walle") for path in _names() if path.endswith(".walle")]:
        return f"{what}; it has: {_listed(models)}"
    if networks := [path for path in _names() if path.endswith(".onnx")]:
        return f"{what}; convert its ONNX model: walle model convert {_ROOT}{networks[0]} {_ROOT}{file}"
    how = f"make one: walle model convert MODEL.onnx {_ROOT}{file}, and list it under [files] of task.toml"
    return f"{what}, and no other model; {how}"


def _no_file(name: str) -> str:
    what = f"the task has no file {_ROOT}{name}"
    if names := list(_names()):
        return f"{what}; it has: {_listed(names)}"
    return f'{what}, and no other; list it under [files] of task.toml: "{_ROOT}{name}" = "shared"'


def _names() -> list[str]:
    """Return the paths of the task's files below resources/, in order."""
    task = dispatch.task()
    if not task.folder:
        return sorted(path.removeprefix(_ROOT) for path in task.files if path.startswith(_ROOT))
    try:
        return sorted(_found(f"{task.folder}/{_ROOT}", "", _MAX_DEPTH))
    except OSError:  # a task without the folder
        return []


def _found(folder: str, prefix: str, depth: int) -> Iterator[str]:
    with modules["posix"].scandir(folder + prefix) as entries:
        for entry in entries:
            if entry.is_dir() and depth:
                yield from _found(folder, f"{prefix}{entry.name}/", depth - 1)
            else:
                yield prefix + entry.name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more
