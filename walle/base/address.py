"""Addresses of other systems, `scheme://user@host:port/path?option=value`, without passwords."""

import dataclasses
import re
import urllib.parse
from collections.abc import Mapping

from walle.errors import ConfigError

_QUOTED = re.compile(r"[\x00-\x20\x7f%?]")  # characters that a path in an address has only as %XX


@dataclasses.dataclass(frozen=True)
class Address:
    """An address in parts; `options` are those after `?`. The host of an IPv6 address is without its brackets.

    As text it is without user and options; `parse_address` of the text returns the other parts.
    """

    scheme: str
    host: str
    port: int | None
    user: str
    path: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        path = _QUOTED.sub(lambda found: f"%{ord(found[0]):02X}", self.path)
        return f"{self.scheme}://{self.host_in_url}{port}{path}"

    @property
    def host_in_url(self) -> str:
        """The host as a URL has it, before its port: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

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
    user = urllib.parse.unquote(parts.username or "")
    address = Address(parts.scheme, parts.hostname or "", port, user, urllib.parse.unquote(parts.path), options)
    if password is not None:
        where = f"{address.scheme}://{address.host_in_url}"
        raise ConfigError(f"{where}: give the password in {password_in}, not in the address")
    return address
