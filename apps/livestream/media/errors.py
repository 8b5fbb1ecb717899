"""Errors of reading media.

MediaError
├── AddressError         a path, device or address that is not read
├── UnreadableError      no media file, or one whose beginning is damaged or missing
├── NoStreamError        a file with neither video nor sound
├── DecoderMissingError  a codec that this build of FFmpeg cannot decode
├── MediaLimitError      more pixels, streams or channels than the limits allow
├── ConnectionLostError  a live source that did not come back, or an address that does not answer
└── ClipError            a clip or thumbnail that cannot be made
"""

from walle.errors import WalleError


class MediaError(WalleError):
    """A source that cannot be read. `where` is its path or address."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class AddressError(MediaError):
    """A path, device or address that is not read: it does not exist, or its kind is not allowed."""


class UnreadableError(MediaError):
    """Bytes that are not media of a container that is read, or whose header is damaged or missing."""


class NoStreamError(MediaError):
    """A container with neither video nor sound."""


class DecoderMissingError(MediaError):
    """A stream whose codec has no decoder here. `kind` is "video" or "sound"."""

    def __init__(self, where: str, kind: str, codec: str) -> None:
        super().__init__(
            where, f"the {kind} is coded in {codec}, for which FFmpeg has no decoder here; convert it to H.264 and AAC"
        )
        self.kind = kind
        self.codec = codec


class MediaLimitError(MediaError):
    """A source that exceeds one of `MediaLimits`."""

    def __init__(self, where: str, what: str, value: int, limit: int, name: str) -> None:
        super().__init__(where, f"{what} is {value}, and the limit is {limit}; raise MediaLimits.{name} to read it")
        self.value = value
        self.limit = limit


class ConnectionLostError(MediaError):
    """A network source that does not answer, or did not come back. `at_ms` is how far it was read, None before that."""

    def __init__(self, where: str, message: str, at_ms: int | None = None) -> None:
        super().__init__(where, message if at_ms is None else f"{message}, at {at_ms / 1000:.1f} s")
        self.at_ms = at_ms


class ClipError(MediaError):
    """A clip or a thumbnail that cannot be made."""
