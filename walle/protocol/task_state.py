"""State of a task between its runs: its version, and what a new version takes over from an older one (§5.1)."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import ClassVar

from walle.protocol.fields import ProtocolError, shorten
from walle.protocol.options import OptionTable, choice, number, option, options_of


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
class StatePolicy(OptionTable):
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

    SECTION: ClassVar = "state"
    MAX_BYTES: ClassVar = 256 << 10  # each run that changes a state writes all of it
    MAX_TTL_S: ClassVar = 366 * 24 * 3600
    MAX_PREFIXES: ClassVar = 16
    MAX_PREFIX_CHARS: ClassVar = 64

    version: int = number(1, 1, 2**31, "version of the state's form", always_written=True)
    on_upgrade: UpgradePolicy | None = choice(
        None,
        UpgradePolicy,
        '`"keep"`, `"clear"` or `"migrate"`: what becomes of the older version\'s state',
        shown_default="needed from version 2 on",
    )
    features: FeaturesPolicy = choice(
        FeaturesPolicy.KEEP,
        FeaturesPolicy,
        '`"clear"`: `ctx.store.query` returns only features since the upgrade',
        always_written=True,
    )
    max_bytes: int = number(64 << 10, 1 << 10, MAX_BYTES, "bound on the encoded state; 1,024 to 262,144")
    on_full: FullStatePolicy = choice(
        FullStatePolicy.REFUSE,
        FullStatePolicy,
        'a run that leaves more: `"refuse"` fails it; `"evict"` removes the entries that were not written for longest',
    )
    ttl_s: int = number(
        0,
        0,
        MAX_TTL_S,
        "seconds after its last write at which an entry is removed, by event time; 0: never; up to 31,622,400",
        kind=f"a whole number of seconds from 0 (never) to {MAX_TTL_S}",
    )
    prefix_ttl_s: Mapping[str, int] = option(
        None,
        "the same for keys with a prefix, at most 16 of them; of several that fit, the longest counts",
        default_factory=dict,
        to_json=dict,
    )
    times_entries: bool = dataclasses.field(init=False, repr=False, compare=False)  # keeps the times of their writes

    def __post_init__(self) -> None:
        OptionTable.__post_init__(self)
        if self.version > 1 and self.on_upgrade is None:
            choices = ", ".join(UpgradePolicy)
            raise ProtocolError("state.on_upgrade", f"is missing; version {self.version} needs one of {choices}")
        prefixes = self.prefix_ttl_s
        if not isinstance(prefixes, Mapping) or len(prefixes) > self.MAX_PREFIXES:
            what = f'must be a table of {self.MAX_PREFIXES} prefixes at most, such as {{"cart/" = 3600}}'
            raise ProtocolError("state.prefix_ttl_s", f"{what}; is {shorten(prefixes)}")
        for prefix, ttl_s in prefixes.items():
            if not isinstance(prefix, str) or not 1 <= len(prefix) <= self.MAX_PREFIX_CHARS:
                what = f"has the prefix {shorten(prefix)}; give one of 1 to {self.MAX_PREFIX_CHARS} characters"
                raise ProtocolError("state.prefix_ttl_s", what)
            if what := options_of(type(self))["ttl_s"].check(ttl_s):
                raise ProtocolError(f"state.prefix_ttl_s.{prefix}", what)
        object.__setattr__(self, "times_entries", self.evicts or self.has_ttl)

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
