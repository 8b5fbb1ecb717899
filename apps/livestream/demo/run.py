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

from apps.livestream.demo.keys import quit_key
from apps.livestream.demo.results_folder import ResultsFolder
from apps.livestream.demo.view import View, summary
from apps.livestream.document import BRIDGE_S, Stream, document, write_document
from apps.livestream.drawn_clip import write_clip
from apps.livestream.frame_choice import Choice
from apps.livestream.media import MediaError, NoStreamError, Source, SourceReport, clip, encode_jpeg, open_source
from apps.livestream.media.address import Address, Kind
from apps.livestream.page.page import clock, write_page
from apps.livestream.player import Player
from apps.livestream.studio import Studio
from apps.livestream.task_files import check_public_models, choose_models
from walle.device import Device
from walle.errors import ConfigError
from walle.model_files import ModelFolder, default_folder
from walle.vm import shared_empty

_MAX_SIDE = 1280  # size of the frames that the tasks get; the models see 320 pixels
_MAX_LINES = 20  # undecided seconds that the document lists


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a demo; see `walle demo livestream --help`."""

    source: str  # empty: the app's drawn clip
    devices: int
    models: str | None  # "own" or "public"; None: the public ones where they are
    models_dir: Path | None
    out: Path
    pace: float | None
    frames_per_second: float
    clips: bool
    as_json: bool
    budget: float | None = None
    seconds: float | None = None


def main(options: Options) -> int:
    """Run the demo; return 0 if every device played its stream to the end, 1 if not, 130 after Ctrl-C.

    The key q and `seconds` are ends too. What was decided until then is written and shown in each case.

    Raises:
        ConfigError: no file can be written into the results folder, or it has files that are not an earlier run's, or
            the source; or clips are to be cut of what is not a file.
        ModelFileError: the models that are asked for are not there.
    """
    console = Console(stderr=options.as_json, emoji=False)
    folder = Path(tempfile.mkdtemp(prefix="walle-livestream-"))
    status = 0
    demo: _Demo | None = None
    try:
        demo = _Demo(options, folder, console)
        demo.draw()
        asyncio.run(demo.run())
        status = 1 if demo.ended_early else 0
    except (KeyboardInterrupt, asyncio.CancelledError):
        status = 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if demo is not None and options.as_json:
        sys.stdout.write(json.dumps({"devices": dict(sorted(demo.documents.items()))}, indent=1) + "\n")
    if demo is None or not demo.documents:  # stopped before the stream began
        console.print("stopped; nothing was written")
    elif not options.as_json:
        for device, found in sorted(demo.documents.items()):
            for part in summary(found, device if options.devices > 1 else ""):
                console.print(part, highlight=False, soft_wrap=isinstance(part, str), markup=False)
        console.print("page:", str(options.out / "index.html"), highlight=False, soft_wrap=True, markup=False)
    return status


def source_faults(report: SourceReport) -> list[str]:
    """Return what was lost or repaired while a source was read, as lines for a person."""
    frames = report.frames
    counts = (frames.dropped, frames.unusable, report.damaged_packets, report.corrupt_frames, report.gap_count)
    return [report.summary()] if report.complete is False or any(counts) else []


def _status(options: Options, console: Console, what: str) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if options.as_json else console.status(what)


def _stop(players: list[Player]) -> None:
    for player in players:
        player.stop()


def _made_by() -> str:
    return f"walle {importlib.metadata.version('walle')}"


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - _MAX_LINES
    return lines if more <= 0 else [*lines[:_MAX_LINES], f"and {more} more seconds were not decided"]


class Thumbnails:
    """The picture of each highlight's best second, as JPEG; `document.highlights` joins seconds by the same rule."""

    def __init__(self) -> None:
        self._images: dict[int, tuple[float, bytes]] = {}  # score and picture, by the highlight's first second
        self._start = self._last = -BRIDGE_S - 2

    def add(self, second: int, image: Any, score: float) -> None:
        """Take the picture of a second that is a highlight, in order; None where it has none."""
        if second - self._last - 1 > BRIDGE_S:
            self._start = second
        self._last = second
        if image is not None and score > self._images.get(self._start, (-1.0, b""))[0]:
            self._images[self._start] = score, encode_jpeg(image)

    def of(self, start: int) -> bytes | None:
        """Return the picture of the highlight that begins at a second."""
        return self._images.get(start, (0.0, None))[1]


