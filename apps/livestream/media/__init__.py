"""Frames and sound of a file, a webcam or a stream, for the models of a livestream (ADR 26)."""

from apps.livestream.media.clip import clip, encode_jpeg, thumbnail
from apps.livestream.media.errors import (
    AddressError,
    ClipError,
    ConnectionLostError,
    DecoderMissingError,
    MediaError,
    MediaLimitError,
    NoStreamError,
    UnreadableError,
)
from apps.livestream.media.items import SAMPLE_RATE, Frame, Item, Sound
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.report import FrameAccount, Gap, SoundAccount, SourceReport
from apps.livestream.media.source import Source, SourceInfo, open_source

__all__ = [
    "SAMPLE_RATE",
    "AddressError",
    "ClipError",
    "ConnectionLostError",
    "DecoderMissingError",
    "Frame",
    "FrameAccount",
    "Gap",
    "Item",
    "MediaError",
    "MediaLimitError",
    "MediaLimits",
    "NoStreamError",
    "Sound",
    "SoundAccount",
    "Source",
    "SourceInfo",
    "SourceReport",
    "UnreadableError",
    "clip",
    "encode_jpeg",
    "open_source",
    "thumbnail",
]
