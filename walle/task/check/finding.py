"""One finding of a task's check."""

import dataclasses
from typing import Any, Literal

MAX_FINDINGS = 100  # findings of one task

type Code = Literal[  # docs/task-check.md says what each means
    "attribute", "batch", "builtin", "bundle", "config", "ctx-attribute", "event-field", "event-id", "event-line",
    "files", "import", "model", "no-migrate", "no-phase", "phase-generator", "phase-name", "phase-signature",
    "resource", "section", "simulation", "syntax", "task-name", "toml-syntax", "topic", "trigger", "trigger-event",
    "unknown-key",
]  # fmt: skip
type Level = Literal["error", "warning"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a task at a place of a file; `line` and `column` count from 1, and are 0 where they are not known.

    A task with an `error` cannot be released or does not do what it says; a `warning` is likely to be a mistake.
    `file` is in the task's folder, unless `is_elsewhere`: then it is the path of a log.
    """

    file: str
    line: int
    column: int
    code: Code
    message: str
    level: Level = "error"
    is_elsewhere: bool = False

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return f"{place}: {self.level}: {self.message} [{self.code}]"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
