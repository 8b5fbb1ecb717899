"""The account of a source: what was decoded and what became of it, and the faults on the way."""

import dataclasses

from apps.livestream.media.items import SAMPLE_RATE

MAX_GAPS = 1_000  # kept with their times; further ones are counted


@dataclasses.dataclass(kw_only=True)
class FrameAccount:
    """Decoded frames, by what became of them."""

    decoded: int = 0
    delivered: int = 0
    sampled_away: int = 0  # frames that frames_per_second left out
    dropped: int = 0  # the consumer was behind: the oldest queued frame of a live source
    unusable: int = 0  # presentation time not after the frame before, or a pixel format that cannot be converted
    undelivered: int = 0  # decoded when the source was closed

    @property
    def balanced(self) -> bool:
        """True if each decoded frame is in exactly one of the other counts."""
        return self.decoded == (self.delivered + self.sampled_away + self.dropped + self.unusable + self.undelivered)


@dataclasses.dataclass(kw_only=True)
class SoundAccount:
    """Samples of sound, by what became of them: at the source's rate up to `trimmed`, at 16 kHz from `due` on.

    A segment is sound without a long gap and of one rate; the resampler rounds the length of each up or down.
    """

    decoded: int = 0
    silence: int = 0  # inserted into gaps
    trimmed: int = 0  # samples of frames that begin before the end of the one before
    segments: int = 0
    due: int = 0  # what decoded + silence - trimmed are at 16 kHz, `unconverted` left out
    unconverted: int = 0  # samples in the resampler when the source was closed
    converted: int = 0  # samples that the resampler gave
    padding: int = 0  # zeros after the last sample, to fill its chunk
    delivered: int = 0
    undelivered: int = 0  # converted when the source was closed

    @property
    def balanced(self) -> bool:
        """True if each sample is accounted for: sound is never dropped."""
        return (
            abs(self.converted - self.due) <= self.segments
            and self.converted + self.padding == self.delivered + self.undelivered
        )


@dataclasses.dataclass(frozen=True)
class Gap:
    """A time for which a source had nothing: a loss of the connection, or a jump of the sound's timestamps."""

    start_ms: int
    end_ms: int
    reason: str


@dataclasses.dataclass(kw_only=True)
class SourceReport:
    """The account of one source, up to date at each item and final once the source has ended or is closed."""

    where: str
    frames: FrameAccount = dataclasses.field(default_factory=FrameAccount)
    sound: SoundAccount = dataclasses.field(default_factory=SoundAccount)
    packets: int = 0
    damaged_packets: int = 0  # the demuxer or a decoder refused them
    corrupt_frames: int = 0  # delivered, with errors that the decoder concealed
    missing_timestamps: int = 0  # replaced by the end of the frame before
    timestamp_jumps: int = 0  # jumps of all streams of a live source, removed from the timeline
    silences: int = 0  # gaps in the sound that were filled
    overlaps: int = 0  # frames of sound that were trimmed
    out_of_order: int = 0  # items after a later one: video and sound are too far apart in the source
    resumed: int = 0  # connections that were continued at the same byte
    reconnects: int = 0  # connections of a live source that were opened again
    gaps: list[Gap] = dataclasses.field(default_factory=list)  # at most MAX_GAPS
    gap_count: int = 0
    expected_ms: int | None = None  # the container's duration, where it has one
    ended_ms: int = 0  # the end of the last packet that was read
    missing_bytes: int | None = None  # least bytes that should follow by the container's structure
    missing_packets: int = 0  # packets in the container's index and not in the file
    complete: bool | None = None  # False: truncated; None: not known, or not read to its end
    end: str = ""  # why the source ended; empty while it is read

    def add_gap(self, gap: Gap) -> None:
        self.gap_count += 1
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append(gap)

    @property
    def balanced(self) -> bool:
        """True if each decoded frame and sample was delivered, sampled away or counted as something else."""
        return self.frames.balanced and self.sound.balanced

    def summary(self) -> str:
        """Return one line for a person: how far the source was read, and what was lost or repaired."""
        of = "" if self.expected_ms is None else f" of {self.expected_ms / 1000:.1f} s"
        text = f"{self.where}: ended at {self.ended_ms / 1000:.1f} s{of}"
        if self.complete is False:
            text += " (truncated)"
        counts = {
            "frames dropped": self.frames.dropped,
            "frames unusable": self.frames.unusable,
            "damaged packets": self.damaged_packets,
            "corrupt frames": self.corrupt_frames,
            "gaps": self.gap_count,
            "gaps filled with silence": self.silences,
            "overlaps trimmed": self.overlaps,
            "reconnects": self.reconnects,
            "resumed connections": self.resumed,
            "items out of order": self.out_of_order,
        }
        found = [f"{count} {name}" for name, count in counts.items() if count]
        delivered_s = self.sound.delivered / SAMPLE_RATE
        return "; ".join([text, f"{self.frames.delivered} frames and {delivered_s:.1f} s of sound delivered", *found])