class _Demo:
    def __init__(self, options: Options, folder: Path, console: Console) -> None:
        self._options = options
        self._folder = folder
        self._console = console
        self._drawn = None if options.source else folder / "drawn_clip.mp4"  # `draw` makes it
        self._source = options.source or str(self._drawn)
        self._shown, self._file = self._source, self._drawn
        if self._drawn is None:
            address = Address.parse(options.source)
            self._shown = address.shown  # an address without its password
            self._file = Path(address.target) if address.kind is Kind.FILE else None
        if options.clips and self._file is None:
            raise ConfigError(f"{self._shown} is not a file, of which --clips could cut; leave --clips out")
        self._results = ResultsFolder(options.out, self._file)
        self._results.check_writable()
        self._models = choose_models(options.models, ModelFolder(options.models_dir or default_folder()))
        if isinstance(self._models.models, ModelFolder):
            check_public_models(self._models.models)
        self.documents: dict[str, dict[str, Any]] = {}  # by device, those that are written
        self.ended_early = False

    def draw(self) -> None:
        """Draw the clip that is played where no source was given."""
        if self._drawn is not None:
            with _status(self._options, self._console, "drawing a clip"):
                write_clip(self._drawn)

    async def run(self) -> None:
        """Play the stream on each device.

        Raises:
            MediaError, TasksNotInstalledError: nothing was played.
        """
        options = self._options
        async with self._open_source() as source:  # what cannot be played is said before anything is started
            if not source.info.has_video:
                raise NoStreamError(self._shown, "no video in it; highlights are found in pictures, give a video")
        self._console.print("models:", self._models.why, highlight=False, soft_wrap=True, markup=False)
        async with contextlib.AsyncExitStack() as undo:
            with _status(options, self._console, "starting the cloud and its devices, and releasing the tasks"):
                models = self._models.models
                studio = await undo.enter_async_context(Studio(self._folder, models, devices=options.devices))
            await asyncio.to_thread(self._results.begin)
            players: list[Player] = []
            can_quit = undo.enter_context(quit_key(lambda: _stop(players)))
            how = "q or Ctrl-C ends it" if can_quit else ""
            view = undo.enter_context(View(self._shown, options.devices, self._console, how=how))
            await asyncio.gather(
                *(self._play(device, view, number, players) for number, device in enumerate(studio.devices))
            )

    @contextlib.asynccontextmanager
    async def _open_source(self) -> AsyncIterator[Source]:
        options = self._options
        source = open_source(
            self._source,
            frames_per_second=Fraction(options.frames_per_second).limit_denominator(1000),
            max_side=_MAX_SIDE,
            pace=options.pace,
            when_behind="wait" if options.pace is None else None,
            allocate=shared_empty,
        )
        async with source:
            yield source

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def _play(self, device: Device, view: View, number: int, players: list[Player]) -> None:
        options = self._options
        name = device.config.device_id
        out = options.out if number == 0 else options.out / name
        out.mkdir(parents=True, exist_ok=True)
        seconds: list[dict[str, Any]] = []
        thumbnails = Thumbnails()
        faults: list[str] = []
        undecided: list[str] = []
        started_s = time.monotonic()
        async with self._open_source() as source:
            player = Player(
                device,
                source,
                paced=options.pace is not None or source.info.live,
                budget=options.budget,
                seconds=options.seconds,
            )
            players.append(player)
            try:
                async with contextlib.aclosing(player.decisions()) as decisions:
                    async for decision in decisions:
                        view.update(number, decision, player)
                        if decision.output is None:
                            undecided.append(f"second {decision.second} was not decided: {decision.why}")
                            continue
                        seconds.append(dict(decision.output))
                        if decision.output["highlight"]:
                            thumbnails.add(decision.second, decision.image, decision.output["score"])
            except MediaError as error:
                self.ended_early = True
                faults.append(str(error))
            except asyncio.CancelledError:  # Ctrl-C, which is how a webcam ends: what was decided is kept
                faults.append(f"stopped at {clock(seconds[-1]['second'] + 1 if seconds else 0)}")
                raise
            finally:
                duration_ms = source.info.duration_ms
                duration_s = time.monotonic() - started_s if duration_ms is None else duration_ms / 1000
                if player.was_ended:
                    duration_s = seconds[-1]["second"] + 1 if seconds else 0
                    if options.seconds is None or duration_s < options.seconds:
                        faults.append(f"stopped at {clock(duration_s)}")
                stream = Stream(
                    source=Path(self._shown).name if duration_ms is not None else self._shown,
                    duration_s=duration_s,
                    frames=player.frames,
                    sound_s=player.sound_s,
                    unchanged=player.chooser.counts[Choice.UNCHANGED],
                    over_budget=player.chooser.counts[Choice.BUDGET],
                    budget=options.budget,
                    cpu_s=player.chooser.cpu_s,
                    faults=(*faults, *source_faults(source.report), *_shortened(undecided)),
                )
                result = document(
                    stream,
                    seconds,
                    player.builder.counts,
                    made_by=_made_by(),
                    made_at=f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
                )
                await self._write(result, thumbnails, out)
                self.documents[name] = result

    async def _write(self, result: dict[str, Any], thumbnails: Thumbnails, out: Path) -> None:
        source = self._file
        video = f"stream{source.suffix}" if source is not None else ""  # a name that none of the other files has
        numbers = range(1, len(result["highlights"]) + 1)
        made = [f"highlight-{number}.{suffix}" for number in numbers for suffix in ("jpg", "mp4")]
        self._results.add(out, ["highlights.json", "index.html", *filter(None, [video]), *made])
        for number, highlight in enumerate(result["highlights"], 1):
            if (image := thumbnails.of(highlight["start"])) is not None:
                highlight["thumbnail"] = f"highlight-{number}.jpg"
                (out / highlight["thumbnail"]).write_bytes(image)
            if self._options.clips and source is not None:
                name = f"highlight-{number}.mp4"
                try:
                    await clip(source, 1000 * highlight["start"], 1000 * highlight["end"], out / name)
                    highlight["clip"] = name
                except MediaError as error:
                    result["faults"].append(str(error))
        write_document(result, out / "highlights.json")
        if source is not None:
            await asyncio.to_thread(shutil.copyfile, source, out / video)
        write_page(result, out, video=quote(video))
