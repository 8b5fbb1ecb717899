"""Messages that cross the device-cloud line, and the value types of both sides. Imports nothing of walle.

Over HTTP (§6):
    request header   X-Walle-Profile   `Profile`, compact JSON
    response header  X-Walle-Tasks     a list of `Directive`s, compact JSON
    GET  /cdn/{sha256}                 a signed `Manifest` (an `Envelope`), then the files it lists
    POST /v1/outcomes                  `OutcomeBatch`
Over the tunnel (§5.2), each in one frame of `walle.pipeline.tunnel.frames`:
    device → cloud   `Hello`, `Upload`, `Request`, `Ping`
    cloud → device   `Welcome`, `Ack`, `Response`, `Refusal`, `Pong`

What is signed is the exact bytes that were received; nothing is re-encoded before a signature is checked.
"""

import base64
import dataclasses
import enum
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

PROFILE_HEADER = "X-Walle-Profile"
TASKS_HEADER = "X-Walle-Tasks"
PROTOCOL_VERSION = 2
MAX_SEQ = 2**62  # of an upload; a Hello with a higher one is forged
MAX_ID_CHARS = 256  # of a device and of a report: the cloud remembers thousands of them

PHASES = ("preprocess", "execute", "postprocess")  # of a task, in their order

type Attribute = str | int | float | bool


