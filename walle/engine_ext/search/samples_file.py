"""File of profiled layers: a head line, then one line of JSON for each layer, appended as it is measured.

    {"format": 1, "cpu": "AMD EPYC", "backend": "avx2", "engine": "0.1.0", "seed": 0}
    {"layer": [64, 3, 224, 2, 7], "us": {"direct(0)": 812.5, "winograd(2)": null},
     "layouts": {"direct(0)": "plain>packed"}}

A primitive that is undefined for a layer is null, or absent where no earlier layer had it. A process that was killed
leaves at most a part of a last line, which the next one drops.
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from walle.base.durable_file import write_all
from walle.engine_ext.search.layers import Layer
from walle.errors import ConfigError

FORMAT = 1
_ENDED_BY = b"\n"


class SamplesFileError(ConfigError):
    """A file of samples, `path`, that is broken, in use, or of another machine, backend or seed."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class SamplesHead(NamedTuple):
    """Origin of samples: CPU model, backend, engine version, and the seed of the layers' draw."""

    cpu: str
    backend: str
    engine: str
    seed: int


class Sample(NamedTuple):
    """A profiled layer: microseconds and layouts ("plain>packed": input, output) of each primitive that it has."""

    layer: Layer
    us: Mapping[str, float]
    layouts: Mapping[str, str]


class SampleSet:
    """Samples of one file, as the performance model reads them."""

    def __init__(self, head: SamplesHead, samples: Sequence[Sample]) -> None:
        self.head = head
        self.samples = list(samples)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the samples of a file; a last line that was cut is left out.

        Raises:
            SamplesFileError: the file is not one of samples, or a line is broken; the message has its number.
            OSError: it cannot be read.
        """
        head, samples, _ = _parsed(path, path.read_bytes())
        return cls(head, samples)

    @property
    def layers(self) -> list[Layer]:
        return [sample.layer for sample in self.samples]

    @property
    def primitives(self) -> list[str]:
        """Names of all primitives that a layer has, in alphabetical order: the columns of `times`."""
        return sorted({name for sample in self.samples for name in sample.us})

    @property
    def times(self) -> list[list[float]]:
        """Microseconds, a row for each layer and a column for each primitive; NaN where undefined."""
        names = self.primitives
        return [[sample.us.get(name, math.nan) for name in names] for sample in self.samples]


class SamplesFile:
    """A file of samples that is open for appending, and which other processes cannot append to meanwhile.

    `open` reads what an earlier process has measured and continues there. Use it as a context manager.
    """

    def __init__(self, path: Path, handle: int, head: SamplesHead, samples: list[Sample]) -> None:
        self.path = path
        self.head = head
        self.samples = samples
        self._handle = handle
        self._names = {name: None for sample in samples for name in sample.us}

    @classmethod
    def open(cls, path: Path, head: SamplesHead) -> Self:
        """Return the file at `path`, new or to be continued. Missing folders are made.

        Raises:
            SamplesFileError: its head is another, a line is broken, or another process appends to it.
            OSError: it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SamplesFileError(path, "another process is writing to it; wait for its end") from None
            return cls(path, handle, head, _resumed(path, handle, head))
        except BaseException:
            os.close(handle)
            raise

    def append(self, sample: Sample) -> None:
        """Write a sample as one line, in one piece, so that it survives the death of the process."""
        self._names |= dict.fromkeys(sample.us)
        us = {name: sample.us.get(name) for name in self._names}
        line = {"layer": list(sample.layer), "us": us, "layouts": dict(sample.layouts)}
        write_all(self._handle, json.dumps(line).encode() + _ENDED_BY)
        self.samples.append(sample)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def _resumed(path: Path, handle: int, head: SamplesHead) -> list[Sample]:
    """Return the samples of a file; cut off a part of a last line, or write the head where there is none."""
    data = path.read_bytes()
    if _ENDED_BY in data:
        found, samples, whole_bytes = _parsed(path, data)
        _check_same(path, found, head)
        os.ftruncate(handle, whole_bytes)
        os.lseek(handle, whole_bytes, os.SEEK_SET)
        return samples
    if not _head_bytes(head).startswith(data):
        raise SamplesFileError(path, "is not a file of samples; move it away, or give another --output")
    os.ftruncate(handle, 0)
    write_all(handle, _head_bytes(head))
    return []


def _head_bytes(head: SamplesHead) -> bytes:
    return json.dumps({"format": FORMAT} | head._asdict()).encode() + _ENDED_BY


def _check_same(path: Path, found: SamplesHead, head: SamplesHead) -> None:
    for field in SamplesHead._fields:
        was, now = getattr(found, field), getattr(head, field)
        if was != now:
            advice = (
                f"give --seed {was}, or another --output"
                if field == "seed"
                else "move it away, or give another --output"
            )
            raise SamplesFileError(path, f"was measured with {field} {was!r}, this run has {now!r}; {advice}")


def _parsed(path: Path, data: bytes) -> tuple[SamplesHead, list[Sample], int]:
    """Return head, samples, and the bytes of all whole lines."""
    first, *lines = data.split(_ENDED_BY)[:-1] or [b""]
    head = _head_of(_json(first))
    if head is None:
        raise SamplesFileError(path, f"is not a file of samples of format {FORMAT}; give another file")
    samples = []
    for number, line in enumerate(lines, start=2):
        sample = _sample_of(_json(line))
        if sample is None:
            raise SamplesFileError(path, f"line {number} is not a sample; remove that line")
        samples.append(sample)
    return head, samples, data.rfind(_ENDED_BY) + 1


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _head_of(content: Any) -> SamplesHead | None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None
    fields: list[Any] = [content.get(field) for field in SamplesHead._fields]
    *texts, seed = fields
    return SamplesHead(*fields) if all(isinstance(text, str) for text in texts) and type(seed) is int else None


def _sample_of(content: Any) -> Sample | None:
    if not isinstance(content, dict):
        return None
    layer, us, layouts = content.get("layer"), content.get("us"), content.get("layouts")
    if not isinstance(layer, list) or len(layer) != len(Layer._fields) or not isinstance(us, dict):
        return None
    if not all(type(number) is int and number > 0 for number in layer) or not isinstance(layouts, dict):
        return None
    defined = {name: time for name, time in us.items() if time is not None}
    if not all(type(time) in {int, float} and 0 < time < math.inf for time in defined.values()):
        return None
    if not all(isinstance(text, str) for text in layouts.values()):
        return None
    return Sample(Layer(*layer), {name: float(time) for name, time in defined.items()}, layouts)
