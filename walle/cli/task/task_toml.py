"""Change of a task.toml that keeps all else that its author wrote in it, comments included."""

import json
import re
import tomllib
from pathlib import Path

from walle.base.durable_file import write_file
from walle.cli.task.folder import TaskFolderError


def set_text(folder: Path, table: str, key: str, value: str) -> None:
    """Set a text in a table of a folder's task.toml; the table is made where it is missing.

    Raises:
        TaskFolderError: the key has another value, or the file is written in a way that this cannot change.
    """
    path = folder / "task.toml"
    text = path.read_text("utf-8")
    before = tomllib.loads(text)
    found = before.get(table, {}).get(key)
    if found == value:
        return
    if found is not None:
        raise TaskFolderError(path, f"{table}.{key} is {found!r}; change it by hand to {value!r}")
    line = f"{json.dumps(key) if not key.isidentifier() else key} = {json.dumps(value)}"
    text = _with_line(text, table, line)
    wanted = {**before, table: {**before.get(table, {}), key: value}}
    if _parsed(text) != wanted:
        raise TaskFolderError(path, f"this command cannot change it; write by hand into [{table}]: {line}")
    write_file(path, text.encode(), mode=path.stat().st_mode & 0o777)


def _parsed(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _with_line(text: str, table: str, line: str) -> str:
    """Return the text with a line as the first one of a table, which is put at the end where it is missing."""
    header = re.search(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][ \t]*(#.*)?$", text, re.MULTILINE)
    if header is None:
        return f"{text.rstrip()}\n\n[{table}]\n{line}\n"
    return f"{text[: header.end()]}\n{line}{text[header.end() :]}"
