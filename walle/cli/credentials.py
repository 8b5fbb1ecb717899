"""Tokens and authorities of the clouds that a person has logged in to, and the options that find a cloud and a token.

They are in `~/.config/walle/credentials.toml` (or below XDG_CONFIG_HOME), which only its owner can read:

    [clouds."https://127.0.0.1:8470"]
    token = "walle_..."
    ca_file = "/home/me/.config/walle/127.0.0.1-8470.pem"    # for a cloud with its own CA
"""

import hashlib
import ipaddress
import json
import os
import re
import ssl
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import typer

from walle.base.durable_file import make_folders, write_file
from walle.errors import ConfigError

_OTHERS = 0o077


class CredentialsError(ConfigError):
    """A file of tokens that cannot be used. `path` is the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class KnownCloud(NamedTuple):
    """Record of a cloud: the token, and the CA by which it is trusted; "" without."""

    token: str = ""
    ca_file: str = ""


class Credentials:
    """Token and pinned CA of each cloud, by its address.

    Raises:
        CredentialsError: the file is not in its form, or others can read it.
    """

    def __init__(self, path: Path, clouds: Mapping[str, KnownCloud]) -> None:
        self._path = path
        self._clouds = dict(clouds)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Return what is in the file, nothing if it does not exist."""
        path = path or _default_path()
        try:
            mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(path, {})
        except OSError as error:
            raise CredentialsError(path, error.strerror or str(error)) from error
        if mode & _OTHERS:
            raise CredentialsError(path, f"others can read it; run: chmod 600 {path}; then revoke its tokens")
        try:
            sections = tomllib.loads(text).get("clouds", {})
            clouds = {url: KnownCloud(one["token"], one.get("ca_file", "")) for url, one in sections.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CredentialsError(path, "is not a file of `walle login`; remove it and log in again") from error
        if not all(isinstance(text, str) for cloud in clouds.values() for text in cloud):
            raise CredentialsError(path, "a value in it is not a text; remove it and log in again")
        return cls(path, clouds)

    @property
    def path(self) -> Path:
        return self._path

    def get(self, url: str) -> KnownCloud:
        """Return what is kept of the cloud at `url`."""
        return self._clouds.get(origin_of(url), KnownCloud())

    def ca_pem(self, url: str) -> str:
        """Return the CA that was pinned for `url`, "" without one. Raises CredentialsError."""
        file = self.get(url).ca_file
        if not file:
            return ""
        try:
            return Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(Path(file), f"cannot be read ({error}); log in again") from error

    def put(self, url: str, token: str, ca_pem: str | None = None) -> None:
        """Keep the token for the cloud at `url`, and its CA: None for the one that is kept, "" for none."""
        ca_file = self.get(url).ca_file
        make_folders(self._path.parent, mode=0o700)
        if ca_pem is not None:
            ca_file = ""
            if ca_pem:
                name = re.sub(r"[^\w.]+", "-", origin_of(url).partition("://")[2]) + ".pem"
                write_file(self._path.parent / name, ca_pem, mode=0o600)
                ca_file = str(self._path.parent / name)
        self._clouds[origin_of(url)] = KnownCloud(token, ca_file)
        self._save()

    def remove(self, url: str) -> bool:
        """Forget the cloud at `url`; return whether there was one."""
        is_known = self._clouds.pop(origin_of(url), None) is not None
        if is_known:
            self._save()
        return is_known

    def _save(self) -> None:
        make_folders(self._path.parent, mode=0o700)
        lines = []
        for url, cloud in self._clouds.items():
            lines += [f"[clouds.{json.dumps(url)}]", f"token = {json.dumps(cloud.token)}"]
            lines += [f"ca_file = {json.dumps(cloud.ca_file)}"] if cloud.ca_file else []
        write_file(self._path, "\n".join(lines) + "\n", mode=0o600)


def fingerprint_of(ca_pem: str) -> str:
    """Return the SHA-256 of a certificate in hex, as `openssl x509 -fingerprint -sha256` without colons.

    Raises:
        ConfigError: `ca_pem` is not a certificate.
    """
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca_pem)).hexdigest()
    except ValueError as error:
        raise ConfigError(f"this is not a certificate in PEM ({error})") from error


def ca_of(url: str) -> str:
    """Return the CA for the cloud at `url`: the file of WALLE_CA_FILE, or what login pinned."""
    file = os.environ.get("WALLE_CA_FILE", "")
    if not file:
        return Credentials.load().ca_pem(url) if url.startswith("https://") else ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(Path(file), f"WALLE_CA_FILE cannot be read ({error})") from error


def origin_of(url: str) -> str:
    """Return scheme, host and port of an address, by which its token is kept."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_network(text: str) -> bool:
    """Return whether a text is an address or a network of addresses."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def read_token(path: Path) -> str:
    """Return the token that is the whole of a file. Raises CredentialsError."""
    try:
        return check_token(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(path, f"cannot be read as a token ({error})") from error
    except ConfigError as error:
        raise CredentialsError(path, str(error)) from error


def check_token(text: str) -> str:
    """Return a token without the white space around it. Raises ConfigError if it cannot be one."""
    token = text.strip()
    if not token or len(token) > 1000 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("this is not a token, which is one word, such as in admin.token of a cloud's folder")
    return token


def _token_of(context: typer.Context, path: str) -> str:
    """Return the token for a command: of the file, of WALLE_TOKEN, or of `walle login`; "" without one."""
    if path:
        return read_token(Path(path))
    url = context.params.get("url") or ""
    return os.environ.get("WALLE_TOKEN", "") or (Credentials.load().get(url).token if url else "")


def _default_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "walle" / "credentials.toml"


UrlOption = Annotated[  # eager: it is there when the token is looked up
    str,
    typer.Option("--url", envvar="WALLE_URL", is_eager=True, help="The cloud, as `walle cloud up` prints it."),
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token-file",
        callback=_token_of,
        help="File that has your token; if not given, WALLE_TOKEN, or the token of `walle login`.",
    ),
]
