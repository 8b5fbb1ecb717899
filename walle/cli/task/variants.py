"""Change of a task's folder by which its version has variants: files of `resources/`, and tables of task.toml."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle.base.durable_file import make_folders, write_file
from walle.cli.task.folder import TaskFolderError


@dataclass(frozen=True, slots=True)
class NewVariant:
    """A variant that replaces one file of the task by `contents`, on the devices of a rule."""

    name: str
    rule: str
    contents: bytes


def write_variants(folder: Path, path: str, own: bytes | None, variants: list[NewVariant]) -> list[str]:
    """Write the variants of a task's file, and `own` as the file itself unless it is None; return the changed paths.

    Variants that replaced this file alone before are removed, and so are their files; all else of task.toml stays.

    Raises:
        TaskFolderError: task.toml is written in a way that this cannot change. Nothing is changed then.
    """
    config = folder / "task.toml"
    text = config.read_text("utf-8")
    before = tomllib.loads(text)
    kept: dict[str, Any] = dict(before.get("variants", {}))
    gone = {name: str(table["files"][path]) for name, table in kept.items() if _replaces_only(table, path)}
    for name in gone:
        text = _without_table(text, name)
        del kept[name]
    if clash := sorted(kept.keys() & {one.name for one in variants}):
        raise TaskFolderError(config, f"has a variant {clash[0]} of other files; rename it, or the goal")
    paths = {one.name: _path_of(path, one.name) for one in variants}
    for one in variants:
        rule, other = json.dumps(one.rule), json.dumps({path: paths[one.name]})[1:-1].replace(": ", " = ", 1)
        text = f"{text.rstrip()}\n\n[variants.{one.name}]\nrule = {rule}\nfiles = {{ {other} }}\n"
    wanted = {name: {"rule": one.rule, "files": {path: paths[name]}} for name, one in _by_name(variants).items()}
    after = {key: value for key, value in before.items() if key != "variants"}
    if {**kept, **wanted}:
        after["variants"] = {**kept, **wanted}
    if _parsed(text) != after:
        raise TaskFolderError(config, "has variants in a form that this command cannot change; remove them by hand")
    files = {paths[one.name]: one.contents for one in variants} | ({} if own is None else {path: own})
    for place, contents in files.items():
        make_folders((folder / place).parent)
        write_file(folder / place, contents, mode=0o644)
    write_file(config, text.encode(), mode=config.stat().st_mode & 0o777)
    old = sorted({*gone.values()} - files.keys())
    for place in old:
        (folder / place).unlink(missing_ok=True)
    return [*sorted(files), *old, "task.toml"]


def _by_name(variants: list[NewVariant]) -> Mapping[str, NewVariant]:
    return {one.name: one for one in variants}


def _replaces_only(table: object, path: str) -> bool:
    return isinstance(table, dict) and isinstance(table.get("files"), dict) and [*table["files"]] == [path]


def _path_of(path: str, name: str) -> str:
    stem, dot, ending = path.rpartition(".")
    return f"{stem}-{name}.{ending}" if dot and "/" not in ending else f"{path}-{name}"


def _without_table(text: str, name: str) -> str:
    """Return the text without a table [variants.NAME] and the empty lines before it."""
    header = rf"\n*^[ \t]*\[[ \t]*variants\.\"?{re.escape(name)}\"?[ \t]*\][^\n]*\n"
    return re.sub(rf"{header}(?:(?![ \t]*\[)[^\n]*\n?)*", "\n", text, count=1, flags=re.MULTILINE)


def _parsed(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
