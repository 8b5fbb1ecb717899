"""Access control: tokens of people and programs, and their roles by scenario (§6, "collaborative development with
access control").

```
[tokens.anna]
sha256 = "9f86d0..."                  # of the token; the file itself grants no access
roles = { shop = "author", "market/*" = "releaser", "*" = "reader" }
branches = { shop = ["ipv", "news-*"] }   # which of them an author may push; all if not given
expires_s = 1790000000                # optional; seconds since the epoch
made_s = 1780000000                   # when, and with which token, it was made
made_by = "admin"
```
A role is for a scenario, for each scenario of a group (`"GROUP/*"`, also those that join it later), or for all: of
several, the first of this order counts. Each role may do what the one before it may: `metrics` reads the numbers of the
whole cloud, and is given for `*` only; `reader` clones and fetches, and reads releases, devices and the features that
they upload; `author` pushes branches; `releaser` makes versions (pushes tags `TASK/vN`) and releases them; `admin`, for
`*` only, makes and revokes tokens, and moves scenarios between groups.
"""

import base64
import binascii
import dataclasses
import enum
import errno
import fnmatch
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from walle.access.scenario_groups import NO_GROUPS, ScenarioGroups
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import write_file
from walle.base.names import NAME_RULE, is_name
from walle.errors import ConfigError
from walle.store.toml_file import read_section

ANY_SCENARIO = "*"
_GROUP_END = "/*"  # end of GROUP/*: all scenarios of a group
TOKEN_PREFIX = "walle_"  # noqa: S105 - not a token: by which scanners of repositories and logs know a token
MAX_TOKENS = 10_000
_MAX_BRANCH_PATTERNS = 100
_FIRST_NAME = "admin"  # name of the token that `walle cloud up` makes for a new folder


class Role(enum.IntEnum):
    """Rights of a token in a scenario, in rising order."""

    NONE = 0
    METRICS = 1
    READER = 2
    AUTHOR = 3
    RELEASER = 4
    ADMIN = 5

    def __str__(self) -> str:
        return self.name.lower()


_ROLES = {str(role): role for role in Role if role}
_EARLIER_ROLES = {"read": Role.READER, "write": Role.AUTHOR, "release": Role.RELEASER}  # earlier names of roles
_EVERYWHERE = (Role.METRICS, Role.ADMIN)


@dataclasses.dataclass(frozen=True)
class Identity:
    """Owner of a token. `sha256` is the token's, in hex; `roles` maps a scenario, `GROUP/*` or `*` to a role.

    `branches` maps the same to the patterns of the branches that the role `author` may push, all without an entry.
    `groups` are those of the moment when the token was looked up. Times are in seconds since the epoch.
    """

    name: str
    sha256: str
    roles: Mapping[str, Role]
    branches: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    expires_s: float | None = None
    made_s: float | None = None
    made_by: str = ""
    groups: ScenarioGroups = dataclasses.field(default=NO_GROUPS, compare=False, repr=False)

    def role(self, scenario: str) -> Role:
        """Return the role in `scenario`: its own entry, that of its group, or that of `*`.

        While the groups are unknown it is the lowest that it could be, since the entry of a group may be below `*`.
        """
        everywhere = self.roles.get(ANY_SCENARIO, Role.NONE)
        if _group_of(scenario):
            return everywhere  # GROUP/* is the key of an entry, and not the name of a scenario
        if scenario in self.roles:
            return self.roles[scenario]
        if not self.groups.is_known:
            return min([everywhere, *(role for key, role in self.roles.items() if _group_of(key))])
        return self.roles.get(group_key(self.groups.group_of(scenario)), everywhere)

    @property
    def highest_role(self) -> Role:
        """The highest role in any scenario."""
        return max(self.roles.values(), default=Role.NONE)

    def readable_scenarios(self) -> frozenset[str] | None:
        """Return the scenarios that the owner may read, None for all."""
        if self.role(ANY_SCENARIO) >= Role.READER:
            return None
        named = {key for key in self.roles if not _group_of(key)} - {ANY_SCENARIO}
        for key in self.roles:
            if group := _group_of(key):
                named |= self.groups.members(group)
        return frozenset(scenario for scenario in named if self.role(scenario) >= Role.READER)

    def may_push(self, scenario: str, branch: str) -> bool:
        """Return whether the owner may push to a branch: an author to those of its patterns, a releaser to all."""
        role = self.role(scenario)
        if role != Role.AUTHOR:
            return role > Role.AUTHOR
        if scenario in self.branches or self.groups.is_known:
            keys = [scenario, group_key(self.groups.group_of(scenario)), ANY_SCENARIO]
            found = [self.branches[key] for key in keys if key in self.branches][:1]
        else:  # whichever entry counts must allow it
            found = [self.branches[key] for key in self.branches if key == ANY_SCENARIO or _group_of(key)]
        return all(any(fnmatch.fnmatchcase(branch, pattern) for pattern in patterns) for patterns in found)


