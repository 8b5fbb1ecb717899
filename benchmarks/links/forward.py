"""Forwarding of IP packets between two TUN devices with the delay, loss and rate of a link, in a process of its own.

    python -m benchmarks.links.forward DEVICE_FD CLOUD_FD SEED SHAPE_JSON [each]

With `each`, every TCP connection has a link of its own, as phones have; otherwise all share one.
Runs until stdin ends, then prints the counts of both directions as JSON.
"""

import collections
import heapq
import json
import os
import random
import select
import sys
import time

from benchmarks.links.shape import Direction, LinkShape

_MTU_BYTES = 1500
_MAX_READ = 64  # packets of one side, before due packets of the other are written


class Path:
    """Packets from one TUN device on their way to the other.

    `port_at` is where the TCP header has the device's port if each connection has a link of its own, else None.
    """

    def __init__(self, source: int, sink: int, shape: LinkShape, seed: str, port_at: int | None) -> None:
        self.source = source
        self.sink = sink
        self._shape = shape
        self._seed = seed
        self._port_at = port_at
        self._directions: dict[bytes, Direction] = {}
        self._read = 0
        self.on_the_way: list[tuple[float, int, bytes]] = []  # a heap by time of arrival

    def counts(self) -> dict[str, int]:
        total = collections.Counter[str]()
        for direction in self._directions.values():
            total.update(direction.counts())
        return dict(total)

    def _direction(self, packet: bytes) -> Direction:
        port = b""
        if self._port_at is not None:
            at = (packet[0] & 15) * 4 + self._port_at
            port = packet[at : at + 2]
        direction = self._directions.get(port)
        if direction is None:
            number = f" {len(self._directions)}" if port else ""  # numbered in the order of their first packets
            direction = self._directions[port] = Direction(self._shape, random.Random(self._seed + number))
        return direction

    def read(self) -> None:
        for _ in range(_MAX_READ):
            try:
                packet = os.read(self.source, _MTU_BYTES + 64)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:  # IPv6 router solicitations of the kernel
                continue
            arrives_s = self._direction(packet).send(len(packet), time.monotonic())
            if arrives_s is not None:
                self._read += 1
                heapq.heappush(self.on_the_way, (arrives_s, self._read, packet))

    def write_due(self) -> None:
        while self.on_the_way and self.on_the_way[0][0] <= time.monotonic():
            os.write(self.sink, heapq.heappop(self.on_the_way)[2])


def forward(
    device: int, cloud: int, stop: int, shape: LinkShape, seed: int, *, each: bool
) -> dict[str, dict[str, int]]:
    """Forward until `stop` is readable; return the counts of both directions."""
    for file in (device, cloud):
        os.set_blocking(file, False)
    up = Path(device, cloud, shape, f"{seed} up", 0 if each else None)
    down = Path(cloud, device, shape, f"{seed} down", 2 if each else None)
    paths = {device: up, cloud: down}
    while True:
        due_s = [path.on_the_way[0][0] for path in paths.values() if path.on_the_way]
        timeout_s = max(0.0, min(due_s) - time.monotonic()) if due_s else None
        readable, _, _ = select.select([device, cloud, stop], [], [], timeout_s)
        if stop in readable:
            for path in paths.values():  # what came before the stop counts
                path.read()
            return {"up": up.counts(), "down": down.counts()}
        for file in readable:
            paths[file].read()
        for path in paths.values():
            path.write_due()


if __name__ == "__main__":
    _, device_fd, cloud_fd, link_seed, shape_json, *options = sys.argv
    link_shape = LinkShape(**json.loads(shape_json))
    counts = forward(int(device_fd), int(cloud_fd), 0, link_shape, int(link_seed), each="each" in options)
    sys.stdout.write(json.dumps(counts))
