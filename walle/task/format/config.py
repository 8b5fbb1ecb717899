"""Parser of `task.toml`: a task's trigger, the place of its phases, its files and its limits.

```
[task]
name = "ipv"
[trigger]
sequence = ["page_exit"]
[phases]                                  # "device" where a phase is not named
execute = "device"
[files]
"resources/encoder.walle" = "shared"
"resources/large.walle" = "cloud"         # for phases that run there; no device gets it
[modules]                                 # sets of modules that tasks of the scenario share, each with its version
common = "v3"
[[exclusive]]                             # a file of each device alone, for ctx.exclusive; one table for each
name = "gallery.json"
required = false                          # true: a device without it does not get the version
max_bytes = 100_000
[variants.small]                          # other files for the devices of a rule; the first that admits one counts
rule = "ram_mb < 512"
files = { "resources/encoder.walle" = "resources/encoder-small.walle" }
[limits]                                  # the defaults are in LIMITS and POLICIES
deadline_ms = 500
queue_full = "drop-oldest"
[history]                                 # of a task that uses ctx.history; the defaults are in HistoryPolicy
days = 30
[state]                                   # of a task that uses ctx.state
version = 2
on_upgrade = "migrate"
max_bytes = 131_072
on_full = "evict"                         # "refuse" fails a run that leaves more
ttl_s = 604_800                           # of entries, by the time of the stream
prefix_ttl_s = {"cart/" = 1800}
[training]                                # of a task with train(ctx); the defaults are in TrainingPolicy
when = { charging = true }                # attributes of the device; {} for always
cpu_percent = 25
[output]                                  # where what the task returns goes; "cloud" where it is not given
destination = "device"                    # or "app": neither stored nor uploaded
[reads]                                   # topics of other tasks of the scenario that ctx.store.query may read
topics = ["browse", "browse/clicks"]      # what the task browse returns, and what it puts as clicks
[cloud]                                   # how phases run there; the defaults are in CloudPolicy
max_batch = 8                             # payloads of one execute_batch
batch_ms = 5
replicas = 2
queue = 64                                # requests that wait; beyond it the next one is refused
[tunnel]
dictionary = "resources/features.dict"    # for the task's uploads; a shared file; walle task dictionary trains it
[simulation]
events = "simulation/events.jsonl"
smoke_events = 32                         # the first of them, which devices get and play before they activate; 0: none
```
An unknown section or key is an error: a misspelt limit must not be ignored.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Self

from walle.base.names import NAME_RULE, is_name, is_version
from walle.errors import DeployError
from walle.protocol import (
    PHASES,
    ExclusiveFile,
    ProtocolError,
    QueuePolicy,
    TaskSettings,
    TriggerCondition,
    parse_exclusive,
    parse_reads,
)
from walle.protocol.task_settings import Table
from walle.task.format.toml_places import key_places
from walle.task.format.variants import Variant, VariantError, parse_variants

PLACES = ("device", "cloud", "auto")
ROUTES = ("shared", "cloud")
LIMITS = {  # key: (default, least, most)
    "deadline_ms": (500, 1, 60_000),
    "memory_mb": (32, 1, 1024),  # Python objects and engine memory together
    "log_kb": (64, 1, 1024),  # kilobytes that one run logs and prints
    "output_kb": (1024, 1, 65_536),  # size of one result, and of one payload for the cloud
    "recursion": (1000, 50, 5000),  # calls within calls
    "queue": (QueuePolicy().queue, *QueuePolicy.SIZES),  # triggers that wait for a run
}
POLICIES = {key: (getattr(QueuePolicy(), key), choices) for key, choices in QueuePolicy.CHOICES.items()}
MAX_CONFIG_BYTES = 64 * 1024
_MAX_LINE_DOTS = 500  # the parser takes the square of a dotted key's parts: 12 s of CPU time for 64 KB of them
MAX_FILES = 1000
MAX_MODULE_SETS = 8
_SECTIONS = (
    *("task", "trigger", "phases", "files", "variants", "modules", "exclusive", "limits"),
    *(*TaskSettings.TABLES, "reads", "tunnel", "simulation"),
)
DEFAULT_SMOKE_EVENTS = 32
MAX_SMOKE_EVENTS = 256
_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")  # place in tomllib's messages


class TaskConfigError(DeployError):
    """An invalid task.toml. `section` and `key` are empty where the error is in the whole file or section.

    `unknown` is the section or key of the file that does not exist in task.toml, empty for other errors. `line` and
    `column` count from 1, and are 0 where the place is not known.
    """

    def __init__(
        self, where: str, section: str, key: str, reason: str, *, unknown: str = "", line: int = 0, column: int = 0
    ) -> None:
        place = f"[{section}] {key}".strip() if section else ""
        what = f"{place} {reason}" if place else reason
        super().__init__(f"{where}:{line}: {what}" if line else f"{where}: {what}")
        self.where = where
        self.section = section
        self.key = key
        self.reason = reason
        self.unknown = unknown
        self.what = what
        self.line = line
        self.column = column

    @property
    def table(self) -> str:
        """The section that the error is in, where the file has it; the unknown one if that is the error."""
        return self.section or self.unknown

    @property
    def entry(self) -> str:
        """The key of that section that the error is in: of `where.is` and `sequence[1]` the first part."""
        if not self.section:
            return ""
        return self.unknown or (self.key if self.section == "files" else re.split(r"[.\[]", self.key)[0])

    def placed(self, data: bytes) -> "TaskConfigError":
        """Return this error with the place of its section or key in `data`, the file."""
        if self.line:
            return self
        places = key_places(data.decode(errors="replace"))
        line, column = places.get((self.table, self.entry)) or places.get((self.table,)) or (0, 0)
        return TaskConfigError(
            self.where, self.section, self.key, self.reason, unknown=self.unknown, line=line, column=column
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(TaskSettings):
    """A checked task.toml. `phases`, `limits` and `policies` are complete."""

    name: str
    files: Mapping[str, str]  # path in the tree → route
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)  # set of shared modules → version
    simulation_events: str = ""  # path in the tree, empty if the task has none
    smoke_events: int = DEFAULT_SMOKE_EVENTS
    variants: tuple[Variant, ...] = ()

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Return the configuration in `data`; `where` is the file's name in errors.

        Raises:
            TaskConfigError: not TOML, a part missing, unknown or out of range.
        """
        try:
            return cls.of_document(load_config(data, where), where)
        except TaskConfigError as error:
            raise error.placed(data) from error

    @classmethod
    def of_document(cls, document: Mapping[str, Any], where: str) -> Self:
        """Return the configuration in a parsed file; raises as `parse`, without places."""
        sections = {name: _Section(where, name, value) for name, value in document.items() if name != "exclusive"}
        _refuse_unknown(where, "", "section", sections, _SECTIONS)
        task = _need(sections, where, "task").only("name")
        name = task.text("name")
        if not is_name(name):
            raise task.error("name", f"must be {NAME_RULE}; is {name!r}")
        trigger = _trigger(_need(sections, where, "trigger"))
        phases = dict.fromkeys(PHASES, "device")
        if "phases" in sections:
            section = sections["phases"].only(*PHASES)
            phases.update({phase: section.choice(phase, PLACES) for phase in section.values})
        limits = {key: default for key, (default, _, _) in LIMITS.items()}
        policies = {key: str(default) for key, (default, _) in POLICIES.items()}
        if "limits" in sections:
            section = sections["limits"].only(*LIMITS, *POLICIES)
            for key in section.values:
                if key in LIMITS:
                    limits[key] = section.integer(key, *LIMITS[key][1:])
                else:
                    policies[key] = section.choice(key, POLICIES[key][1])
        events, smoke_events = "", DEFAULT_SMOKE_EVENTS
        if "simulation" in sections:
            section = sections["simulation"].only("events", "smoke_events")
            events = section.path("events", section.text("events"))
            if "smoke_events" in section.values:
                smoke_events = section.integer("smoke_events", 0, MAX_SMOKE_EVENTS)
        files = _files(sections["files"]) if "files" in sections else {}
        tables: dict[str, Any] = {
            key: _policy(sections[key], kind) for key, kind in TaskSettings.TABLES.items() if key in sections
        }
        dictionary = _dictionary(sections["tunnel"], files) if "tunnel" in sections else ""
        return cls(
            name=name,
            trigger=trigger,
            phases=phases,
            files=files,
            limits=limits,
            policies=policies,
            **tables,
            reads=_reads(sections["reads"], name) if "reads" in sections else (),
            modules=_modules(sections["modules"], name) if "modules" in sections else {},
            simulation_events=events,
            smoke_events=smoke_events,
            dictionary=dictionary,
            variants=_variants(sections["variants"], files, dictionary) if "variants" in sections else (),
            exclusive=_exclusive(where, document.get("exclusive", [])),
        )


