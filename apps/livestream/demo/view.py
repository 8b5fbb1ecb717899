"""The demo's live view in the terminal: where each device is, its latest decisions, and what was dropped."""

import collections
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from apps.livestream.frame_choice import Choice
from apps.livestream.page.page import clock
from apps.livestream.player import Decision, Player

_LATEST = 60  # decisions that a device's row shows
_LEVELS = " ▁▂▃▄▅▆▇█"


class View:
    """A table with a row for each device, redrawn as decisions come; nothing where the console is not a terminal."""

    def __init__(self, source: str, devices: int, console: Console, *, how: str = "") -> None:
        self._source = source
        self._how = how  # shown to the user: the way to end it
        self._latest: list[collections.deque[Decision]] = [collections.deque(maxlen=_LATEST) for _ in range(devices)]
        self._players: list[Player | None] = [None] * devices
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._table, transient=True)
        self._is_shown = console.is_terminal

    def __enter__(self) -> Self:
        if self._is_shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._live.stop()

    def update(self, device: int, decision: Decision, player: Player) -> None:
        """Show a decision of a device."""
        self._latest[device].append(decision)
        self._players[device] = player
        if self._is_shown:
            self._live.refresh()

    def _table(self) -> Table:
        table = Table(title=escape(self._source), title_justify="left", expand=True)
        if self._how:
            table.caption, table.caption_justify = self._how, "left"
        for column in ("device", "at", "the last minute", "decided", "not analysed", "dropped"):
            table.add_column(column, no_wrap=True, ratio=1 if column == "the last minute" else None)
        for number, (latest, player) in enumerate(zip(self._latest, self._players, strict=True), 1):
            if player is None or not latest:
                table.add_row(str(number), "", "", "", "", "")
                continue
            last = latest[-1]
            where = last.output["decided"] if last.output is not None else "nowhere"
            dropped = sum(player.builder.counts.dropped.values())
            spared = player.frames - player.chooser.counts[Choice.ANALYSED]
            bars = "".join(map(_bar, latest))
            table.add_row(str(number), clock(last.second), bars, where, str(spared), str(dropped))
        return table


def _bar(decision: Decision) -> str:
    if decision.output is None:
        return "[red]?[/red]"
    level = _LEVELS[round(decision.output["score"] * (len(_LEVELS) - 1))]
    return f"[bold yellow]{level}[/bold yellow]" if decision.output["highlight"] else level


def summary(found: dict[str, Any], device: str = "") -> list[Table | str]:
    """Return a device's highlights as a table, and what was looked at as lines.

    `device` is its name, where there are more.
    """
    counts, highlights = found["counts"], found["highlights"]
    title = f"{device}: " if device else ""
    title += f"{len(highlights)} highlight{'' if len(highlights) == 1 else 's'} in {found['source']}"
    table = Table()
    for column in ("from", "to", "item", "score", "decided"):
        table.add_column(column)
    for each in highlights:
        decided = " and ".join(each["decided"])
        table.add_row(clock(each["start"]), clock(each["end"]), escape(each["item"]), f"{each['score']:.2f}", decided)
    where = f"{counts['by_device']} seconds decided on the device, {counts['by_cloud']} in the cloud"
    if counts["alone"]:
        where += f", {counts['alone']} on the device because the cloud gave no answer"
    where += f"; {counts['sent_bytes']:,} bytes of images sent"
    if counts["answered_bytes"] != counts["sent_bytes"]:
        where += f", {counts['answered_bytes']:,} of them answered"
    frames = f"{counts['analysed']:,} of {counts['frames']:,} frames analysed, {counts['unchanged']:,} unchanged"
    if counts["budget"] is not None:
        frames += f", {counts['over_budget']:,} beyond the CPU budget"
    dropped = ", ".join(f"{row['task']} {row['dropped']}" for row in counts["tasks"] if row["dropped"]) or "none"
    frames += f"; dropped by tasks: {dropped}; {counts['cpu_s']:.1f} s of CPU"
    return [title, *([table] if highlights else []), where, frames, *found["faults"][:10]]
