"""Change of a task's folder by which its version has variants: files of `resources/`, and tables of task.toml."""

import json
import re
import tomllib
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

    Variants that replaced this file alone before are removed, and so are their files if nothing else names them; all
    else of task.toml stays.

    Raises:
        TaskConfigError: task.toml is wrong.
        TaskFolderError: it is written in a way that this cannot change, or has such a variant of other files. Nothing
            is changed then.
    """
    from walle.task.format.config import TaskConfig

    place = folder / "task.toml"
    config = TaskConfig.parse(place.read_bytes(), str(place))  # checks every path
    kept = [one for one in config.variants if [*one.files] != [path]]
    removed = [one for one in config.variants if [*one.files] == [path]]
    text = place.read_bytes().decode()
    for one in removed:
        text = _without_table(text, one.name)
    if clash := sorted({one.name for one in kept} & {one.name for one in variants}):
        raise TaskFolderError(place, f"has a variant {clash[0]} of other files; rename it, or the goal")
    paths = {one.name: _path_of(path, one.name) for one in variants}
    for new in variants:
        rule, other = json.dumps(new.rule), f"{json.dumps(path)} = {json.dumps(paths[new.name])}"
        text = f"{text.rstrip()}\n\n[variants.{new.name}]\nrule = {rule}\nfiles = {{ {other} }}\n"
    tables = {one.name: {"rule": one.rule, "files": dict(one.files)} for one in kept}
    tables |= {new.name: {"rule": new.rule, "files": {path: paths[new.name]}} for new in variants}
    wanted = {key: value for key, value in _parsed(place.read_bytes().decode()).items() if key != "variants"}
    if _parsed(text) != (wanted | {"variants": tables} if tables else wanted):
        raise TaskFolderError(place, "has variants in a form that this command cannot change; remove them by hand")
    files = {paths[one.name]: one.contents for one in variants} | ({} if own is None else {path: own})
    for name, contents in files.items():
        make_folders((folder / name).parent)
        write_file(folder / name, contents, mode=0o644)
    write_file(place, text.encode(), mode=place.stat().st_mode & 0o777)
    used = {*files, *config.files, *(other for one in kept for other in one.files.values())}
    unused = sorted({other for one in removed for other in one.files.values()} - used)
    for name in unused:
        (folder / name).unlink(missing_ok=True)
    return [*sorted(files), *unused, "task.toml"]


def _path_of(path: str, name: str) -> str:
    stem, dot, ending = path.rpartition(".")
    return f"{stem}-{name}.{ending}" if dot and "/" not in ending else f"{path}-{name}"


def _without_table(text: str, name: str) -> str:
    """Return the text without a table [variants.NAME]; comments behind its last key stay."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"[ \t]*\[[ \t]*variants[ \t]*\.[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*\]")
    first = next((at for at, line in enumerate(lines) if header.match(line)), None)
    if first is None:
        return text
    end = next((at for at in range(first + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return "".join(lines[:first] + lines[end:])


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