class ProtocolError(ValueError):
    """A message with a part that is missing or wrong. `where` is the path to that part."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


def canonical_json(value: Any) -> bytes:
    """Return the one JSON encoding of `value` that is signed and hashed: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(where, f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
    return value


def _take[T](source: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    if key not in source:
        raise ProtocolError(f"{where}.{key}", "is missing")
    value = source[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"{where}.{key}", f"must be {kind.__name__}, is {type(value).__name__}")
    if isinstance(value, str) and not value.isascii() and value != whole_characters(value):
        raise ProtocolError(f"{where}.{key}", "holds half a character (a lone surrogate), which UTF-8 cannot encode")
    return value


def _take_optional(source: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under `key`, empty where an older device sent none."""
    return _take(source, key, str, where) if key in source else ""


def whole_characters(text: str) -> str:
    """Return `text` with ? for each lone surrogate, which JSON can escape and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """Return `text` with each character that is not printable (controls, escapes, line breaks) as its escape.

    For text of a task or of a device before a terminal or a log file gets it.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _take_id(source: Mapping[str, Any], key: str, where: str) -> str:
    text = _take(source, key, str, where)
    if len(text) > MAX_ID_CHARS:
        raise ProtocolError(f"{where}.{key}", f"{len(text)} characters, more than {MAX_ID_CHARS}")
    return text


def _take_map(source: Mapping[str, Any], key: str, kinds: tuple[type, ...], where: str) -> dict[str, Any]:
    mapping = _take(source, key, dict, where)
    for name, value in mapping.items():
        if not isinstance(value, kinds):
            raise ProtocolError(f"{where}.{key}.{name}", f"must be {kinds[0].__name__}, is {type(value).__name__}")
    return mapping


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_sha256(text: str, where: str) -> str:
    """Return `text` if it is a sha256 in lower-case hex."""
    if len(text) != 64 or any(letter not in "0123456789abcdef" for letter in text):
        raise ProtocolError(where, f"{text[:80]!r} is not a sha256 in lower-case hex")
    return text


# --- triggers ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ContentsTest:
    """A test of an event's contents: a field compared with a constant. Called with contents, it returns if they pass.

    `field` is a key, or keys of nested objects joined by dots, such as `item.price`. Numbers compare with numbers, text
    with text. A field that is missing or of another kind fails every comparison, `!=` too.

    Raises:
        ProtocolError: `field`, `comparison` or `value` is wrong.
    """

    field: str
    comparison: str
    value: str | float | bool

    COMPARISONS: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
    KEYS: ClassVar = ("field", "is", "value")
    MAX_FIELD_CHARS: ClassVar = 256

    def __post_init__(self) -> None:
        if not isinstance(self.field, str) or not all(self.field.split(".")) or len(self.field) > self.MAX_FIELD_CHARS:
            what = f"must be a field of the contents, such as item.price, is {_shorten(self.field)}"
            raise ProtocolError("trigger.where.field", what)
        if not isinstance(self.comparison, str) or self.comparison not in self.COMPARISONS:
            what = f"must be one of {' '.join(self.COMPARISONS)}, is {_shorten(self.comparison)}"
            raise ProtocolError("trigger.where.is", what)
        if not isinstance(self.value, str | int | float) or (
            isinstance(self.value, float) and not math.isfinite(self.value)
        ):
            raise ProtocolError("trigger.where.value", f"must be text, a number or a bool, is {_shorten(self.value)}")
        if isinstance(self.value, bool) and self.comparison not in {"==", "!="}:
            raise ProtocolError("trigger.where.is", f"must be == or != for a bool, is {self.comparison}")

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the test that a [trigger.where] table describes; `to_json` is the inverse."""
        if not isinstance(table, Mapping) or set(table) != set(cls.KEYS):
            raise ProtocolError("trigger.where", f"must be a table of {', '.join(cls.KEYS)}, is {_shorten(table)}")
        return cls(*(table[key] for key in cls.KEYS))

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "is": self.comparison, "value": self.value}

    def __call__(self, contents: Mapping[str, Any]) -> bool:
        found: Any = contents
        for key in self.field.split("."):
            if not isinstance(found, Mapping) or key not in found:
                return False
            found = found[key]
        kinds = (str,) if isinstance(self.value, str) else (bool,) if isinstance(self.value, bool) else (int, float)
        if not isinstance(found, kinds) or isinstance(found, bool) != isinstance(self.value, bool):
            return False
        return self.COMPARISONS[self.comparison](found, self.value)

    def __str__(self) -> str:
        return f"{self.field} {self.comparison} {self.value!r}"


@dataclasses.dataclass(frozen=True, slots=True)
class TriggerCondition:
    """The condition that starts a task (§5.1): trigger ids that events match in this order, and options.

    A trigger id is an event id or a page id; an event matches if it has that event id or that page id. The wildcard
    `*` matches any one event. Without options, the events are consecutive.

    Options:
        within_ms: at most this time passes from the first to the last event, by their own times. 0: no bound.
        skip_till_next: other events may come between those that match. A match waits until an event matches its next
            trigger id, and takes the first that does; after a restart it is found again only if its first event is
            replayed.
        cooldown_ms: after the condition has triggered the task, it does not again until this time has passed. 0: none.
        where: the contents of the last event pass this test.

    An option is a field with a default, a row in `OPTIONS`, and a check in `__post_init__`. task.toml, manifest, `walle
    task` and simulation pass the whole value on; `TriggerTrie` applies it. docs/adr/0101-options-of-a-condition.md has
    the reasons.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `trigger.sequence[1]`.
    """

    trigger_ids: tuple[str, ...]
    within_ms: int = 0
    skip_till_next: bool = False
    cooldown_ms: int = 0
    where: ContentsTest | None = None
    without_visit: bool = False  # also trigger by an event of a page that has no open visit

    WILDCARD: ClassVar = "*"
    MAX_LENGTH: ClassVar = 64
    MAX_MS: ClassVar = 2**53
    OPTIONS: ClassVar[tuple[str, ...]] = ("within_ms", "skip_till_next", "cooldown_ms", "where", "without_visit")
    KEYS: ClassVar = ("sequence", *OPTIONS)  # of the [trigger] table in task.toml, and of `trigger` in the manifest

    def __post_init__(self) -> None:
        if not 1 <= len(self.trigger_ids) <= self.MAX_LENGTH:
            what = f"must be a list of 1 to {self.MAX_LENGTH} trigger ids, is {_shorten(list(self.trigger_ids))}"
            raise ProtocolError("trigger.sequence", what)
        for index, trigger_id in enumerate(self.trigger_ids):
            if not isinstance(trigger_id, str) or not trigger_id:
                where = f"trigger.sequence[{index}]"
                raise ProtocolError(where, f"must be an event id or page id, is {_shorten(trigger_id)}")
        for key, value in (("within_ms", self.within_ms), ("cooldown_ms", self.cooldown_ms)):
            if type(value) is not int or not 0 <= value <= self.MAX_MS:
                raise ProtocolError(f"trigger.{key}", f"must be a number of milliseconds, is {_shorten(value)}")
        for key, value in (("skip_till_next", self.skip_till_next), ("without_visit", self.without_visit)):
            if type(value) is not bool:
                raise ProtocolError(f"trigger.{key}", f"must be true or false, is {_shorten(value)}")

    @classmethod
    def of(cls, trigger_ids: Sequence[str], **options: Any) -> Self:
        """Return the condition on these trigger ids, with the options that are given."""
        if isinstance(trigger_ids, str) or not isinstance(trigger_ids, Sequence):
            what = f"must be a list of 1 to {cls.MAX_LENGTH} trigger ids, is {_shorten(trigger_ids)}"
            raise ProtocolError("trigger.sequence", what)
        return cls(tuple(trigger_ids), **options)

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the condition that a [trigger] table or a manifest's `trigger` describes; `to_json` is the inverse.

        An unknown key is refused: a device that ignored an option would run the task when it must not.
        """
        if not isinstance(table, Mapping):
            raise ProtocolError("trigger", f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("trigger", f"has an unknown key {_shorten(key)}; known are {', '.join(cls.KEYS)}")
        if "sequence" not in table:
            raise ProtocolError("trigger.sequence", "is missing")
        options = {key: table[key] for key in cls.OPTIONS if key in table}
        if "where" in options:
            options["where"] = ContentsTest.parse(options["where"])
        return cls.of(table["sequence"], **options)

    def to_json(self) -> dict[str, Any]:
        """Return the table; an option that is not used is left out, so that an older device reads the condition."""
        table: dict[str, Any] = {"sequence": list(self.trigger_ids)}
        for key in self.OPTIONS:
            value = getattr(self, key)
            if value:
                table[key] = value.to_json() if isinstance(value, ContentsTest) else value
        return table

    def __str__(self) -> str:
        options = [f"{key} {value}" for key in self.OPTIONS if (value := getattr(self, key))]
        return ", ".join([" → ".join(self.trigger_ids), *options])


class FullPolicy(enum.StrEnum):
    """The policy of something bounded that is full: hold the producer, or drop what is oldest or newest."""

    BLOCK = "block"
    DROP_OLDEST = "drop-oldest"
    DROP_NEWEST = "drop-newest"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """A task's queue of triggers: its size, and the policies when the queue or the device's outbox is full.

    `queue_full`: drop the oldest waiting trigger, drop the new one, or block: the device takes no further event, for
    any task. `outbox_full`: block only this task until the cloud acknowledges uploads, or drop the newest upload, which
    stays stored on the device. An upload has a number without gaps, so that an older one cannot be dropped.

    Raises:
        ProtocolError: a field is wrong; `where` is its key.
    """

    queue: int = 16
    queue_full: FullPolicy = FullPolicy.DROP_OLDEST  # a full queue must not hold other tasks up; new events matter more
    outbox_full: FullPolicy = FullPolicy.BLOCK  # what was computed is kept

    SIZES: ClassVar = (1, 1024)  # least and most triggers in a queue
    CHOICES: ClassVar[Mapping[str, tuple[FullPolicy, ...]]] = {
        "queue_full": tuple(FullPolicy),
        "outbox_full": (FullPolicy.BLOCK, FullPolicy.DROP_NEWEST),
    }

    def __post_init__(self) -> None:
        least, most = self.SIZES
        if type(self.queue) is not int or not least <= self.queue <= most:
            raise ProtocolError("queue", f"must be a whole number from {least} to {most}, is {_shorten(self.queue)}")
        for key, choices in self.CHOICES.items():
            if getattr(self, key) not in choices:
                what = f"must be one of {', '.join(choices)}; is {_shorten(getattr(self, key))}"
                raise ProtocolError(key, what)


# --- push: profile up, directives down -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Profile:
    """A device's profile (§6). `tasks` maps `scenario/task` to the active version, such as `v3`."""

    device_id: str
    app_version: str
    attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    MAX_HEADER_BYTES = 8192

    def to_header(self) -> str:
        return canonical_json(
            {"d": self.device_id, "a": self.app_version, "x": dict(self.attributes), "t": dict(self.tasks)}
        ).decode()

    @classmethod
    def from_header(cls, header: str) -> Self:
        """Parse the header. Raises ProtocolError, which names the part, if it is not a profile."""
        if len(header) > cls.MAX_HEADER_BYTES:
            raise ProtocolError(PROFILE_HEADER, f"{len(header)} bytes, more than {cls.MAX_HEADER_BYTES}")
        value = _parse_object(header, PROFILE_HEADER)
        return cls(
            _take_id(value, "d", PROFILE_HEADER),
            _take(value, "a", str, PROFILE_HEADER),
            _take_map(value, "x", (str, int, float, bool), PROFILE_HEADER),
            _take_map(value, "t", (str,), PROFILE_HEADER),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directive:
    """The cloud's order for one task on one device: activate `version`, or remove the task if `version` is empty.

    The release key signs all fields but `url`, `release` and `signature`. `serial` grows with every order for this
    task, so that a rollback is newer metadata that points at an older version, and a replayed old directive has no
    effect. `manifest` is the sha256 of the manifest's envelope, `size_bytes` its length.
    """

    task: str  # scenario/task
    version: str  # "v3", or "" to remove
    manifest: str
    size_bytes: int
    serial: int
    expires_s: int  # seconds since the epoch
    url: str  # prefix of the files' addresses, such as https://cdn.example/cdn
    release: str  # release id, "" for the current version outside a release
    signature: str = ""  # base64 of Ed25519 over signed_bytes()

    def signed_bytes(self) -> bytes:
        return canonical_json([self.task, self.version, self.manifest, self.size_bytes, self.serial, self.expires_s])

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str = TASKS_HEADER) -> Self:
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        directive = cls(
            task=_take(value, "task", str, where),
            version=_take(value, "version", str, where),
            manifest=_take(value, "manifest", str, where),
            size_bytes=_take(value, "size_bytes", int, where),
            serial=_take(value, "serial", int, where),
            expires_s=_take(value, "expires_s", int, where),
            url=_take(value, "url", str, where),
            release=_take(value, "release", str, where),
            signature=_take(value, "signature", str, where),
        )
        if directive.version:
            check_sha256(directive.manifest, f"{where}.manifest")
        return directive


def directives_to_header(directives: Sequence[Directive]) -> str:
    return canonical_json([directive.to_json() for directive in directives]).decode()


def directives_from_header(header: str) -> list[Directive]:
    """Parse the header. Raises ProtocolError if it is not a list of directives."""
    try:
        values = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(TASKS_HEADER, f"not JSON ({error})") from error
    if not isinstance(values, list):
        raise ProtocolError(TASKS_HEADER, f"must be a list, is {type(values).__name__}")
    return [Directive.from_json(value, f"{TASKS_HEADER}[{index}]") for index, value in enumerate(values)]


# --- pull: manifests --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """One file of a bundle. `route` is `shared` (CDN) or `exclusive` (CEN)."""

    path: str
    sha256: str
    size_bytes: int
    route: str = "shared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of one task version: its files with hashes, trigger condition, places of its phases, limits."""

    scenario: str
    task: str
    version: str
    commit: str  # git commit the tag pointed at
    bytecode: tuple[str, ...]  # interpreter tags of the bundle's bytecode, such as "cpython-313"
    trigger: TriggerCondition
    phases: Mapping[str, str]  # phase → device | cloud | auto
    limits: Mapping[str, int]  # deadline_ms, memory_mb, ...
    files: tuple[FileEntry, ...]
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # queue_full, outbox_full

    FORMAT = 2
    _FORMAT_1 = 1  # with `sequence` in place of `trigger`; devices may have such versions installed

    @property
    def name(self) -> str:
        """The task's full name, scenario/task."""
        return f"{self.scenario}/{self.task}"

    @property
    def queue_policy(self) -> QueuePolicy:
        """The policy of the task's queue; a manifest from before there were queues has the defaults."""
        choices = {key: FullPolicy(self.policies[key]) for key in QueuePolicy.CHOICES if key in self.policies}
        return QueuePolicy(queue=self.limits.get("queue", QueuePolicy().queue), **choices)

    def to_bytes(self) -> bytes:
        fields = {**dataclasses.asdict(self), "trigger": self.trigger.to_json()}
        return canonical_json({"format": self.FORMAT, **fields})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a manifest. Raises ProtocolError, which names the field, also for a path that leaves the bundle."""
        value = _parse_object(data, "manifest")
        if value.get("format") == cls._FORMAT_1:
            trigger: Any = {"sequence": _take(value, "sequence", list, "manifest")}
        elif value.get("format") == cls.FORMAT:
            trigger = _take(value, "trigger", dict, "manifest")
        else:
            raise ProtocolError("manifest.format", f"must be {cls.FORMAT}, is {value.get('format')!r}")
        try:
            condition = TriggerCondition.parse(trigger)
        except ProtocolError as error:
            raise ProtocolError(f"manifest.{error.where}", error.what) from error
        files = []
        for index, entry in enumerate(_take(value, "files", list, "manifest")):
            where = f"manifest.files[{index}]"
            if not isinstance(entry, dict):
                raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
            path = _take(entry, "path", str, where)
            parts = path.split("/")
            if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
                raise ProtocolError(f"{where}.path", f"{path!r} is not a plain relative path")
            size_bytes = _take(entry, "size_bytes", int, where)
            if size_bytes < 0:
                raise ProtocolError(f"{where}.size_bytes", f"{size_bytes} is negative")
            route = _take(entry, "route", str, where)
            if route not in ("shared", "exclusive"):
                raise ProtocolError(f"{where}.route", f"{route!r} is neither shared nor exclusive")
            sha256 = check_sha256(_take(entry, "sha256", str, where), f"{where}.sha256")
            files.append(FileEntry(path, sha256, size_bytes, route))
        if len({file.path for file in files}) != len(files):
            raise ProtocolError("manifest.files", "a path is listed twice")
        manifest = cls(
            scenario=_take(value, "scenario", str, "manifest"),
            task=_take(value, "task", str, "manifest"),
            version=_take(value, "version", str, "manifest"),
            commit=_take(value, "commit", str, "manifest"),
            bytecode=tuple(_take(value, "bytecode", list, "manifest")),
            trigger=condition,
            phases=_take_map(value, "phases", (str,), "manifest"),
            limits=_take_map(value, "limits", (int,), "manifest"),
            files=tuple(files),
            policies=_take_map(value, "policies", (str,), "manifest") if "policies" in value else {},
        )
        try:
            _ = manifest.queue_policy
        except ProtocolError as error:
            raise ProtocolError(f"manifest.limits.{error.where}", error.what) from error
        except ValueError as error:  # of FullPolicy
            raise ProtocolError("manifest.policies", f"{error}; install a newer walle") from error
        return manifest


@dataclasses.dataclass(frozen=True)
class Envelope:
    """Bytes and the signatures over them: key id → Ed25519 signature. The bytes are sent as they were signed."""

    payload: bytes
    signatures: Mapping[str, bytes]

    def to_bytes(self) -> bytes:
        return canonical_json(
            {
                "payload": base64.b64encode(self.payload).decode(),
                "signatures": {key: base64.b64encode(value).decode() for key, value in self.signatures.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        value = _parse_object(data, "envelope")
        try:
            payload = base64.b64decode(_take(value, "payload", str, "envelope"), validate=True)
            signatures = {
                key: base64.b64decode(text, validate=True)
                for key, text in _take_map(value, "signatures", (str,), "envelope").items()
            }
        except ProtocolError:
            raise
        except ValueError as error:
            raise ProtocolError("envelope", f"not base64 ({error})") from error
        return cls(payload, signatures)


# --- outcomes ---------------------------------------------------------------------------------------------------------


class OutcomeKind(enum.StrEnum):
    """The kinds of outcome of a task version on a device."""

    INSTALLED = "installed"  # pulled, verified, checked and activated
    REJECTED = "rejected"  # refused before activation: signature, hash, check
    RUN = "run"  # executions since the last report: `ok` and `failed` of them
    REVERTED = "reverted"  # activated, failed here, and left for the version before it
    REMOVED = "removed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a task version on a device. `error`, `place` and `log` are of the last failure.

    Their text comes from task code and is hostile: escape control characters before a terminal or a log file gets it.
    """

    task: str
    version: str
    release: str
    kind: OutcomeKind
    ok: int = 0
    failed: int = 0
    error: str = ""  # its first MAX_ERROR_CHARS
    place: str = ""  # file:line of the task's code, empty if it is unknown
    log: str = ""  # the last lines that the failing run logged, its last MAX_LOG_CHARS

    MAX_ERROR_CHARS = 2000
    MAX_PLACE_CHARS = 200
    MAX_LOG_CHARS = 2000
    MAX_COUNT = 10**9  # a report of more executions is forged


@dataclasses.dataclass(frozen=True)
class OutcomeBatch:
    """One report of a device. `batch_id` is unique to it, so that a repeated report counts once."""

    device_id: str
    batch_id: str
    outcomes: tuple[Outcome, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse a report. Raises ProtocolError, which names the part."""
        if not isinstance(value, dict):
            raise ProtocolError("outcomes", f"must be an object, is {type(value).__name__}")
        outcomes = []
        for index, entry in enumerate(_take(value, "outcomes", list, "batch")):
            where = f"batch.outcomes[{index}]"
            if not isinstance(entry, dict):
                raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
            try:
                kind = OutcomeKind(_take(entry, "kind", str, where))
            except ValueError as error:
                raise ProtocolError(f"{where}.kind", str(error)) from error
            ok, failed = (_take(entry, key, int, where) for key in ("ok", "failed"))
            if ok < 0 or failed < 0:
                raise ProtocolError(where, "ok and failed count executions and cannot be negative")
            if max(ok, failed) > Outcome.MAX_COUNT:
                raise ProtocolError(where, f"ok and failed count executions of one report, {Outcome.MAX_COUNT} at most")
            outcomes.append(
                Outcome(
                    task=_take(entry, "task", str, where),
                    version=_take(entry, "version", str, where),
                    release=_take(entry, "release", str, where),
                    kind=kind,
                    ok=ok,
                    failed=failed,
                    error=_take(entry, "error", str, where)[: Outcome.MAX_ERROR_CHARS],
                    place=_take_optional(entry, "place", where)[: Outcome.MAX_PLACE_CHARS],
                    log=_take_optional(entry, "log", where)[-Outcome.MAX_LOG_CHARS :],
                )
            )
        return cls(_take_id(value, "device_id", "batch"), _take_id(value, "batch_id", "batch"), tuple(outcomes))


# --- tunnel -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """An earlier epoch of the same outbox. The cloud acknowledged its uploads up to `acked`.

    Its upload `seq + offset` is upload `seq` of the present epoch, for seq <= `upto`.
    """

    epoch: str
    acked: int
    offset: int
    upto: int

    MAX_COUNT = 8  # in one Hello: the latest


def origins_to_text(origins: Sequence[Origin]) -> str:
    return ",".join(f"{origin.epoch}:{origin.acked}:{origin.offset}:{origin.upto}" for origin in origins)


def origins_from_text(text: str) -> tuple[Origin, ...]:
    """Parse the text. Raises ProtocolError if it does not name origins."""
    origins = []
    for part in text.split(",") if text else ():
        epoch, *numbers = part.split(":")
        if not epoch or len(numbers) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ProtocolError("hello.origins", f"{_shorten(part)} is not EPOCH:ACKED:OFFSET:UPTO")
        if max(map(len, numbers)) > len(str(MAX_SEQ)) or max(map(int, numbers)) > MAX_SEQ:
            raise ProtocolError("hello.origins", f"{_shorten(part)} has a number above {MAX_SEQ}")
        origins.append(Origin(epoch, *map(int, numbers)))
    if len(origins) > Origin.MAX_COUNT:
        raise ProtocolError("hello.origins", f"names {len(origins)} epochs, at most {Origin.MAX_COUNT} are accepted")
    return tuple(origins)


@dataclasses.dataclass(frozen=True, slots=True)
class OutboxMark:
    """The description of an outbox in a Hello; see there."""

    epoch: str
    acked: int
    acked_chain: int
    origins: tuple[Origin, ...] = ()


@dataclasses.dataclass(frozen=True)
class Hello:
    """First frame of a connection. `epoch` is the id under which the device numbers its uploads from 1.

    `acked` is the highest number whose acknowledgement the device has recorded, `acked_chain` the chain value there
    (`walle.pipeline.checksums`). A cloud whose file went back in time, so that it has less, continues after it.
    `origins` names the epochs that this one continues, as `origins_to_text` writes them: the cloud drops uploads that
    it has from them, and reports acknowledged ones that it lacks.
    """

    device_id: str
    epoch: str
    token: str
    protocol: int = PROTOCOL_VERSION
    acked: int = 0
    acked_chain: int = 0
    origins: str = ""


@dataclasses.dataclass(frozen=True)
class Welcome:
    """The cloud's answer to Hello: `acked` is the highest durable sequence number of the device's epoch.

    The device sends the uploads after it. At most `window` uploads may be unacknowledged. `chain` is the chain value at
    `acked`. A device with another value there, or that never assigned that number, has gone back in time: it starts a
    new epoch and connects again.
    """

    acked: int
    window: int
    chain: int


@dataclasses.dataclass(frozen=True)
class Upload:
    """One feature. Sequence numbers of an epoch start at 1 without gaps; `sent_ms` is by the device's clock."""

    seq: int
    topic: str
    payload: bytes
    sent_ms: int


@dataclasses.dataclass(frozen=True)
class Ack:
    """Acknowledgement: everything up to and with `seq` is durable in the cloud, and the device may remove it."""

    seq: int


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of the device, answered at most once; not repeated on another connection."""

    request_id: int
    topic: str
    payload: bytes


@dataclasses.dataclass(frozen=True)
class Response:
    """The answer to a request. `error` is empty if it succeeded."""

    request_id: int
    payload: bytes
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The last frame before the cloud disconnects. `retry_s` < 0: do not reconnect unchanged."""

    code: str
    message: str
    retry_s: float = -1.0


@dataclasses.dataclass(frozen=True)
class Ping:
    token: int


@dataclasses.dataclass(frozen=True)
class Pong:
    token: int


type Frame = Hello | Welcome | Upload | Ack | Request | Response | Refusal | Ping | Pong
