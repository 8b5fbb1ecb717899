"""One finding of a task's check, and the meaning of each code."""

import dataclasses
from typing import Any, Literal

MAX_FINDINGS = 100  # findings of one task

type Code = Literal[
    "attribute", "batch", "builtin", "bundle", "config", "ctx-attribute", "event-field", "event-id", "event-line",
    "files", "import", "model", "no-migrate", "no-phase", "no-train", "phase-context", "phase-generator",
    "phase-name", "phase-signature", "resource", "section", "simulation", "syntax", "task-name",
    "toml-syntax", "topic", "trigger", "trigger-event", "unknown-key",
]  # fmt: skip
type Level = Literal["error", "warning"]

# Markdown, for the reference page docs/reference/findings.md. Where a name is wrong, the message has the nearest one.
MEANINGS: dict[Code, str] = {
    "toml-syntax": "task.toml is not TOML, or too large",
    "unknown-key": "a section or key of task.toml that does not exist",
    "task-name": "a missing or wrong name in [task]",
    "trigger": "a missing or wrong value in [trigger]",
    "files": "a pattern or a folder under [files], or a file that task.toml names and the task does not have",
    "config": "a missing or wrong value in another section",
    "model": "a `.walle` file that the engine cannot load, such as an ONNX model by another name",
    "resource": "`ctx.session`, `ctx.resource` or `ctx.exclusive` with a name that the task does not have",
    "section": "`ctx.history`, `ctx.state`, `ctx.checkpoint`, `ctx.escalate` or `ctx.features` without its section in "
    "task.toml; a warning for options of `[state]` if no code uses `ctx.state`",
    "topic": "warning: `ctx.store.query` of a topic that the task never puts",
    "trigger-event": "no event of the log, or of the simulation, has a trigger id; without events a warning if the id "
    "resembles a basic kind of event",
    "event-line": "warning: a line of these events is skipped, and why",
    "event-id": "warning: an event id in the code (`named`, `key_by`, `ctx.history`) that no event has, and that "
    "resembles one that some have",
    "event-field": "a key that the trigger does not have, or a field that an event does not have",
    "simulation": "the simulation events cannot be read",
    "syntax": "a module does not compile; a warning if the compiler only warns",
    "import": "an import that a task may not have, with what to use instead (`numpy`: `walle.np`; `torch`: "
    "`ctx.session`)",
    "attribute": "a name that `walle.np`, `walle.cv`, `walle.nn` or `walle.optim` does not have",
    "ctx-attribute": "a name that `ctx`, or its `store`, `log`, `events` or `recent`, does not have",
    "builtin": "a builtin that a task does not have (`open`), with what to use instead",
    "phase-name": "a function that nothing calls, with a name similar to a missing phase of main.py (`exectue`)",
    "phase-signature": "a phase that cannot be called with its arguments, or that is `async`",
    "phase-context": "`ctx.state`, `ctx.recent`, `ctx.escalate` or `ctx.features` in `train`, or an assignment of "
    "`ctx.checkpoint` in another phase",
    "phase-generator": "a phase that yields: its result is not plain data",
    "batch": "`execute_batch` without `execute`; a warning if it is never called, or if `max_batch` is set without it",
    "no-phase": "main.py has no phase",
    "no-migrate": "main.py has no `migrate`, which [state] calls",
    "no-train": "main.py has no `train`, which [training] calls",
    "bundle": "what else the cloud refuses: files that are missing, not listed, or too large",
}


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
