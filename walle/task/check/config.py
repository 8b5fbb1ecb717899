"""Check of task.toml: all of its faults, where its parser stops at the first."""

import difflib
from collections.abc import Mapping
from typing import Any

from walle.task.check.finding import MAX_FINDINGS, Code, Finding
from walle.task.format.config import TaskConfig, TaskConfigError, load_config

_CODES: Mapping[str, Code] = {"task": "task-name", "trigger": "trigger", "files": "files"}
# What stands in for a required section that is missing or wrong, so that the others are checked too.
_STAND_INS: Mapping[str, Mapping[str, Any]] = {"task": {"name": "task"}, "trigger": {"sequence": ["*"]}}


def check_config(data: bytes, file: str) -> tuple[TaskConfig | None, list[Finding]]:
    """Return the configuration in `data` and its faults; with faults, it lacks the entries that are wrong.

    The configuration is None if the file is not TOML.
    """
    try:
        document = load_config(data, file)
    except TaskConfigError as error:
        return None, [config_finding(error.placed(data), "toml-syntax")]
    found: list[Finding] = []
    while True:
        try:
            return TaskConfig.of_document(document, file), found
        except TaskConfigError as error:
            code: Code = "unknown-key" if error.unknown else _CODES.get(error.section, "config")
            found.append(config_finding(error.placed(data), code))
            if len(found) == MAX_FINDINGS:
                return None, found
            _leave_out(document, error)


def _leave_out(document: dict[str, Any], error: TaskConfigError) -> None:
    """Remove from the document what the error is about, so that the next parse comes further."""
    table = document.get(error.table)
    if error.unknown and error.section:
        assert isinstance(table, dict)
        value = table.pop(error.unknown)
        for required in _STAND_INS.get(error.section, ()):  # a misspelt one is not missing
            if difflib.get_close_matches(error.unknown, [required]):
                table.setdefault(required, value)
    elif error.table in _STAND_INS:
        document[error.table] = dict(_STAND_INS[error.table])
    elif isinstance(table, dict) and error.entry in table and len(table) > 1:
        del table[error.entry]
    else:
        del document[error.table]


def config_finding(error: TaskConfigError, code: Code) -> Finding:
    """Return an error of task.toml as a finding."""
    return Finding(file=error.where, line=error.line, column=error.column, code=code, message=error.what)
