"""Addresses of other systems, `scheme://user@host:port/path?option=value`, without passwords."""

import dataclasses
import urllib.parse
from collections.abc import Mapping

from walle.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Address:
    """An address in parts; `options` are those after `?`."""

    scheme: str
    host: str
    port: int | None
    user: str
    path: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{self.host}{port}{self.path}"

    def check_options(self, *known: str) -> None:
        """Raise ConfigError where an option is not one of `known`."""
        if unknown := sorted(self.options.keys() - set(known)):
            what = f"the option {unknown[0][:100]!r} of a {self.scheme}:// address is unknown"
            raise ConfigError(f"{what}; it has {', '.join(known) or 'none'}")


def parse_address(text: str, *, password_in: str) -> Address:
    """Return a URL in parts; `password_in` is the environment variable that has the password.

    Raises:
        ConfigError: it is not a URL, or has a password, which other users of the machine could read.
    """
    try:
        parts = urllib.parse.urlsplit(text, allow_fragments=False)  # `#` is a part of topics
        port, password = parts.port, parts.password
        options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # neither its text nor the address is shown: they may have a password
        scheme = text.partition("://")[0][:20]
        form = f"{scheme}://USER@HOST:PORT/PATH?OPTION=VALUE"
        what = f"the {scheme}:// address cannot be read: write {form}, with %2F for / in a user"
        raise ConfigError(f"{what}, and the password in {password_in}") from None
    if password is not None:
        raise ConfigError(f"{parts.scheme}://{parts.hostname}: give the password in {password_in}, not in the address")
    user = urllib.parse.unquote(parts.username or "")
    return Address(parts.scheme, parts.hostname or "", port, user, urllib.parse.unquote(parts.path), options)
