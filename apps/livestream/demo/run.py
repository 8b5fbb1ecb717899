"""The demo: a cloud on this machine with the tasks released, devices that play the stream, and the results."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import importlib.metadata
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from apps.livestream.demo.view import View, summary_table
from apps.livestream.document import Stream, document, write_document
from apps.livestream.media import MediaError, Source, SourceReport, clip, encode_jpeg, open_source
from apps.livestream.page.page import write_page
from apps.livestream.player import Player
from apps.livestream.studio import Studio
from walle.device import Device
from walle.model_files import ModelFolder, default_folder
from walle.vm import shared_empty

_MAX_SIDE = 1280  # of the frames that the tasks get; the models see 320 pixels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a demo; see `walle demo livestream --help`."""

    source: str
    devices: int
    models_dir: Path | None
    out: Path
    pace: float | None
    frames_per_second: float
    clips: bool
    as_json: bool


def main(options: Options) -> int:
    """Run the demo; return 0 if every device played its stream to the end, 130 after Ctrl-C."""
    console = Console(stderr=options.as_json)
    folder = Path(tempfile.mkdtemp(prefix="walle-livestream-"))
    try:
        documents = asyncio.run(_Demo(options, folder, console).run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.as_json:
        sys.stdout.write(json.dumps(documents[0], indent=1) + "\n")
    else:
        console.print(summary_table(documents))
        console.print("page:", str(options.out / "index.html"), highlight=False, soft_wrap=True)
    return 0


def source_faults(report: SourceReport) -> list[str]:
    """Return what was lost or repaired while a source was read, as lines for a person."""
    frames = report.frames
    counts = (frames.dropped, frames.unusable, report.damaged_packets, report.corrupt_frames, report.gap_count)
    return [report.summary()] if report.complete is False or any(counts) else []


class _Demo:
    def __init__(self, options: Options, folder: Path, console: Console) -> None:
        self._options = options
        self._folder = folder
        self._console = console

    async def run(self) -> list[dict[str, Any]]:
        options = self._options
        async with self._open_source():  # what cannot be played is said before anything is started
            pass
        models = ModelFolder(options.models_dir or default_folder())
        async with contextlib.AsyncExitStack() as undo:
            with self._status("starting the cloud and its devices, and releasing the tasks"):
                studio = await undo.enter_async_context(Studio(self._folder, models, devices=options.devices))
            view = undo.enter_context(View(options.source, options.devices, self._console))
            playing = (self._play(device, view, number) for number, device in enumerate(studio.devices))
            return list(await asyncio.gather(*playing))

    @contextlib.asynccontextmanager
    async def _open_source(self) -> AsyncIterator[Source]:
        options = self._options
        source = open_source(
            options.source,
            frames_per_second=Fraction(options.frames_per_second).limit_denominator(1000),
            max_side=_MAX_SIDE,
            pace=options.pace,
            when_behind="wait" if options.pace is None else None,
            allocate=shared_empty,
        )
        async with source:
            yield source

    def _status(self, what: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._options.as_json else self._console.status(what)

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def _play(self, device: Device, view: View, number: int) -> dict[str, Any]:
        options = self._options
        out = options.out if number == 0 else options.out / device.config.device_id
        out.mkdir(parents=True, exist_ok=True)
        seconds: list[dict[str, Any]] = []
        thumbnails: dict[int, bytes] = {}
        undecided: list[str] = []
        fault = ""
        started_s = time.monotonic()
        async with self._open_source() as source:
            player = Player(device, source, paced=options.pace is not None or source.info.live)
            try:
                async for decision in player.decisions():
                    if decision.output is None:
                        undecided.append(f"second {decision.second} was not decided: {decision.why}")
                        continue
                    seconds.append(dict(decision.output))
                    if decision.output["highlight"] and decision.image is not None:
                        thumbnails[decision.second] = encode_jpeg(decision.image)
                    view.update(number, decision, player)
            except MediaError as error:  # what was decided until then is kept
                fault = str(error)
            report, info = source.report, source.info
        duration_s = info.duration_ms / 1000 if info.duration_ms is not None else time.monotonic() - started_s
        faults = (*filter(None, [fault]), *source_faults(report), *undecided)
        stream = Stream(
            source=Path(options.source).name if info.duration_ms is not None else options.source,
            duration_s=duration_s,
            frames=player.frames,
            sound_s=player.sound_s,
            faults=faults,
        )
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
        made_by = f"walle {importlib.metadata.version('walle')}"
        result = document(stream, seconds, player.builder.counts, made_by=made_by, made_at=now)
        await self._write(result, thumbnails, out)
        return result

    async def _write(self, result: dict[str, Any], thumbnails: dict[int, bytes], out: Path) -> None:
        source = Path(self._options.source)
        is_file = await asyncio.to_thread(source.is_file)
        for number, highlight in enumerate(result["highlights"], 1):
            found = [
                thumbnails[second] for second in range(highlight["start"], highlight["end"]) if second in thumbnails
            ]
            if found:
                highlight["thumbnail"] = f"highlight-{number}.jpg"
                (out / highlight["thumbnail"]).write_bytes(found[0])
            if self._options.clips and is_file:
                highlight["clip"] = f"highlight-{number}.mp4"
                await clip(source, 1000 * highlight["start"], 1000 * highlight["end"], out / highlight["clip"])
        write_document(result, out / "highlights.json")
        video = ""
        if is_file:
            video = quote(source.name)
            if not (out / source.name).exists():
                shutil.copyfile(source, out / source.name)
        write_page(result, out, video=video)
