"""Costs of a ring of tunnel servers: an upload with the ring on and off, and the moves when a node joins or leaves.

- upload: CPU time of a server for each durable upload, as `upload` of `benchmarks/tunnel.py`, in turns without a ring
  and as one of four servers. Wall time is of one server and its devices' process.
- join, leave: 10,000 simulated devices and the servers' own rule (`RingPlace`), in steps: how many devices move when a
  fifth server joins four, and when it leaves, and how often a Hello is sent on, in all and of one device at most. The
  devices come at first to one address, as they do that have just joined.

    python -m benchmarks.tunnel_ring [--rounds 5] [--uploads 20000] [--devices 10000]
"""

import argparse
import asyncio
import json
import os
import statistics
from typing import Any

from benchmarks.headline import print_headline
from benchmarks.tunnel import (
    BATCH,
    RING,
    RING_NAME,
    WINDOW,
    ServerProcess,
    _loop_names,
    cpu_us,
    ipv_payloads,
    upload_frames,
)
from walle.base.clock import SystemClock
from walle.pipeline.tunnel.server.ring import Ring, RingMember, RingPlace


class Fleet:
    """Simulated devices on servers that follow a ring. `first` is the server that a device tries first."""

    def __init__(self, count: int, first: str) -> None:
        self.at = {f"device-{number}": "" for number in range(count)}
        self.sent_on = dict.fromkeys(self.at, 0)
        self._first = first
        self._places: dict[str, RingPlace] = {first: RingPlace(first, SystemClock())}

    def follow(self, ring: Ring) -> None:
        for member in ring.members:
            self._places.setdefault(member.name, RingPlace(member.name, SystemClock()))
        for place in self._places.values():
            place.take(ring)

    def come(self, device: str, server: str) -> None:
        """Say Hello at a server, and wherever that sends the device."""
        while (owner := self._places[server].send_on(device)) is not None:
            self.sent_on[device] += 1
            server = owner.name
        self.at[device] = server

    def move(self) -> int:
        """Move the connected devices that belong elsewhere; return how many did."""
        moved = 0
        for device, server in self.at.items():
            if not server:
                self.come(device, self._first)
            elif (owner := self._places[server].other(device)) is not None:
                self.come(device, owner.name)
                moved += 1
        return moved


def simulate(count: int) -> dict[str, Any]:
    """Return the moves and redirects of `count` devices, by step."""

    def ring(generation: int, servers: int) -> Ring:
        return Ring(generation, [RingMember(f"tunnel-{number}", "x.example", 7443) for number in range(servers)])

    fleet, found = Fleet(count, "gateway"), {}
    for generation, (step, servers) in enumerate((("start", 4), ("join", 5), ("leave", 4)), 1):
        fleet.sent_on = dict.fromkeys(fleet.at, 0)
        fleet.follow(ring(generation, servers))
        moved = fleet.move()
        shares = sorted(list(fleet.at.values()).count(f"tunnel-{number}") for number in range(servers))
        redirects = fleet.sent_on.values()
        found[step] = {
            "moved": moved,
            "redirects": sum(redirects),
            "most": max(redirects),
            "least and largest share": [shares[0], shares[-1]],
        }
    return found


def _is_here(device: str) -> bool:
    owner = RING.owner(device)
    return owner is not None and owner.name == RING_NAME


async def measure(rounds: int, uploads: int) -> dict[str, Any]:
    """Return medians of the rounds, without and with a ring."""
    frames = upload_frames(ipv_payloads(2000), 50, uploads)
    found: dict[str, list[dict[str, float]]] = {"stores": [], "ring": []}
    for _ in range(rounds):
        for kind, results in found.items():
            with ServerProcess.start(_loop_names()[-1], kind) as server:
                results.append(await cpu_us(server, frames, WINDOW, BATCH, _is_here))
    return {
        {"stores": "without", "ring": "with"}[kind]: {
            "cpu_us": round(statistics.median(one["cpu_us"] for one in results), 2),
            "uploads_s_core": round(1e6 / statistics.median(one["cpu_us"] for one in results)),
            "per_s": round(statistics.median(one["per_s"] for one in results)),
        }
        for kind, results in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=20_000)
    parser.add_argument("--devices", type=int, default=10_000)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "loop": _loop_names()[-1],
        "upload": asyncio.run(measure(options.rounds, options.uploads)),
        **simulate(options.devices),
    }
    print(json.dumps(found, indent=1))
    print_headline(
        "CPU time of a stored upload at one of four servers that share the devices",
        unit="µs",
        better="lower",
        ours=found["upload"]["with"]["cpu_us"],
        peers={"one server alone": found["upload"]["without"]["cpu_us"]},
    )


if __name__ == "__main__":
    main()
