"""`walle.toml`: the options of `walle cloud up` in a file, and `walle cloud config`, which prints what it says."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from walle.cli.cloud.options import PATHS, SECTIONS
from walle.cli.output import JsonFlag, emit
from walle.errors import ConfigError

NOT_IN_FILE = frozenset({"folder", "config", "as_json", "help"})


class CloudConfigError(ConfigError):
    """A walle.toml that cannot be used. `line` is from 1, 0 where none is known."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}" if line else f"{path}: {why}")
        self.path = path
        self.line = line
        self.why = why


def read_config(path: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a file gives, by the names of their parameters.

    `parameters` are the command's, by name: they say of which type and within which bounds each value is.

    Raises:
        CloudConfigError: the file cannot be read, a section or key is unknown, or a value is wrong.
    """
    from walle.task.format.toml_places import key_places

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CloudConfigError(path, 0, f"cannot be read: {getattr(error, 'strerror', error)}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CloudConfigError(path, 0, f"is not TOML: {error}") from error
    places = key_places(text)
    found = {}
    for section, keys in document.items():
        line = places.get((section,), (0, 0))[0]
        if section not in SECTIONS or not isinstance(keys, dict):
            raise CloudConfigError(path, line, f"unknown section {section!r}; there are {_listed(SECTIONS)}")
        for key, value in keys.items():
            line = places.get((section, key), (line, 0))[0]
            name = SECTIONS[section].get(key)
            if name is None:
                what = f"unknown key {key!r} in [{section}]; there are {_listed(SECTIONS[section])}"
                raise CloudConfigError(path, line, what)
            why = _fault(value, parameters[name])
            if why:
                raise CloudConfigError(path, line, f"{key} in [{section}] {why}")
            if name not in PATHS:  # a path in the file is relative to it
                found[name] = value
            elif value:
                found[name] = str(path.parent / value)
    return found


def load(context: typer.Context, path: Path | None) -> Path | None:
    """Make a file's values the defaults of this command's options (a callback of its option --config)."""
    if path is not None:
        parameters = {one.name: one for one in context.command.params if one.name}
        context.default_map = read_config(path, parameters)
    return path


def config(
    file: Annotated[Path, typer.Argument(help="The walle.toml to read.")],
    as_json: JsonFlag = False,
) -> None:
    """Check a walle.toml, and print every key with its value: the file's, or else the default."""
    parameters = up_parameters()
    given = read_config(file, parameters)
    values = {
        section: {key: given.get(name, _default(parameters[name])) for key, name in keys.items()}
        for section, keys in SECTIONS.items()
    }
    emit(values, as_json=as_json, text="\n".join(_toml_lines(values, given)).rstrip())


def up_parameters() -> dict[str, Any]:
    """Return the parameters of `walle cloud up` by name."""
    import typer.main

    from walle.cli.cloud.up import up

    alone = typer.Typer(add_completion=False)
    alone.command()(up)
    return {one.name: one for one in typer.main.get_command(alone).params if one.name}


def _default(parameter: Any) -> Any:
    if parameter.multiple:
        return []
    return "" if parameter.default is None else parameter.default


def _fault(value: Any, parameter: Any) -> str:
    """Return why a value is not one of an option; empty if it is."""
    default = _default(parameter)
    if parameter.multiple:
        is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return "" if is_list else "must be a list of texts"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(default, int | float):
        kinds = (int, float) if isinstance(default, float) else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return "must be a number" if isinstance(default, float) else "must be a whole number"
        least, most = parameter.min, parameter.max
        if (least is not None and value < least) or (most is not None and value > most):
            return f"must be at least {least}" if most is None else f"must be from {least} to {most}"
        return ""
    return "" if isinstance(value, str) else "must be a text"


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names)


def _toml_lines(values: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> Iterator[str]:
    for section, keys in values.items():
        yield f"\\[{section}]"  # escaped, because rich takes it for a style
        for key, value in keys.items():
            text = json.dumps(value).replace("[", "\\[")
            yield f"{key} = {text}" if SECTIONS[section][key] in given else f"{key} = {text}  # default"
        yield ""