class _Section:
    """One table of the file, with its name for errors."""

    def __init__(self, where: str, name: str, value: object) -> None:
        self.where = where
        self.name = name
        if not isinstance(value, dict):
            what = f"{name} must be a section: write [{name}] on a separate line"
            raise TaskConfigError(where, "", "", what, unknown=name)
        self.values: dict[str, Any] = value

    def error(self, key: str, reason: str) -> TaskConfigError:
        return TaskConfigError(self.where, self.name, key, reason)

    def only(self, *known: str) -> Self:
        _refuse_unknown(self.where, self.name, "key", self.values, known)
        return self

    def take(self, key: str) -> Any:
        if key not in self.values:
            raise self.error(key, "is missing")
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be a non-empty string, is {_shown(value)}")
        return value

    def choice(self, key: str, allowed: Collection[str]) -> str:
        value = self.take(key)
        if value not in allowed:
            hint = _nearest(value, allowed) if isinstance(value, str) else ""
            raise self.error(key, f"must be one of {', '.join(allowed)}; is {_shown(value)}{hint}")
        return str(value)

    def integer(self, key: str, least: int, most: int) -> int:
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(key, f"must be a whole number from {least} to {most}, is {_shown(value)}")
        return value

    def path(self, key: str, path: str) -> str:
        if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise self.error(
                key, f"{_shown(path)} must be a plain path from the task's root, such as resources/a.walle"
            )
        return path


