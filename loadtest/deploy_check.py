"""Check of what devices did during releases: shares of the steps, rollbacks, and bytes that were signed. Pure."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from walle.trust.audience import share

WEIGHTS = "resources/weights.bin"  # weights of each version
BAD = b"bad"  # begins the weights of a version whose runs fail
ROLLBACK_S = 1.0  # time from a rollback to the answers of the gateway


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """A release that was played: when each of its stages began in the cloud, and when it was rolled back, if it was."""

    release_id: str
    version: str
    weights: str  # sha256 of what was pushed
    shares: Sequence[tuple[float, float]]  # times, each with the share that may have the version from then on
    rolled_back_s: float | None = None


def shares_of(release: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return when each share of a release began, from its history in the API."""
    steps, found, step = release["request"]["steps"], list[tuple[float, float]](), -1
    for entry in release["history"]:
        if entry["state"] == "gray" or entry["event"] == "GateAccepted":
            step += 1
            found.append((entry["at_s"], steps[step] if step < len(steps) else 1.0))
    return found


def wrong_results(task: str, played: Sequence[Played], records: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a device did that it must not have done."""
    by_version = {one.version: one for one in played}
    for device_id, record in sorted(records.items()):
        for at_s, name, version, weights in record["activations"]:
            release = by_version.get(version)
            if name != task or release is None:
                yield f"{device_id}: activated {name} {version}, which was not released"
                continue
            if weights != release.weights:
                yield f"{device_id}: the weights of {version} are not those that were pushed"
            place = share(release.release_id, device_id)
            most = max((covered for began_s, covered in release.shares if began_s <= at_s), default=0.0)
            if place >= most:
                yield f"{device_id}: has place {place:.3f} and activated {version} when the step covered {most}"
        for began_s, tasks in record["checkins"]:
            release = by_version.get(tasks.get(task, ""))
            if release is None or release.rolled_back_s is None:
                continue
            if began_s > release.rolled_back_s + ROLLBACK_S:
                late_s = began_s - release.rolled_back_s
                yield f"{device_id}: has {release.version} after a check-in {late_s:.1f} s after its rollback"
