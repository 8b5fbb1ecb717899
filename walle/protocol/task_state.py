"""State of a task between its runs: its version, and what a new version takes over from an older one (§5.1)."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from walle.protocol.fields import ProtocolError, shorten


class UpgradePolicy(enum.StrEnum):
    """The first state of a higher version: a copy of the older one, empty, or what `migrate` returns."""

    KEEP = "keep"
    CLEAR = "clear"
    MIGRATE = "migrate"


class FullStatePolicy(enum.StrEnum):
    """The end of a run that leaves a state beyond its bound: the run fails, or the oldest entries are evicted."""

    REFUSE = "refuse"
    EVICT = "evict"


class FeaturesPolicy(enum.StrEnum):
    """The choice between features of older versions being returned by a higher version's queries, and not."""

    KEEP = "keep"
    CLEAR = "clear"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatePolicy:
    """The [state] table of task.toml, and `state` of a manifest.

    `version` is the version of the state's form, not the task's: versions of a task with the same number share one
    state. Where it grows, `on_upgrade` and `features` say what the new version takes over. Where it is smaller than the
    state's, after a rollback, the task has the state of that version again. docs/adr/0021-feature-store-and-state.md
    has the reasons.

    `max_bytes` bounds the encoded state, `on_full` says what happens beyond it. An entry, which is a top-level key, is
    removed `ttl_s` after its last write, by the time of the stream; those whose keys begin with a key of `prefix_ttl_s`
    after that time, of which the longest such key counts. 0: never. docs/adr/0021-feature-store-and-state.md has the
    reasons.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `state.version`.
    """

    version: int = 1
    on_upgrade: UpgradePolicy | None = None  # required from version 2 on
    features: FeaturesPolicy = FeaturesPolicy.KEEP
    max_bytes: int = 64 << 10
    on_full: FullStatePolicy = FullStatePolicy.REFUSE
    ttl_s: int = 0
    prefix_ttl_s: Mapping[str, int] = dataclasses.field(default_factory=dict)
    times_entries: bool = dataclasses.field(init=False, repr=False, compare=False)  # keeps the times of their writes

    MAX_VERSION: ClassVar = 2**31
    SIZES: ClassVar = (
        1 << 10,
        256 << 10,
    )  # least and most of `max_bytes`: each run that changes a state writes all
    MAX_TTL_S: ClassVar = 366 * 24 * 3600
    MAX_PREFIXES: ClassVar = 16
    MAX_PREFIX_CHARS: ClassVar = 64
    KEYS: ClassVar = ("version", "on_upgrade", "features", "max_bytes", "on_full", "ttl_s", "prefix_ttl_s")
    CHOICES: ClassVar[Mapping[str, type[enum.StrEnum]]] = {
        "on_upgrade": UpgradePolicy,
        "features": FeaturesPolicy,
        "on_full": FullStatePolicy,
    }

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 1 <= self.version <= self.MAX_VERSION:
            what = f"must be a whole number from 1 to {self.MAX_VERSION}, is {shorten(self.version)}"
            raise ProtocolError("state.version", what)
        if self.version > 1 and self.on_upgrade is None:
            choices = ", ".join(UpgradePolicy)
            raise ProtocolError("state.on_upgrade", f"is missing; version {self.version} needs one of {choices}")
        least, most = self.SIZES
        if type(self.max_bytes) is not int or not least <= self.max_bytes <= most:
            what = f"must be a whole number from {least} to {most}, is {shorten(self.max_bytes)}"
            raise ProtocolError("state.max_bytes", what)
        self._check_ttl("state.ttl_s", self.ttl_s)
        prefixes = self.prefix_ttl_s
        if not isinstance(prefixes, Mapping) or len(prefixes) > self.MAX_PREFIXES:
            what = f'must be a table of {self.MAX_PREFIXES} prefixes at most, such as {{"cart/" = 3600}}'
            raise ProtocolError("state.prefix_ttl_s", f"{what}; is {shorten(prefixes)}")
        for prefix, ttl_s in prefixes.items():
            if not isinstance(prefix, str) or not 1 <= len(prefix) <= self.MAX_PREFIX_CHARS:
                what = f"has the prefix {shorten(prefix)}; give one of 1 to {self.MAX_PREFIX_CHARS} characters"
                raise ProtocolError("state.prefix_ttl_s", what)
            self._check_ttl(f"state.prefix_ttl_s.{prefix}", ttl_s)
        object.__setattr__(self, "times_entries", self.evicts or self.has_ttl)

    def _check_ttl(self, where: str, value: object) -> None:
        if type(value) is not int or not 0 <= value <= self.MAX_TTL_S:
            what = f"must be a whole number of seconds from 0 (never) to {self.MAX_TTL_S}, is {shorten(value)}"
            raise ProtocolError(where, what)

    @property
    def evicts(self) -> bool:
        return self.on_full is FullStatePolicy.EVICT

    @property
    def has_ttl(self) -> bool:
        return bool(self.ttl_s or self.prefix_ttl_s)

    def ttl_of(self, key: str) -> int:
        """Return the seconds after which an entry is removed, 0 for never."""
        if not self.prefix_ttl_s:
            return self.ttl_s
        found = [prefix for prefix in self.prefix_ttl_s if key.startswith(prefix)]
        return self.prefix_ttl_s[max(found, key=len)] if found else self.ttl_s

    @property
    def migrates(self) -> bool:
        return self.on_upgrade is UpgradePolicy.MIGRATE

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the policy that a table describes; `to_json` is the inverse. An unknown key is refused."""
        if not isinstance(table, Mapping):
            raise ProtocolError("state", f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("state", f"has an unknown key {shorten(key)}; known are {', '.join(cls.KEYS)}")
        values = dict(table)
        for key, choices in cls.CHOICES.items():
            if key in values:
                if values[key] not in list(choices):
                    what = f"must be one of {', '.join(choices)}; is {shorten(values[key])}"
                    raise ProtocolError(f"state.{key}", what)
                values[key] = choices(values[key])
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the table. What has its default is left out: an older walle knows the first three keys alone."""
        table: dict[str, Any] = {"version": self.version, "features": str(self.features)}
        if self.on_upgrade is not None:
            table["on_upgrade"] = str(self.on_upgrade)
        if self.max_bytes != type(self)().max_bytes:
            table["max_bytes"] = self.max_bytes
        if self.evicts:
            table["on_full"] = str(self.on_full)
        if self.ttl_s:
            table["ttl_s"] = self.ttl_s
        if self.prefix_ttl_s:
            table["prefix_ttl_s"] = dict(self.prefix_ttl_s)
        return table
