"""Memory of a gateway under attack, and how long the check-ins of honest devices take meanwhile.

python -m benchmarks.gateway_attacks [--seconds 5] [ATTACK ...]; the attacks are those of tests/security, over HTTPS.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tests.security.attacked_gateway import AttackedGateway, HonestDevices
from tests.security.gateway_attacks import ATTACKS, attack, make_release


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["", *ATTACKS], help="attacks; all if none is named")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    print(f"{'attack':24} {'peak MB':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'failed':>7}  the attacker saw")
    for name in arguments.names:
        with tempfile.TemporaryDirectory() as folder, AttackedGateway.started(Path(folder) / "cloud") as gateway:
            make_release(gateway.target)
            honest = HonestDevices(gateway.target)
            gateway.reset()
            if name:
                seen = dict(attack([name], gateway.target, arguments.seconds)[name])
            else:
                seen = {}
                time.sleep(arguments.seconds)
            found = honest.stop()
            quantiles = " ".join(f"{found.quantile_ms(share):8.1f}" for share in (0.5, 0.99, 1.0))
            print(
                f"{name or 'none':24} {gateway.peak_bytes / 1e6:8.0f} {quantiles} {len(found.failures):3}/"
                f"{len(found.took_ms):<4} {seen}",
                flush=True,
            )


if __name__ == "__main__":
    main()
