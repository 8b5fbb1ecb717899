"""Bound on bytes in flight: it follows a link's delay, on a simulated link of a fixed rate."""

import collections

from walle.pipeline.tunnel.pacing import InFlightBound


def _send(bound: InFlightBound, *, bytes_per_s: float, delay_s: float, seconds: float, lost: int = 0) -> list[float]:
    """Keep the link as full as the bound allows; return how long each piece waited in the link's buffer.

    Each `lost`-th piece arrives one delay later, and so do those behind it.
    """
    piece = 10_000
    now_s, free_s, arrives_s, in_flight, count = 0.0, 0.0, 0.0, 0, 0
    answers: collections.deque[tuple[float, float]] = collections.deque()  # (when, sent)
    waits = []
    while now_s < seconds:
        while in_flight < bound.limit_bytes:
            count += 1
            waits.append(max(0.0, free_s - now_s))
            free_s = max(free_s, now_s) + piece / bytes_per_s
            late_s = delay_s if lost and count % lost == 0 else 0.0
            arrives_s = max(arrives_s, free_s + delay_s + late_s)
            answers.append((arrives_s, now_s))
            in_flight += piece
        now_s, sent_s = answers.popleft()
        in_flight -= piece
        bound.acknowledged(piece, now_s - sent_s, now_s)
    return waits


def test_the_buffer_on_the_way_stays_short_and_the_link_full() -> None:
    bound = InFlightBound(1 << 20)
    waits = _send(bound, bytes_per_s=1.25e6, delay_s=0.1, seconds=30)
    settled = waits[len(waits) // 2 :]
    assert max(settled) < 0.08
    assert sum(settled) / len(settled) < 0.04
    assert len(waits) * 10_000 > 0.9 * 30 * 1.25e6


def test_a_fast_link_gets_the_whole_credit() -> None:
    bound = InFlightBound(1 << 20)
    _send(bound, bytes_per_s=1e9, delay_s=0.02, seconds=3)
    assert bound.limit_bytes == 1 << 20


def test_single_losses_do_not_empty_the_link() -> None:
    bound = InFlightBound(1 << 20)
    waits = _send(bound, bytes_per_s=1.25e6, delay_s=0.1, seconds=30, lost=100)
    assert len(waits) * 10_000 > 0.5 * 30 * 1.25e6


def test_the_bound_stays_within_its_limits() -> None:
    bound = InFlightBound(40 << 10)
    assert bound.limit_bytes == 40 << 10
    for step in range(1, 200):
        bound.acknowledged(10_000, 0.01 if step < 5 else 5.0, step * 0.2)
    assert bound.limit_bytes == 32 << 10
    for step in range(200, 400):
        bound.acknowledged(10_000, 5.0, step * 6.0)  # a minute later, the delay is the link's own
    assert bound.limit_bytes == 40 << 10