def group_key(group: str) -> str:
    """Return the key of a role for all scenarios of a group: GROUP/*."""
    return f"{group}{_GROUP_END}"


def _group_of(key: str) -> str:
    """Return the group of a key GROUP/*, "" for any other key."""
    group = key.removesuffix(_GROUP_END)
    return "" if group == key else group


class Identifier(Protocol):
    """Methods of the tokens that are accepted: `Access`, or the file that holds them."""

    def identify(self, token: str) -> Identity | None: ...
    def identify_header(self, authorization: str) -> Identity | None: ...


class TokenOwners(Protocol):
    """Methods of the tokens that a session of the dashboard calls: it keeps the hash of a token, not the token."""

    def identify(self, token: str) -> Identity | None: ...
    def owner(self, sha256: str) -> Identity | None: ...


class Access:
    """The tokens that are accepted. A token that has expired is not."""

    def __init__(self, identities: Iterable[Identity] = (), *, clock: Clock | None = None) -> None:
        self._by_hash = {identity.sha256: identity for identity in identities}
        self._clock = clock or SystemClock()
        self.has_earlier_roles = False

    @property
    def identities(self) -> tuple[Identity, ...]:
        return tuple(self._by_hash.values())

    @classmethod
    def load(cls, path: Path, *, clock: Clock | None = None) -> Self:
        """Return the tokens in the file at `path`.

        The names that roles had before, `read`, `write` and `release`, are understood; `has_earlier_roles` says that
        the file has them, and `save` writes the names of now. The first token of such a file, `admin` with the role
        `release` everywhere, could do all that there was to do: it gets the role `admin`.

        Raises:
            ConfigError: the file is missing, not TOML, or has an invalid entry, which the message names.
        """
        tokens = read_section(path, "access file", "tokens", "sections [tokens.NAME]")
        if tokens is None:
            raise ConfigError(f"access file {path} cannot be read: {os.strerror(errno.ENOENT)}")
        parsed = [_parse_identity(f"{path}: [tokens.{name}]", name, value) for name, value in tokens.items()]
        found = cls([identity for identity, _ in parsed], clock=clock)
        found.has_earlier_roles = any(is_earlier for _, is_earlier in parsed)
        return found

    def save(self, path: Path) -> None:
        """Write the file that `load` reads, atomically, readable by its owner only."""
        write_file(path, "\n".join(line for one in self.identities for line in _lines(one)).encode(), mode=0o600)

    def issue(
        self,
        name: str,
        roles: Mapping[str, Role],
        *,
        branches: Mapping[str, tuple[str, ...]] | None = None,
        expires_s: float | None = None,
        made_by: str = "",
    ) -> str:
        """Return a new token for `name`, replacing any earlier one. Only its hash is stored.

        Raises:
            ConfigError: the name is empty or has characters that are not printable, a role or a pattern is invalid, or
                there are too many tokens.
        """
        if not name or not name.isprintable():
            raise ConfigError(f"{name[:80]!r} cannot name a token's owner; use printable characters")
        for scenario, role in roles.items():
            _check_role("roles", scenario, role)
        for scenario, patterns in (branches or {}).items():
            _check_branches("branches", scenario, patterns)
        self.remove(name)
        if len(self._by_hash) >= MAX_TOKENS:
            raise ConfigError(f"there are {MAX_TOKENS} tokens already; revoke unused ones")
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        sha256 = hash_of(token)
        made_s = self._clock.time()
        self._by_hash[sha256] = Identity(name, sha256, dict(roles), dict(branches or {}), expires_s, made_s, made_by)
        return token

    def remove(self, name: str) -> bool:
        """Remove the token of that name; return whether there was one."""
        before = len(self._by_hash)
        self._by_hash = {sha256: one for sha256, one in self._by_hash.items() if one.name != name}
        return len(self._by_hash) < before

    def identify(self, token: str) -> Identity | None:
        """Return the owner of `token`.

        The look-up is by its hash, so that its time says nothing of tokens that are accepted.
        """
        return self.owner(hash_of(token))

    def owner(self, sha256: str) -> Identity | None:
        """Return the owner of the token with this hash, None if it is not accepted or has expired."""
        found = self._by_hash.get(sha256)
        if found is None or (found.expires_s is not None and found.expires_s <= self._clock.time()):
            return None
        return found

    def identify_header(self, authorization: str) -> Identity | None:
        """Return the owner of the token in an Authorization header: Basic with the token as password, or Bearer."""
        token = token_of(authorization)
        return None if token is None else self.identify(token)


def hash_of(token: str) -> str:
    """Return the hash under which a token is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def token_of(authorization: str) -> str | None:
    """Return the token in an Authorization header: Basic with the token as password, or Bearer; None without one."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(rest.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return None
    return text.partition(":")[2]


