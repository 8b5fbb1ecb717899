"""Byte budget of a tunnel server: the bounds on what it holds for its devices, for all together and for one.

Three accounts, each with a share of the budget, so that none starves another:
- buffered: received bytes that are not processed (partial frames, and frames of a paused connection), and answers that
  the device has not read. `ReadCredit` keeps those within the devices' windows below three quarters of the share.
  Answers, and frames that are larger than a window, only the device or the end of its connection releases: beyond the
  share, connections are closed, the one that holds most of these first.
- requests: decompressed requests until their answer is known. Beyond the share, connections wait before the
  decompression. Requests above SMALL_BYTES may take half of it, so that they do not delay small ones.
- uploads: topics and payloads until they are stored. Beyond the share, connections are not read.

An empty account accepts anything that a frame can hold, so that there is always progress.
"""

from walle.engine_ext import _core

SMALL_BYTES = 64 << 10


def uploads_share(total_bytes: int) -> int:
    """Return the share of uploads in a budget."""
    return total_bytes * 3 // 8


class ByteBudget:
    """The bytes in each account, and the shares of `total_bytes`. `device_bytes` bounds one device in each account.

    The account of uploads is that of their queue.
    """

    def __init__(self, total_bytes: int, device_bytes: int, queue: _core.UploadQueue) -> None:
        self.device_bytes = device_bytes
        self.buffered_share = total_bytes * 3 // 8
        self.requests_share = total_bytes // 4
        self.uploads_share = uploads_share(total_bytes)
        self.buffered = 0
        self.requests = 0
        self._queue = queue

    @property
    def uploads(self) -> int:
        return self._queue.held_bytes

    @property
    def held_bytes(self) -> int:
        """The sum of the accounts."""
        return self.buffered + self.requests + self.uploads

    @property
    def is_buffered_over(self) -> bool:
        return self.buffered > self.buffered_share

    @property
    def are_uploads_low(self) -> bool:
        """True below half of the share: connections that resume here do not pause again at the next upload."""
        return self.uploads * 2 <= self.uploads_share

    def fits_request(self, size_bytes: int, device_requests: int) -> bool:
        """Return whether a request may be decompressed now, for a device whose requests hold `device_requests`."""
        if device_requests and device_requests + size_bytes > self.device_bytes:
            return False
        share = self.requests_share if size_bytes <= SMALL_BYTES else self.requests_share // 2
        return not self.requests or self.requests + size_bytes <= share