def load_config(data: bytes, where: str) -> dict[str, Any]:
    """Return the sections of a task.toml, unchecked.

    Raises:
        TaskConfigError: it is too large, has a line of more than _MAX_LINE_DOTS dots, or is not TOML.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise TaskConfigError(where, "", "", f"has {len(data)} bytes, more than {MAX_CONFIG_BYTES}")
    for line, text in enumerate(data.split(b"\n"), 1):
        if (dots := text.count(b".")) > _MAX_LINE_DOTS:
            what = f"has {dots} dots, and a line may have {_MAX_LINE_DOTS}; write sections, or values on several lines"
            raise TaskConfigError(where, "", "", what, line=line)
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise TaskConfigError(where, "", "", f"is not UTF-8 (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        place = _TOML_PLACE.search(str(error))
        what = str(error)[: place.start()] if place else str(error)
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
        raise TaskConfigError(where, "", "", f"is not TOML: {what}", line=line, column=column) from error


def _need(sections: Mapping[str, _Section], where: str, name: str) -> _Section:
    if name not in sections:
        raise TaskConfigError(where, name, "", "is missing")
    return sections[name]


def _trigger(section: _Section) -> TriggerCondition:
    try:
        return TriggerCondition.parse(section.only(*TriggerCondition.KEYS).values)
    except ProtocolError as error:
        raise section.error(error.where.removeprefix("trigger").removeprefix("."), error.what) from error


def _policy(section: _Section, kind: type[Table]) -> Table:
    try:
        return kind.parse(section.only(*kind.KEYS).values)
    except ProtocolError as error:
        raise section.error(error.where.removeprefix(section.name).removeprefix("."), error.what) from error


def _modules(section: _Section, task: str) -> dict[str, str]:
    if len(section.values) > MAX_MODULE_SETS:
        raise section.error("", f"names {len(section.values)} sets of modules, more than {MAX_MODULE_SETS}")
    for name in section.values:
        if not is_name(name):
            raise section.error(name[:80], f"is not the name of a set: {NAME_RULE}")
        if name == task:
            raise section.error(name, "is the task itself, not a set of shared modules")
        if not is_version(section.text(name)):
            raise section.error(name, f'must be a version, such as "v3", is {_shown(section.values[name])}')
    return dict(sorted(section.values.items()))


def _reads(section: _Section, task: str) -> tuple[str, ...]:
    try:
        reads = parse_reads(section.only("topics").values)
    except ProtocolError as error:
        raise section.error(error.where.removeprefix("reads").removeprefix("."), error.what) from error
    for topic in reads:
        if topic.partition("/")[0] == task:
            raise section.error("topics", f"{_shown(topic)} is the task's own, which it may always read; leave it out")
    return reads


def _files(section: _Section) -> dict[str, str]:
    if len(section.values) > MAX_FILES:
        raise section.error("", f"lists {len(section.values)} files, more than {MAX_FILES}")
    for path, route in section.values.items():
        if route == "exclusive":
            what = "is exclusive: replace this line with a table [[exclusive]] with its name, and put it with:"
            raise section.error(path, f"{what} walle device-file put")
    return {section.path(path, path): section.choice(path, ROUTES) for path in section.values}


def _variants(section: _Section, files: Mapping[str, str], dictionary: str) -> tuple[Variant, ...]:
    try:
        found = parse_variants(section.values, files, dictionary)
    except VariantError as error:
        raise section.error(error.key, error.what) from error
    for one in found:
        for path in one.files.values():
            section.path(f"{one.name}.files", path)
    return found


def _exclusive(where: str, tables: object) -> tuple[ExclusiveFile, ...]:
    if not isinstance(tables, list):
        what = "exclusive must be a list of tables: write [[exclusive]] on a separate line, for each file"
        raise TaskConfigError(where, "", "", what, unknown="exclusive")
    try:
        return parse_exclusive(tables)
    except ProtocolError as error:
        raise TaskConfigError(where, "exclusive", error.where, error.what) from error


def _dictionary(section: _Section, files: Mapping[str, str]) -> str:
    path = section.only("dictionary").text("dictionary")
    if files.get(path) != "shared":  # the cloud reads it where it keeps shared files
        raise section.error("dictionary", f'{_shown(path)} must be in [files]: "{path}" = "shared"')
    return path


def _refuse_unknown(where: str, section: str, kind: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            shown = f"[{name[:80]}]" if kind == "section" else _shown(name)
            hint = _nearest(name, known) or f"; there are {', '.join(known)}"
            raise TaskConfigError(where, section, "", f"has an unknown {kind} {shown}{hint}", unknown=name)


def _nearest(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
