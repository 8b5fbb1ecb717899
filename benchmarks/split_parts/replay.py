"""Replay of a trace: at each moment a choice that knows the past only, beside both fixed ones and the oracle."""

import collections
import dataclasses
import random
from collections.abc import Sequence

from benchmarks.links.shape import LinkShape
from benchmarks.split_parts.networks import Network, TimedCut
from walle.split.chooser import Chooser
from walle.split.conditions import Record

_HEARTBEAT_S = 5
_PROBE_BYTES = 16 << 10
_PROBE_LATE_MS = 1_000.0
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Replay:
    """Milliseconds of each moment, and counts of chosen places, late runs and probes."""

    chosen: list[float]
    here: list[float]
    there: list[float]
    oracle: list[float]
    informed: list[float]  # by a choice that knows the link of the second before exactly, and compute times
    choices: dict[str, int]
    late: int
    probes: int

    @property
    def share(self) -> float:
        """Return the share of moments that are no slower than the better of all here and all there."""
        return self._share(self.chosen)

    @property
    def informed_share(self) -> float:
        """Return the share that the informed choice has: an upper bound of what measurements of the past can give."""
        return self._share(self.informed)

    def _share(self, own_ms: Sequence[float]) -> float:
        pairs = zip(own_ms, self.here, self.there, strict=True)
        return sum(own <= min(here, there) * (1 + _ROUNDING) for own, here, there in pairs) / len(own_ms)

    @property
    def over_oracle(self) -> float:
        """Return the mean latency over the oracle's mean."""
        return sum(self.chosen) / sum(self.oracle)


def _transfer_ms(link: LinkShape, size_bytes: int) -> float:
    return 1e3 * (link.round_trip_s + link.time_on_link_s(size_bytes))


def _latency_ms(one: TimedCut, link: LinkShape, slower: float, *, is_here: bool) -> float:
    device_ms = one.device_ms * slower
    if is_here:
        return device_ms
    return device_ms + _transfer_ms(link, one.cut.up_bytes + one.cut.down_bytes) + one.cloud_ms


def replay(network: Network, links: Sequence[LinkShape], slower: float) -> Replay:
    """Return the latencies of one run a second.

    The device abandons a late run in the cloud when the choice says so, and the model then runs here.
    """
    timed = {one.cut: one for one in network.cuts}
    here_cut, there_cut = network.cuts[-1], network.cuts[0]
    record = Record()
    chooser = Chooser(tuple(timed), random.Random(1))
    chosen, here, there, oracle = list[float](), list[float](), list[float](), list[float]()
    choices: collections.Counter[str] = collections.Counter()
    informed = list[float]()
    before = links[0]
    late = probes = 0
    for second, link in enumerate(links):
        now_s = float(second)
        if second % _HEARTBEAT_S == 0:
            record.saw_round_trip(1e3 * link.round_trip_s, now_s)
        choice = chooser.choose(record.conditions(), record.link_age_s(now_s), now_s)
        all_ms = {one.cut: _latency_ms(one, link, slower, is_here=one is here_cut) for one in network.cuts}
        here.append(all_ms[here_cut.cut])
        there.append(all_ms[there_cut.cut])
        oracle.append(min(all_ms.values()))
        ideal = min(network.cuts, key=lambda one: _latency_ms(one, before, slower, is_here=one is here_cut))
        informed.append(all_ms[ideal.cut])
        before = link
        own = timed[choice.cut]
        took_ms = all_ms[choice.cut]
        is_here = own is here_cut
        choices["here" if is_here else "there" if own is there_cut else "cut"] += 1
        if own.cut.device_us:
            record.saw_device(own.device_ms * slower, own.cut.device_us, now_s)
        if not is_here and took_ms > choice.late_after_ms:
            late += 1
            took_ms = choice.late_after_ms + here[-1]
            chooser.failed(now_s)
        elif not is_here:
            sent_bytes = own.cut.up_bytes + own.cut.down_bytes
            record.saw_transfer(sent_bytes, _transfer_ms(link, sent_bytes), now_s)
            record.saw_cloud(own.cloud_ms, 0.0, own.cut.cloud_us, now_s)
            chooser.answered()
        if choice.is_probe_due:
            probes += 1
            probe_ms = _transfer_ms(link, _PROBE_BYTES)
            if probe_ms > _PROBE_LATE_MS:
                chooser.failed(now_s)
            else:
                record.saw_transfer(_PROBE_BYTES, probe_ms, now_s)
                chooser.answered()
        chosen.append(took_ms)
    return Replay(chosen, here, there, oracle, informed, dict(choices), late, probes)
