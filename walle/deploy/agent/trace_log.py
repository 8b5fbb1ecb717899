"""Times of a device's installs and runs, for the traces that its cloud asks for."""

import contextlib
from collections.abc import Callable, Iterator

from walle.base.clock import Clock
from walle.protocol import Directive
from walle.protocol.traces import (
    SPANS,
    DeviceTrace,
    TracedSpan,
    TraceKind,
    install_key,
    is_sampled,
    ratio_from_header,
    run_key,
    trace_id,
)

_MAX_TASKS = 1000  # most tasks with an install under way


class TraceLog:
    """Measures what is sampled, and gives each finished trace to `report`. It is idle while the cloud asks for none."""

    def __init__(self, device_id: str, clock: Clock, report: Callable[[DeviceTrace], None]) -> None:
        self._device_id = device_id
        self._clock = clock
        self._report = report
        self._ratio = 0.0
        self._installs: dict[str, list[TracedSpan]] = {}

    def follow(self, header: str) -> None:
        """Take the share of traces that the latest answer asks for."""
        self._ratio = ratio_from_header(header)
        if not self._ratio:
            self._installs.clear()

    @contextlib.contextmanager
    def installing(self, task: str, name: str) -> Iterator[None]:
        """Measure a part of the install of a task, also one that fails."""
        if not self._ratio:
            yield
            return
        start_s = self._clock.time()
        try:
            yield
        finally:
            if task in self._installs or len(self._installs) < _MAX_TASKS:
                spans = self._installs.setdefault(task, [])
                spans[:] = [one for one in spans if one.name != name]  # an earlier attempt may have left one
                spans.append(_span(name, start_s, self._clock.time()))

    def end_install(self, directive: Directive) -> None:
        """Report the install of a directive that was carried out or refused."""
        spans = self._installs.pop(directive.task, [])
        if len(spans) < 2:  # only the signature was checked: the directive had been carried out before
            return
        key = install_key(directive.release, directive.version)
        if self._is_sampled(TraceKind.INSTALL, directive.task, key):
            self._report(DeviceTrace(TraceKind.INSTALL, directive.task, key, tuple(spans)))

    def follows_run(self, task: str, came_s: float) -> bool:
        """Return whether a run is to be measured, by the time at which its event came."""
        return self._ratio > 0 and self._is_sampled(TraceKind.RUN, task, run_key(came_s))

    def end_run(self, task: str, came_s: float, began_s: float, ended_s: float) -> None:
        """Report a run whose outputs are put now: its event came, its VM began and ended at these times."""
        put_s = self._clock.time()
        times = (came_s, put_s), (began_s, ended_s), (ended_s, put_s)
        spans = tuple(_span(name, *time) for name, time in zip(SPANS[TraceKind.RUN], times, strict=True))
        self._report(DeviceTrace(TraceKind.RUN, task, run_key(came_s), spans))

    def _is_sampled(self, kind: TraceKind, task: str, key: str) -> bool:
        return is_sampled(trace_id(kind, self._device_id, task, key), self._ratio)


def _span(name: str, start_s: float, end_s: float) -> TracedSpan:
    return TracedSpan(name, int(start_s * 1e6), max(0, int((end_s - start_s) * 1e6)))
