"""`walle task dictionary`: train a zstd dictionary for a task's uploads on the features that it makes."""

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from walle.cli.output import JsonFlag, emit, working
from walle.cli.task.modules import ModulesOption, read_version
from walle.cli.task.task_toml import set_text
from walle.errors import ConfigError

if TYPE_CHECKING:
    from walle.pipeline.tunnel.dictionaries import Dictionary
    from walle.protocol import Upload

_PATH = "resources/features.dict"
_HELD_BACK = 4  # every fourth feature is measured, and not trained on
_MAX_USERS = 1_000  # users of the events, each on a simulated device alone
_BATCH = 16  # uploads of a batch in the report
_PAYS_WITHIN = 1_000  # uploads of a device, which pulls the dictionary once


def dictionary(
    folder: Annotated[Path, typer.Argument(help="The task's folder.")],
    events: Annotated[
        Path | None, typer.Option(help="Make features from this event log, not from the simulation events.")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="A TOML file that maps the log's columns to events.")] = None,
    limit: Annotated[int, typer.Option(help="How many events of the log to play at most.", min=1)] = 20_000,
    size: Annotated[int, typer.Option(help="Bytes of the dictionary at most.", min=256, max=131_072)] = 16_384,
    write: Annotated[bool, typer.Option("--write", help="Write it even if it saves nothing.")] = False,
    modules: ModulesOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a dictionary on a task's features, say what it brings, and put it into the task where it pays.

    The task runs on the events as in a simulation. A quarter of the features is kept back, and measured. A dictionary
    that saves a device its own size within 1,000 uploads is written to resources/features.dict, and named in task.toml.
    Train it again whenever the features change: devices and cloud know a dictionary by its hash.
    """
    from walle.pipeline.tunnel.dictionaries import Dictionary, train_dictionary
    from walle.pipeline.tunnel.layouts import UPLOAD

    with working("making features", as_json=as_json):
        uploads = _features(folder, events, mapping, limit, modules)
    measured = uploads[::_HELD_BACK]
    samples = [UPLOAD.pack(upload) for index, upload in enumerate(uploads) if index % _HELD_BACK]
    with working(f"training on {len(samples)} features", as_json=as_json):
        data = train_dictionary(samples, size)
    trained = Dictionary(data)
    sizes = _sizes(measured, trained)
    saved = sizes["alone"] - sizes["alone, dictionary"]
    pays_after = math.ceil(len(data) / saved) if saved > 0 else None
    is_written = write or (pays_after is not None and pays_after <= _PAYS_WITHIN)
    path = folder / _PATH
    if is_written:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        set_text(folder, "files", _PATH, "shared")
        set_text(folder, "tunnel", "dictionary", _PATH)
    report = {
        "dictionary": str(path),
        "written": is_written,
        "sha256": trained.digest,
        "size_bytes": len(data),
        "features": len(uploads),
        "trained_on": len(samples),
        "measured_on": len(measured),
        "bytes_per_upload": sizes,
        "pays_after_uploads": pays_after,
    }
    gain = f"it saves {saved:.1f} bytes an upload" if saved > 0 else "it saves nothing"
    when = f", its own size after {pays_after:,} uploads of a device" if pays_after is not None else ""
    if is_written:
        end = f"{gain}{when}: it is in {path}, and task.toml names it"
    else:
        end = f"{gain}{when}: it saves too little, and is not written (--write writes it)"
    lines = [
        f"{len(data):,} bytes, trained on {len(samples)} features",
        f"bytes an upload, over {len(measured)} others:",
        *(f"{value:>10.1f}  {name}" for name, value in sizes.items()),
        escape(end),
    ]
    emit(report, as_json=as_json, text="\n".join(lines))


def _features(
    folder: Path, events: Path | None, mapping: Path | None, limit: int, modules: Sequence[str] | None
) -> "list[Upload]":
    """Return the uploads that the task makes of the events, on one kind of device."""
    from walle.cli.task.simulation import read_log
    from walle.cloud.simulation.simulation import DEVICE_KINDS, SimulatedRun, Simulator
    from walle.pipeline.events.event_files import EventFiles
    from walle.protocol import Upload
    from walle.task.format.bundle import build_bundle
    from walle.trust.signing import Signer

    version = read_version(folder, modules)
    bundle = build_bundle(version, Signer.generate())
    played: bytes | None
    if events is not None:
        played, files = read_log(events, mapping, limit).data, EventFiles.beside(events)
    else:
        played, files = version.simulation_events, EventFiles.of(version.simulation_files)
    if played is None:
        raise ConfigError(f"{folder}: has no [simulation] events to make features of; name a log with --events")
    found: list[Upload] = []
    now_ms = int(time.time() * 1000)

    def keep(run: SimulatedRun) -> None:
        output = run.output
        if output is None:
            return
        for put in output.stored(bundle.manifest.name):
            if put.upload:
                found.append(Upload(len(found) + 1, put.topic, put.payload, now_ms + len(found) * 1000))

    async def play() -> None:
        result = await Simulator(1, on_run=keep).run(bundle, played, DEVICE_KINDS[:1], files=files, users=_MAX_USERS)
        if not result.ok:
            raise ConfigError(f"{folder}: the task fails on these events: {result.first_error}; fix it first")

    asyncio.run(play())
    return found


def _sizes(uploads: "Sequence[Upload]", trained: "Dictionary") -> dict[str, float]:
    """Return the mean bytes of an upload on the wire, alone and in batches, without and with the dictionary."""
    from walle.pipeline.tunnel.frames import Encoder
    from walle.protocol import UploadBatch

    encoder = Encoder()
    batches = [UploadBatch(tuple(uploads[at : at + _BATCH])) for at in range(0, len(uploads), _BATCH)]
    count = len(uploads)
    return {
        "payload": sum(len(upload.payload) for upload in uploads) / count,
        "alone": sum(len(encoder.encode(upload)) for upload in uploads) / count,
        "alone, dictionary": sum(len(encoder.encode(upload, number=1, dictionary=trained)) for upload in uploads)
        / count,
        f"{_BATCH} in a frame": sum(len(encoder.encode(batch)) for batch in batches) / count,
        f"{_BATCH} in a frame, dictionary": sum(
            len(encoder.encode(batch, number=1, dictionary=trained)) for batch in batches
        )
        / count,
    }
