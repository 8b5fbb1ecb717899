"""Check of the files that task.toml names, and of the models among them."""

import difflib
import fnmatch
from collections.abc import Iterator, Mapping

from walle.engine_ext.model import MAGIC
from walle.engine_ext.session import Module
from walle.errors import EngineError
from walle.task.check.finding import Finding
from walle.task.format.bundle import CONFIG_FILE
from walle.task.format.config import TaskConfig
from walle.task.format.large_file import LargeFile
from walle.task.format.toml_places import KeyPath

_MAX_SHOWN = 5
_SIMILAR = 0.8  # likeness of whole paths, which have a folder in common
_FIRST_BYTES = 64  # bytes of a large file that are read
_ONNX_FIRST = 0x08  # a protobuf's field 1 as a number, which is an ONNX model's ir_version
_MAX_IR_VERSION = 0x20

type Places = Mapping[KeyPath, tuple[int, int]]


def check_files(
    config: TaskConfig, places: Places, files: Mapping[str, bytes], large: Mapping[str, LargeFile]
) -> Iterator[Finding]:
    """Yield the files that task.toml names and the task lacks, and the models that are none."""
    paths = [path for path in (*files, *large) if path != CONFIG_FILE]
    for path in config.files:
        if path not in files and path not in large:
            yield _finding(places.get(("files", path), (0, 0)), f"[files] {path!r} {_missing(path, paths)}")
    events = config.simulation_events
    if events and events not in files and events not in large:
        place = places.get(("simulation", "events"), (0, 0))
        yield _finding(place, f"[simulation] events: file {events!r} {_missing(events, paths)}")
    for path in sorted({*files, *large}):
        if path.endswith(".walle") and (fault := _model_fault(path, files, large)):
            yield Finding(file=path, line=0, column=0, code="model", message=fault)


def _missing(path: str, paths: list[str]) -> str:
    """Return what is wrong with a path that is not a file of the task."""
    if matches := sorted(fnmatch.filter(paths, path)) if any(one in path for one in "*?[") else []:
        return f"is a pattern, and [files] has no patterns; list each file: {_listed(matches)}"
    if any(one in path for one in "*?"):
        return "is a pattern, and [files] has no patterns; it would match no file"
    if inside := sorted(one for one in paths if one.startswith(path.rstrip("/") + "/")):
        return f"is a folder; list each file: {_listed(inside)}"
    same_kind = [one for one in paths if one.rpartition(".")[2] == path.rpartition(".")[2]]
    close = difflib.get_close_matches(path, same_kind, n=1, cutoff=_SIMILAR)
    return "does not exist" + (f"; did you mean {close[0]}?" if close else "; add the file, or remove the line")


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _MAX_SHOWN} more" if len(paths) > _MAX_SHOWN else ""
    return ", ".join(paths[:_MAX_SHOWN]) + more


def _model_fault(path: str, files: Mapping[str, bytes], large: Mapping[str, LargeFile]) -> str:
    """Return why the engine would not load a model, "" if it would, or if its bytes are not here."""
    data, is_whole = files.get(path), True
    if data is None:
        place = large[path].path
        if place is None or not place.is_file():
            return ""
        with place.open("rb") as file:
            data, is_whole = file.read(_FIRST_BYTES), False
    if not data.startswith(MAGIC):
        if len(data) > 2 and data[0] == _ONNX_FIRST and 0 < data[1] < _MAX_IR_VERSION:
            source = path.removesuffix(".walle") + ".onnx"
            how = f"mv {path} {source} && walle model convert {source} {path}"
            return f"is an ONNX model by another name; convert it: {how}"
        return f"is not a .walle model: it begins with other bytes; make one: walle model convert MODEL.onnx {path}"
    if not is_whole:
        return ""
    try:
        Module(data)  # Module reads the graph, and plans nothing before its first run
    except EngineError as error:
        return f"cannot be loaded: {error}"
    return ""


def _finding(place: tuple[int, int], message: str) -> Finding:
    line, column = place
    return Finding(file=CONFIG_FILE, line=line, column=column, code="files", message=message)
