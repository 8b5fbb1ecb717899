"""The live picture in the terminal: releases, coverage, failures, latencies."""

from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from apps.ipv.demo.record import DemoRecord, Sample
from walle.deploy.releases.stage_text import stage_text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_COLOURS = {"v1": "cyan", "v2": "red"}
_CURVE_COLUMNS = 60


class View:
    """A rich Live around one record; `update` is called after each sample. On a dumb terminal it prints marks only."""

    def __init__(self, record: DemoRecord, console: Console) -> None:
        self._record = record
        self._console = console
        self._live = Live(console=console, refresh_per_second=6, transient=True) if console.is_terminal else None
        self._printed = 0
        self.latencies: dict[str, tuple[float, float]] = {}  # name → p50, p99 in ms

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def update(self) -> None:
        for mark in self._record.marks[self._printed :]:
            line = Text.assemble((f"{mark.t_s:6.1f} s  ", "dim"), mark.text)
            (self._live.console if self._live else self._console).print(line)
        self._printed = len(self._record.marks)
        if self._live and self._record.samples:
            self._live.update(self._picture(self._record.samples[-1]))

    def _picture(self, now: Sample) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        rows.add_row(
            "release",
            Text(f"{now.release or '-'}  {stage_text(now.state) or '-'}", style="bold"),
            _bar(now.share, 1.0, "white"),
        )
        for version in sorted(set(now.active) - {""} | {"v1"}):
            count = now.active.get(version, 0)
            label = f"{count}/{self._record.devices} devices"
            rows.add_row(f"on {version}", label, _bar(count, self._record.devices, _COLOURS.get(version, "magenta")))
            rows.add_row("", "over time", self._curve(version))
        rate = now.failed / now.runs if now.runs else 0.0
        rows.add_row("runs", f"{now.runs}", f"{now.failed} failed ({rate:.2%})")
        rows.add_row("features", f"{now.produced} produced", f"{now.received} received")
        for name, (p50, p99) in self.latencies.items():
            rows.add_row(name, f"p50 {p50:.2f} ms", f"p99 {p99:.2f} ms")
        return Panel(Group(rows), title=f"walle demo  {now.t_s:5.1f} s", border_style="blue")

    def _curve(self, version: str) -> Text:
        samples = self._record.samples
        span = max(samples[-1].t_s, 1e-9)
        columns = [0] * _CURVE_COLUMNS
        for sample in samples:
            columns[min(_CURVE_COLUMNS - 1, int(sample.t_s / span * _CURVE_COLUMNS))] = sample.active.get(version, 0)
        top = max(1, self._record.devices)
        text = "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] for value in columns)
        return Text(text, style=_COLOURS.get(version, "magenta"))


def _bar(value: float, total: float, colour: str) -> Text:
    filled = round(30 * value / total) if total else 0
    return Text("█" * filled + "░" * (30 - filled), style=colour)


def report_table(record: DemoRecord) -> RenderableType:
    """Return the closing report: what must hold, then the figures."""
    claims = Table(title="what must hold", title_justify="left", box=None, show_header=False, padding=(0, 2))
    for claim in record.claims:
        claims.add_row(Text("yes", "green") if claim.holds else Text("NO", "bold red"), claim.text, claim.found)
    figures = Table(title="figures", title_justify="left", box=None, show_header=False, padding=(0, 2))
    for name, value in record.figures.items():
        figures.add_row(name, str(value))
    return Group(claims, "", figures)
