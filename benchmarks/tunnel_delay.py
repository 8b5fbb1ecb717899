"""Fig. 12: delay (p50, p90, p99) and count of uploads over their size, on an emulated mobile link.

Devices with durable outboxes upload features of random, incompressible bytes through the real client to the real
server, one at a time with a pause, so that each upload starts on an idle connection. Most are small, as in the paper.
Then devices send requests of 200 B while their outboxes drain: up to eight with a link each, one on a shared link.

The link is made of real IP packets between two TUN devices where this machine allows it, so that the kernel's TCP
recovers from each loss; elsewhere it is a TCP proxy, and the report says so. Values are of one direction.

    python benchmarks/tunnel_delay.py [--delay 50] [--jitter 20] [--loss 0.01] [--rate 10] [--uploads 2000]
        [--devices 16] [--each] [--requests 200] [--seed 1] [--proxy]
        [--sysctl NAME=VALUE] [--out out] [--json]

Table, JSON, picture and page are written to the folder --out as tunnel_delay.*.
"""

import argparse
import asyncio
import collections
import json
import platform
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.fig12 import report  # noqa: E402  # the path must be set first
from benchmarks.fig12.bench_link import BenchLink  # noqa: E402
from benchmarks.fig12.device import Acked, play_all, time_requests  # noqa: E402
from benchmarks.headline import print_headline  # noqa: E402
from benchmarks.links.shape import LinkShape  # noqa: E402
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest  # noqa: E402

_SHARES = {1_000: 50, 3_000: 25, 10_000: 10, 30_000: 12, 100_000: 3}  # percent; large ones enough for a p99
_PAUSE_S = 1.0
_ASKING = 8  # devices that send requests at the same time, with a link each: more take too much CPU time
_CONGESTION = "net.ipv4.tcp_congestion_control"


def draw_sizes(devices: int, uploads: int, rng: random.Random) -> list[list[int]]:
    """Return the sizes of each device's uploads, in exact shares and random order."""
    sizes = [size for size, share in _SHARES.items() for _ in range(max(1, round(uploads * share / 100)))]
    rng.shuffle(sizes)
    return [sizes[device::devices] for device in range(devices)]


def divide_requests(requests: int, devices: int, *, each: bool) -> list[int]:
    """Return how many requests each asking device sends; a device that shares its link with others asks alone."""
    asking = min(_ASKING, devices, requests) if each else min(1, requests)
    return [len(range(device, requests, asking)) for device in range(asking)]


async def arrived_ms(path: Path) -> dict[tuple[str, int], float]:
    """Return the milliseconds from put to receipt of each stored upload; both clocks are this machine's."""
    found, after = dict[tuple[str, int], float](), 0
    async with Ingest(path) as ingest:
        while rows := await ingest.query(after=after):
            found |= {(one.device_id, one.seq): float(one.received_ms - one.sent_ms) for _, one in rows}
            after = rows[-1][0]
    return found


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    shape = LinkShape(
        delay_ms=options.delay, jitter_ms=options.jitter, loss=options.loss, bits_per_s=options.rate * 1e6
    )
    sizes = draw_sizes(options.devices, options.uploads, random.Random(options.seed))
    sysctls = dict(one.split("=", 1) for one in options.sysctl)
    cloud, device = folder / "cloud", folder / "device"
    for made in (cloud, device):
        made.mkdir()
    with BenchLink.open(cloud, shape, options.seed, each=options.each, proxy=options.proxy, sysctls=sysctls) as link:
        acked = link.run(lambda address: play_all(address, device, sizes, _PAUSE_S, options.seed))
        counts = divide_requests(options.requests, options.devices, each=options.each)
        asked = link.run(lambda address: time_requests(address, device, counts, options.seed))
    arrived = asyncio.run(arrived_ms(cloud / "uploads.db"))
    by_size = collections.defaultdict[int, list[Acked]](list)
    for upload in acked:
        by_size[upload.size_bytes].append(upload)
    return {
        "link": str(shape),
        "model": link.model,
        "shape": shape.to_dict(),
        "round_trip_ms": shape.round_trip_s * 1000,
        "seed": options.seed,
        "kernel": platform.release(),
        "congestion_control": sysctls.get(_CONGESTION, Path("/proc/sys", *_CONGESTION.split(".")).read_text().strip()),
        "sysctls": sysctls,
        "packets": link.counts,
        "sizes": [
            {
                "size_bytes": size_bytes,
                "acknowledged_ms": report.quantiles([one.acked_ms for one in own]),
                "arrived_ms": report.quantiles([arrived[one.device_id, one.seq] for one in own]),
                "paper_mean_ms": report.PAPER_MS.get(size_bytes),
            }
            for size_bytes, own in sorted(by_size.items())
        ],
        "requests_ms": report.quantiles([time_ms for one in asked for time_ms in one.times_ms]) if asked else {},
        "uploaded_kb_per_s": round(statistics.mean(one.uploaded_kb_per_s for one in asked), 1) if asked else None,
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    defaults = LinkShape()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=defaults.delay_ms, help="ms, one way (default: %(default)s)")
    parser.add_argument("--jitter", type=float, default=defaults.jitter_ms, help="± ms (default: %(default)s)")
    parser.add_argument("--loss", type=float, default=defaults.loss, help="of a packet (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=defaults.bits_per_s / 1e6, help="Mbit/s (default: %(default)s)")
    parser.add_argument("--uploads", type=int, default=2_000, help="of all devices (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=16, help="that share the link (default: %(default)s)")
    parser.add_argument("--each", action="store_true", help="a link for each device; not with the TCP proxy")
    parser.add_argument("--requests", type=int, default=200, help="beside a draining outbox (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--proxy", action="store_true", help="use the TCP proxy, although TUN devices may be possible")
    parser.add_argument(
        "--sysctl",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="at both ends of a link of TUN devices, such as net.ipv4.tcp_congestion_control=bbr; once for each",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder of the report (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    options.out.mkdir(parents=True, exist_ok=True)
    picture, web = options.out / "tunnel_delay.png", options.out / "tunnel_delay.html"
    (options.out / "tunnel_delay.json").write_text(json.dumps(found, indent=1))
    report.plot(found, picture)
    report.page(found, picture, web)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{report.table(found)}\npicture: {picture}, page: {web}")
    rows = [row for row in found["sizes"] if row["paper_mean_ms"]] or found["sizes"]
    for row in rows[:1] + rows[1:][-1:]:
        what = f"upload of {row['size_bytes'] / 1000:g} KB over {found['link']}, mean until its acknowledgement"
        print_headline(what, unit="ms", better="lower", ours=row["acknowledged_ms"]["mean"])


if __name__ == "__main__":
    main()
