"""Addresses of sources: a file, a webcam, HTTP or RTSP. Any other kind is refused by name."""

import dataclasses
import os
import stat
import urllib.parse
from enum import Enum
from pathlib import Path

from apps.livestream.media.errors import AddressError

_ADVICE = "give a file, 'webcam', 'webcam:/dev/videoN', or an http://, https:// or rtsp:// address"
_DEFAULT_DEVICE = "/dev/video0"


class Kind(Enum):
    """Kind of a source."""

    FILE = "file"
    WEBCAM = "webcam"
    HTTP = "http"
    RTSP = "rtsp"


@dataclasses.dataclass(frozen=True)
class Address:
    """A checked address: `target` is a path or a URL, `shown` is it without a password."""

    kind: Kind
    target: str
    shown: str

    @classmethod
    def parse(cls, where: str | os.PathLike[str]) -> "Address":
        """Return the address that `where` means; nothing is opened.

        Raises:
            AddressError: an unknown scheme, an address without a host, a device or file that does not exist.
        """
        text = os.fspath(where)
        if not text or "\0" in text:
            raise AddressError(repr(text), f"not an address; {_ADVICE}")
        if isinstance(where, str):
            if text == "webcam" or text.startswith("webcam:"):
                return _webcam(text)
            if "://" in text:
                return _network(text)
        return _file(text)


def _webcam(text: str) -> Address:
    device = text.removeprefix("webcam").removeprefix(":") or _DEFAULT_DEVICE
    if device.isdecimal():
        device = f"/dev/video{device}"
    try:
        mode = Path(device).stat().st_mode
    except OSError as error:
        raise AddressError(
            text, f"no camera at {device} ({error.strerror}); connect one, or name its device: webcam:/dev/videoN"
        ) from error
    if not stat.S_ISCHR(mode):
        raise AddressError(text, f"{device} is not a device; name a camera's: webcam:/dev/videoN")
    return Address(Kind.WEBCAM, device, text)


def _network(text: str) -> Address:
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError(text[:200], f"not an address ({error}); {_ADVICE}") from error
    if parts.scheme not in {"http", "https", "rtsp"}:
        raise AddressError(text[:200], f"addresses of {parts.scheme!r} are not read; {_ADVICE}")
    if not host or any(character <= " " for character in text):
        raise AddressError(text[:200], f"the address has no host, or a space; {_ADVICE}")
    location = f"[{host}]" if ":" in host else host
    shown = parts._replace(netloc=location if port is None else f"{location}:{port}", query="", fragment="").geturl()
    return Address(Kind.RTSP if parts.scheme == "rtsp" else Kind.HTTP, text, shown)


def _file(text: str) -> Address:
    path = Path(text)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise AddressError(text, f"cannot be opened ({error.strerror}); {_ADVICE}") from error
    if not stat.S_ISREG(mode):
        raise AddressError(text, f"not a regular file; {_ADVICE}")
    return Address(Kind.FILE, text, text)
