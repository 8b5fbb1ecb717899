"""Limits on what a source may ask of this process, and the times after which it counts as lost."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Limits of one source. A container is written by strangers: each size in it is checked before it is allocated."""

    pixels: int = 8192 * 4320  # limit of a decoded picture, and of a delivered one
    streams: int = 32
    channels: int = 32
    sample_rate: int = 384_000  # hertz
    probe_bytes: int = 5_000_000  # read at most to find the streams
    probe_s: float = 2.0  # media time read at most to find the streams: the delay of a live transport stream
    packet_bytes: int = 32 << 20  # memory of the compressed packets of one stream that wait for the other's
    live_interleave_s: float = 1.0  # longest distance at which a live source's sound and video are still put in order
    silence_s: float = 10.0  # a longer gap in the sound is not filled
    sound_queue_s: float = 60.0  # sound that waits for the consumer of a live source; then the source waits
    open_s: float = 10.0  # time to connect and to find the streams
    stall_s: float = 10.0  # time without a packet after which a network source counts as lost
    reconnects: int = 5  # attempts after one loss
    backoff_s: float = 0.5  # pause before the first attempt; doubled for each further one
    backoff_max_s: float = 30.0

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait before reconnection `attempt`, which counts from 0."""
        return float(min(self.backoff_s * 2 ** min(attempt, 30), self.backoff_max_s))
