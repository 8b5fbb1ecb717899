"""Faults that a simulation found: each with its count, its first simulated device and event, and the source line."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import walle
from walle.base.plain_fields import known_fields
from walle.protocol import Attribute, Failure, Manifest, printable

MAX_FAULTS = 10  # faults of a simulation, which ends after as many failures
MAX_KEPT = 3  # faults of a release, whose journal keeps them
_MAX_DEVICES = 8
_MAX_TEXT_CHARS = 300  # limit of an event's contents, and of a source line
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_PLACE = re.compile(r"(.*):(\d+) in ")
_RUNTIME = str(Path(walle.__file__).parent) + "/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedFault:
    """`count` failures of one type at one place; the texts, the device and the event are those of the first one.

    `device` has its attributes, as the task sees them; it is empty where the version did not load. `devices` are the
    ids of all on which it failed, _MAX_DEVICES at most. `event` has `event_id`, `page_id`, `ts_ms`, `contents` as JSON
    text, `position` (None for a timer that was due after the last event), `user`, and `line` (0 for one that stands in
    no line) and `file` of the log. Texts are printable and bounded; those of several lines keep their breaks.
    """

    count: int
    error_type: str
    error: str
    place: str = ""
    source: str = ""  # the line at the place, empty where it is not known
    traceback: str = ""
    log: str = ""
    device: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
    devices: tuple[str, ...] = ()
    event: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        failure: Failure,
        manifest: Manifest,
        device: Mapping[str, Attribute] | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the fault of one failure; `event` is a trigger's, with its position and user."""
        shown = dict(event or {})
        if shown:
            shown["contents"] = printable(json.dumps(shown["contents"], default=_short)[:_MAX_TEXT_CHARS])
            shown["event_id"], shown["page_id"] = printable(shown["event_id"]), printable(shown["page_id"])
        error = failure.error.removeprefix(f"task {manifest.name} {manifest.version}: ")
        return cls(
            count=1,
            error_type=failure.error_type,
            error=error.removesuffix(f" ({failure.place})"),
            place=failure.place,
            traceback=failure.traceback,
            log=failure.log,
            device={printable(name): _printable(value) for name, value in (device or {}).items()},
            devices=(printable(str(device["id"])),) if device else (),
            event=shown,
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """The type and place that failures of one fault have in common, or the text where no place is known."""
        return self.error_type, self.place, "" if self.place else self.error

    def and_another(self, other: Self) -> Self:
        """Return the fault with another failure counted."""
        devices = tuple(dict.fromkeys((*self.devices, *other.devices)))[:_MAX_DEVICES]
        return dataclasses.replace(self, count=self.count + other.count, devices=devices)

    def in_sources(self, version: str, files: Mapping[str, bytes], folder: str = "", log_name: str = "") -> Self:
        """Return the fault with the author's own paths, in `folder`, and the lines of their source files.

        `version` is scenario/task/version, as a VM names files, and `log_name` the file of the events. `files` has
        shared modules by their paths in tracebacks. The frames of walle's runtime are left out of the traceback.
        """
        prefix, own = f"{version}/", f"{folder}/" if folder else ""
        found = _PLACE.match(self.place)
        source = "" if found is None else _line(files, found[1].removeprefix(prefix), int(found[2]))
        lines = list(_with_sources(self.traceback.split("\n"), prefix, own, files))
        return dataclasses.replace(
            self,
            error=self.error.replace(prefix, own),
            place=self.place.replace(prefix, own, 1),
            source=source,
            traceback="\n".join(lines)[-Failure.MAX_TRACEBACK_CHARS :],
            event={**self.event, "file": printable(log_name)} if self.event else self.event,
        )

    def lines(self) -> Iterator[str]:
        """Yield the fault as lines of text."""
        times = "" if self.count == 1 else f" ({self.count} times)"
        yield f"failed: {self.error}{times}"
        if self.place:
            yield f"  at {self.place}" + (f": {self.source}" if self.source else "")
        if self.event:
            position = self.event["position"]
            where = f"event {position}" if position is not None else "a timer after the last event"
            where += f", line {line}" if (line := self.event.get("line")) else ""
            where += f" of {name}" if (name := self.event.get("file")) else ""
            user = f", user {self.event['user']}" if self.event.get("user") else ""
            what = f"{self.event['event_id']} {self.event['page_id']}".rstrip()
            yield f"  first at {where}: {what}, ts_ms {self.event['ts_ms']}, contents {self.event['contents']}{user}"
        if self.device:
            others = [one for one in self.devices if one != str(self.device.get("id"))]
            yield f"  on {device_text(self.device)}" + (f"; also on {', '.join(others)}" if others else "")
        yield from (f"  {one}" for one in self.traceback.split("\n") if one)
        yield from (f"  logged: {one}" for one in self.log.split("\n") if one)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the fault that `dataclasses.asdict` described; what another version of walle adds is ignored."""
        known = known_fields(cls, plain)
        return cls(**{**known, "devices": tuple(known.get("devices", ()))})


class FaultCount:
    """The distinct faults of a simulation, in the order in which they came."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str, str], SimulatedFault] = {}

    def add(self, fault: SimulatedFault) -> None:
        known = self._faults.get(fault.key)
        if known is not None:
            self._faults[fault.key] = known.and_another(fault)
        elif len(self._faults) < MAX_FAULTS:
            self._faults[fault.key] = fault

    def all(self) -> tuple[SimulatedFault, ...]:
        return tuple(self._faults.values())


def device_text(device: Mapping[str, Attribute]) -> str:
    """Return a simulated device as text: its id and its attributes."""
    attributes = ", ".join(f"{name} {value}" for name, value in sorted(device.items()) if name != "id")
    return f"{device.get('id', 'a device')}" + (f" ({attributes})" if attributes else "")


def _with_sources(lines: list[str], prefix: str, own: str, files: Mapping[str, bytes]) -> Iterator[str]:
    for line in lines:
        found = _FRAME.fullmatch(line)
        if found is None:
            yield line.replace(prefix, own)
        elif found[1].startswith(prefix):
            path = found[1].removeprefix(prefix)
            yield f'  File "{own}{path}", line {found[2]}, in {found[3]}'
            if source := _line(files, path, int(found[2])):
                yield f"    {source}"
        elif not found[1].startswith(_RUNTIME):
            yield line
            if source := _line(files, found[1], int(found[2])):
                yield f"    {source}"


def _line(files: Mapping[str, bytes], path: str, number: int) -> str:
    """Return a line of a source file without its indentation, "" where there is none."""
    lines = files.get(path, b"").decode(errors="replace").split("\n")
    return printable(lines[number - 1].strip()[:_MAX_TEXT_CHARS]) if 0 < number <= len(lines) else ""


def _printable(value: Attribute) -> Attribute:
    return printable(value) if isinstance(value, str) else value


def _short(value: object) -> str:
    return f"<{type(value).__name__}>"
