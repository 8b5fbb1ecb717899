"""Tokens of the clouds that a person has logged in to, and the options by which commands find a cloud and a token.

They are in `~/.config/walle/credentials.toml` (or below XDG_CONFIG_HOME), which only its owner can read:

    [clouds."http://127.0.0.1:8470"]
    token = "walle_..."
"""

import json
import os
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

import typer

from walle.durable_file import make_folders, write_file
from walle.errors import ConfigError

_OTHERS = 0o077


class CredentialsError(ConfigError):
    """A file of tokens that cannot be used. `path` is the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class Credentials:
    """Token of each cloud, by its address.

    Raises:
        CredentialsError: the file is not in its form, or others can read it.
    """

    def __init__(self, path: Path, tokens: Mapping[str, str]) -> None:
        self._path = path
        self._tokens = dict(tokens)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Return the tokens in the file, none if it does not exist."""
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
            clouds = tomllib.loads(text).get("clouds", {})
            tokens = {url: section["token"] for url, section in clouds.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CredentialsError(path, "is not a file of `walle login`; remove it and log in again") from error
        if not all(isinstance(token, str) for token in tokens.values()):
            raise CredentialsError(path, "a token in it is not a text; remove it and log in again")
        return cls(path, tokens)

    @property
    def path(self) -> Path:
        return self._path

    def token(self, url: str) -> str:
        """Return the token for the cloud at `url`, "" without one."""
        return self._tokens.get(origin_of(url), "")

    def put(self, url: str, token: str) -> None:
        """Keep the token for the cloud at `url`, in the file too."""
        self._tokens[origin_of(url)] = token
        self._save()

    def remove(self, url: str) -> bool:
        """Forget the token for the cloud at `url`; return whether there was one."""
        is_known = self._tokens.pop(origin_of(url), None) is not None
        if is_known:
            self._save()
        return is_known

    def _save(self) -> None:
        make_folders(self._path.parent, mode=0o700)
        lines = [f"[clouds.{json.dumps(url)}]\ntoken = {json.dumps(token)}\n" for url, token in self._tokens.items()]
        write_file(self._path, "\n".join(lines), mode=0o600)


def origin_of(url: str) -> str:
    """Return scheme, host and port of an address, by which its token is kept."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"


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
    return os.environ.get("WALLE_TOKEN", "") or (Credentials.load().token(url) if url else "")


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
