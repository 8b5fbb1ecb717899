"""Access control: tokens and their roles by scenario (§6, "collaborative development with access control").

```
[tokens.anna]
sha256 = "9f86d0..."                  # of the token; the file itself grants no access
roles = { shop = "release", "*" = "read" }
```
Each role may do what the one before it may: `read` clones and fetches, and reads the features that devices upload;
`write` pushes branches; `release` makes versions (pushes tags `TASK/vN`) and releases them.
"""

import base64
import binascii
import dataclasses
import enum
import hashlib
import hmac
import json
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from walle.deploy.cloud.task_config import NAME_RULE, is_name
from walle.durable_file import write_file
from walle.errors import ConfigError

ANY_SCENARIO = "*"


class Role(enum.IntEnum):
    """Rights of a token in a scenario, in rising order."""

    NONE = 0
    READ = 1
    WRITE = 2
    RELEASE = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclasses.dataclass(frozen=True)
class Identity:
    """Owner of a token. `sha256` is the token's, in hex; `roles` maps a scenario or `*` to a role."""

    name: str
    sha256: str
    roles: Mapping[str, Role]

    def role(self, scenario: str) -> Role:
        """Return the role in `scenario`: its own entry, or that of `*`."""
        return self.roles.get(scenario, self.roles.get(ANY_SCENARIO, Role.NONE))

    def readable_scenarios(self) -> frozenset[str] | None:
        """Return the scenarios that the owner may read, None for all: every role includes reading."""
        return None if ANY_SCENARIO in self.roles else frozenset(self.roles)


class Access:
    """The tokens that are accepted."""

    def __init__(self, identities: Iterable[Identity] = ()) -> None:
        self._identities = list(identities)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the tokens in the file at `path`.

        Raises:
            ConfigError: the file is missing, not TOML, or has an invalid entry, which the message names.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"access file {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"access file {path} is not TOML: {error}") from error
        unknown = [key for key in document if key != "tokens"]
        if unknown:
            raise ConfigError(f"{path}: unknown section [{unknown[0]}]; there is only [tokens.NAME]")
        tokens = document.get("tokens", {})
        if not isinstance(tokens, dict):
            raise ConfigError(f"{path}: tokens must be sections [tokens.NAME]")
        return cls(_parse_identity(f"{path}: [tokens.{name}]", name, value) for name, value in tokens.items())

    def save(self, path: Path) -> None:
        """Write the file that `load` reads, atomically, readable by its owner only."""
        lines = []
        for identity in self._identities:
            roles = ", ".join(
                f"{_quoted(scenario)} = {_quoted(str(role))}" for scenario, role in identity.roles.items()
            )
            lines += [
                f"[tokens.{_quoted(identity.name)}]",
                f'sha256 = "{identity.sha256}"',
                f"roles = {{ {roles} }}",
                "",
            ]
        write_file(path, "\n".join(lines).encode(), mode=0o600)

    def issue(self, name: str, roles: Mapping[str, Role]) -> str:
        """Return a new token for `name`, replacing any earlier one. Only its hash is stored.

        Raises:
            ConfigError: the name is empty or has characters that are not printable.
        """
        if not name or not name.isprintable():
            raise ConfigError(f"{name[:80]!r} cannot name a token's owner; use printable characters")
        token = secrets.token_urlsafe(32)
        self._identities = [identity for identity in self._identities if identity.name != name]
        self._identities.append(Identity(name, hashlib.sha256(token.encode()).hexdigest(), dict(roles)))
        return token

    def identify(self, token: str) -> Identity | None:
        """Return the owner of `token`; the time taken does not depend on the token."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for identity in self._identities:
            if hmac.compare_digest(identity.sha256, digest):
                found = identity
        return found

    def identify_header(self, authorization: str) -> Identity | None:
        """Return the owner of the token in an Authorization header: Basic with the token as password, or Bearer."""
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self.identify(rest.strip())
        if scheme.lower() != "basic":
            return None
        try:
            text = base64.b64decode(rest.strip(), validate=True).decode("utf-8", "surrogateescape")
        except (binascii.Error, ValueError):
            return None
        return self.identify(text.partition(":")[2])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string, for printable text


def _parse_identity(where: str, name: str, value: Any) -> Identity:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a section with sha256 and roles")
    unknown = [key for key in value if key not in ("sha256", "roles")]
    if unknown:
        raise ConfigError(f"{where} {unknown[0]}: unknown; there are sha256 and roles")
    digest = value.get("sha256")
    if not isinstance(digest, str) or len(digest) != 64 or any(letter not in "0123456789abcdef" for letter in digest):
        raise ConfigError(f"{where} sha256: must be the token's sha256 in lower-case hex")
    roles = value.get("roles")
    if not isinstance(roles, dict):
        raise ConfigError(f'{where} roles: must map scenarios to roles, such as {{ shop = "write" }}')
    parsed = {}
    for scenario, text in roles.items():
        if scenario != ANY_SCENARIO and not is_name(scenario):
            raise ConfigError(f"{where} roles: {scenario!r} is neither * nor a scenario ({NAME_RULE})")
        if text not in ("read", "write", "release"):
            raise ConfigError(f"{where} roles.{scenario}: must be read, write or release, is {text!r}")
        parsed[scenario] = Role[text.upper()]
    return Identity(name, digest, parsed)