def parse_role(text: str) -> Role:
    """Return the role of that name. Raises ConfigError."""
    if text not in _ROLES:
        raise ConfigError(f"{text[:80]!r} is not a role; it is one of {', '.join(_ROLES)}")
    return _ROLES[text]


def _lines(identity: Identity) -> list[str]:
    roles = ", ".join(f"{_quoted(scenario)} = {_quoted(str(role))}" for scenario, role in identity.roles.items())
    lines = [
        f"[tokens.{_quoted(identity.name)}]",
        f'sha256 = "{identity.sha256}"',
        f"roles = {{ {roles} }}",
    ]
    if identity.branches:
        patterns = (
            f"{_quoted(scenario)} = [{', '.join(map(_quoted, patterns))}]"
            for scenario, patterns in identity.branches.items()
        )
        lines.append(f"branches = {{ {', '.join(patterns)} }}")
    times = {"expires_s": identity.expires_s, "made_s": identity.made_s}
    lines += [f"{key} = {float(at_s)!r}" for key, at_s in times.items() if at_s is not None]
    if identity.made_by:
        lines.append(f"made_by = {_quoted(identity.made_by)}")
    return [*lines, ""]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string, for printable text


def _parse_identity(where: str, name: str, value: Any) -> tuple[Identity, bool]:
    """Return the entry, and whether its roles have the names of before."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a section with sha256 and roles")
    keys = ("sha256", "roles", "branches", "expires_s", "made_s", "made_by")
    unknown = [key for key in value if key not in keys]
    if unknown:
        raise ConfigError(f"{where} {unknown[0]}: unknown; there are {', '.join(keys)}")
    digest = value.get("sha256")
    if not isinstance(digest, str) or len(digest) != 64 or any(letter not in "0123456789abcdef" for letter in digest):
        raise ConfigError(f"{where} sha256: must be the token's sha256 in lower-case hex")
    roles = value.get("roles")
    if not isinstance(roles, dict):
        raise ConfigError(f'{where} roles: must map scenarios to roles, such as {{ shop = "author" }}')
    parsed = {}
    is_earlier = False
    for scenario, text in roles.items():
        if not isinstance(text, str):
            raise ConfigError(f"{where} roles.{scenario}: must be one of {', '.join(_ROLES)}, is {text!r}")
        if text in _EARLIER_ROLES:
            is_earlier = True
            first = name == _FIRST_NAME and (scenario, text) == (ANY_SCENARIO, "release")
            parsed[scenario] = Role.ADMIN if first else _EARLIER_ROLES[text]
        elif text in _ROLES:
            parsed[scenario] = _ROLES[text]
        else:
            raise ConfigError(f"{where} roles.{scenario}: must be one of {', '.join(_ROLES)}, is {text!r}")
        _check_role(f"{where} roles", scenario, parsed[scenario])
    branches = value.get("branches", {})
    if not isinstance(branches, dict):
        raise ConfigError(f'{where} branches: must map scenarios to patterns, such as {{ shop = ["ipv"] }}')
    for scenario, patterns in branches.items():
        _check_branches(f"{where} branches", scenario, patterns)
    times = {}
    for key in ("expires_s", "made_s"):
        at_s = value.get(key)
        if at_s is not None and (isinstance(at_s, bool) or not isinstance(at_s, int | float) or not at_s >= 0):
            raise ConfigError(f"{where} {key}: must be seconds since the epoch, is {at_s!r}")
        times[key] = None if at_s is None else float(at_s)
    made_by = value.get("made_by", "")
    if not isinstance(made_by, str):
        raise ConfigError(f"{where} made_by: must be a token's name, is {made_by!r}")
    kept = {scenario: tuple(patterns) for scenario, patterns in branches.items()}
    return Identity(name, digest, parsed, kept, times["expires_s"], times["made_s"], made_by), is_earlier


def _check_role(where: str, scenario: str, role: Role) -> None:
    _check_scenario(where, scenario)
    if role in _EVERYWHERE and scenario != ANY_SCENARIO:
        raise ConfigError(f'{where}.{scenario}: the role {role} is for the whole cloud; write "*" = "{role}"')


def _check_scenario(where: str, scenario: str) -> None:
    if scenario != ANY_SCENARIO and not is_name(_group_of(scenario) or scenario):
        raise ConfigError(f"{where}: {scenario[:80]!r} is not *, GROUP/* or a scenario ({NAME_RULE})")


def _check_branches(where: str, scenario: str, patterns: Any) -> None:
    _check_scenario(where, scenario)
    if not isinstance(patterns, list | tuple) or not 0 < len(patterns) <= _MAX_BRANCH_PATTERNS:
        raise ConfigError(f"{where}.{scenario}: must be a list of 1 to {_MAX_BRANCH_PATTERNS} patterns of branches")
    for pattern in patterns:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= 200 or not pattern.isprintable():
            raise ConfigError(f"{where}.{scenario}: {str(pattern)[:80]!r} is not a pattern of branches, such as news-*")
