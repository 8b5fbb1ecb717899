"""Parser of short profiles: every request of a fleet has one, so that microseconds count."""

import msgspec

from walle.protocol import MAX_PARTS, PROFILE_HEADER, Attribute, Profile, ProtocolError

_MAX_PLACE_CHARS = 700


class SentProfile(msgspec.Struct, frozen=True, gc=False):
    """A `ShortProfile` as it was sent: app version, parts, attributes and place."""

    a: str
    p: tuple[str, ...]
    x: dict[str, Attribute]
    n: str = ""


class _FullFields(msgspec.Struct):
    d: msgspec.Raw


_decode = msgspec.json.Decoder(SentProfile).decode
_decode_full = msgspec.json.Decoder(_FullFields).decode


def parse_short(raw: bytes) -> SentProfile | None:
    """Return the short profile in a header, None where the header is another one, which `Profile` may read.

    Raises:
        ProtocolError: it is neither, or a short one with a part that is wrong.
    """
    try:
        fields = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and not _is_full(raw):
            raise ProtocolError(PROFILE_HEADER, str(error)) from error
        return None
    count = len(fields.p)
    if len(raw) > Profile.MAX_HEADER_BYTES or len(fields.n) > _MAX_PLACE_CHARS:
        raise ProtocolError(PROFILE_HEADER, f"{len(raw)} bytes, or its place, are too many")
    if not 0 < count <= MAX_PARTS or count & (count - 1):
        raise ProtocolError(f"{PROFILE_HEADER}.p", f"{count} parts, not a power of two up to {MAX_PARTS}")
    return fields


def _is_full(raw: bytes) -> bool:
    """Return whether the header may be a full profile or is not an object at all, whose errors `Profile` tells."""
    try:
        _decode_full(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return not raw.lstrip().startswith(b"{")
    return True
