"""Memory of a gateway under attack, and how long the check-ins of honest devices take meanwhile.

python -m benchmarks.gateway_attacks [--seconds 10] [ATTACK ...]; the attacks are those of tests/security, over HTTPS.

The gateway has a core of its own, the first that this program may use. Attackers and honest devices share the second,
where attackers give way (nice 19): honest devices have computers of their own, and no gateway can answer for what its
client's core is busy with. `late` says how much of that is left: by how much the honest devices' process was late to
begin a check-in, p99.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.headline import print_headline
from tests.security.attacked_gateway import AttackedGateway, HonestDevices, quantile
from tests.security.gateway_attacks import ATTACKS, attack, make_release

_WARM_UP_S = 1.0  # the release that is made first is published, and the gateway idle again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["none", *ATTACKS], help="attacks, or none; all if none is named")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--period", type=float, default=0.01, help="seconds between two check-ins")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("a gateway under attack needs one core, and its clients another")
    os.sched_setaffinity(0, {cores[1]})
    print(f"the gateway on core {cores[0]}, attackers and honest devices on core {cores[1]}")
    print(
        f"{'attack':21} {'peak MB':>7} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7} {'late':>5} {'failed':>9} "
        f"{'gateway':>8} {'attacker':>8}  the attacker saw"
    )
    p99_ms = {}
    for name in arguments.names:
        with (
            tempfile.TemporaryDirectory() as folder,
            AttackedGateway.started(Path(folder) / "cloud", cores={cores[0]}) as gateway,
        ):
            p99_ms[name] = _measure(name, gateway, arguments.seconds, arguments.period)
    worst = max(p99_ms, key=p99_ms.__getitem__)
    peers = {"without an attack": p99_ms["none"]} if "none" in p99_ms and worst != "none" else {}
    named = "without an attack" if worst == "none" else f"under the attack {worst}, the worst of {len(p99_ms)}"
    print_headline(
        f"check-in of an honest device {named}, p99", unit="ms", better="lower", ours=p99_ms[worst], peers=peers
    )


def _measure(name: str, gateway: AttackedGateway, seconds: float, period_s: float) -> float:
    """Print a line of the table; return the honest devices' p99 in ms."""
    make_release(gateway.target)
    time.sleep(_WARM_UP_S)
    honest = HonestDevices(gateway.target, period_s=period_s)
    gateway.reset()
    began_s, gateway_s, attacker_s = time.monotonic(), gateway.cpu_s(), _children_s()
    if name == "none":
        seen = {}
        time.sleep(seconds)
    else:
        seen = dict(attack([name], gateway.target, seconds, gives_way=True)[name])
    took_s = time.monotonic() - began_s
    gateway_s, attacker_s = gateway.cpu_s() - gateway_s, _children_s() - attacker_s
    found = honest.stop()
    quantiles = " ".join(f"{found.quantile_ms(share):7.1f}" for share in (0.5, 0.99, 1.0))
    print(
        f"{name:21} {gateway.peak_bytes / 1e6:7.0f} {quantiles} {quantile(found.late_ms, 0.99):5.1f} "
        f"{len(found.failures):4}/{len(found.took_ms):<4} {gateway_s / took_s:8.0%} {attacker_s / took_s:8.0%}  {seen}",
        flush=True,
    )
    return found.quantile_ms(0.99)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
