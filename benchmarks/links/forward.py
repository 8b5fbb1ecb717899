"""Forwarding of IP packets between two TUN devices with the delay, loss and rate of a link, in a process of its own.

    python -m benchmarks.links.forward DEVICE_FD CLOUD_FD SEED SHAPE_JSON

Runs until stdin ends, then prints the counts of both directions as JSON.
"""

import collections
import json
import os
import random
import select
import sys
import time

from benchmarks.links.shape import Direction, LinkShape

_MTU_BYTES = 1500
_MAX_READ = 64  # packets of one side, before due packets of the other are written


class _Path:
    """Packets from one TUN device on their way to the other."""

    def __init__(self, source: int, sink: int, direction: Direction) -> None:
        self.source = source
        self.sink = sink
        self.direction = direction
        self.on_the_way: collections.deque[tuple[float, bytes]] = collections.deque()  # in order of arrival

    def read(self) -> None:
        for _ in range(_MAX_READ):
            try:
                packet = os.read(self.source, _MTU_BYTES + 64)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:  # IPv6 router solicitations of the kernel
                continue
            arrives_s = self.direction.send(len(packet), time.monotonic())
            if arrives_s is not None:
                self.on_the_way.append((arrives_s, packet))

    def write_due(self) -> None:
        while self.on_the_way and self.on_the_way[0][0] <= time.monotonic():
            os.write(self.sink, self.on_the_way.popleft()[1])


def forward(device: int, cloud: int, stop: int, shape: LinkShape, seed: int) -> dict[str, dict[str, int]]:
    """Forward until `stop` is readable; return the counts of both directions."""
    for file in (device, cloud):
        os.set_blocking(file, False)
    up = _Path(device, cloud, Direction(shape, random.Random(f"{seed} up")))
    down = _Path(cloud, device, Direction(shape, random.Random(f"{seed} down")))
    paths = {device: up, cloud: down}
    while True:
        due_s = [path.on_the_way[0][0] for path in paths.values() if path.on_the_way]
        timeout_s = max(0.0, min(due_s) - time.monotonic()) if due_s else None
        readable, _, _ = select.select([device, cloud, stop], [], [], timeout_s)
        if stop in readable:
            return {"up": up.direction.counts(), "down": down.direction.counts()}
        for file in readable:
            paths[file].read()
        for path in paths.values():
            path.write_due()


if __name__ == "__main__":
    _, device_fd, cloud_fd, link_seed, shape_json = sys.argv
    counts = forward(int(device_fd), int(cloud_fd), 0, LinkShape(**json.loads(shape_json)), int(link_seed))
    sys.stdout.write(json.dumps(counts))
