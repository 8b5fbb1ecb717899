"""`walle model profile-primitives`: times of the engine's convolution primitives, samples for the performance model."""

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.output import JsonFlag, emit, progress_console
from walle.errors import ConfigError
from walle.protocol import printable

_AT_ONCE = 16  # layers whose runs alternate


def profile_primitives(
    output: Annotated[
        Path | None,
        typer.Option(help="File of samples, continued where it exists; by default in the user's cache folder."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Most minutes of this run; 0: any number.")] = 0.0,
    backend: Annotated[
        str, typer.Option(help="An instruction set; auto: the one that models without a choice run on.")
    ] = "auto",
    count: Annotated[int, typer.Option(min=1, help="Layers that the file shall have.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the layers' draw.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Time each convolution primitive on layers drawn from the ranges of popular networks: medians of 25 runs.

    A primitive is an algorithm with its parameter; changes of layout are timed too. One line is written for each layer:
    a run that was stopped, by Ctrl-C too, is continued by the same command. Layers above 4 GFLOP, 16 MiB of weights,
    64 MiB of input or output, or 256 MiB of im2col are skipped. The machine should be idle.
    """
    from walle import __version__
    from walle.engine_ext import rates
    from walle.engine_ext.search.layers import LayerDraw
    from walle.engine_ext.search.profiling import profile_layers
    from walle.engine_ext.search.samples_file import SamplesFile, SamplesHead

    name = _backend(backend)
    path = output or rates.cache_path().with_name(f"primitives-{name}.jsonl")
    head = SamplesHead(rates.cpu_model(), name, __version__, seed)
    draw = LayerDraw(seed)
    with SamplesFile.open(path, head) as file:
        known = {sample.layer for sample in file.samples}
        before = len(known)
        try:
            for some in _limited(before, count, minutes * 60, as_json=as_json):
                layers = list(itertools.islice((one for one in draw if one not in known), some))
                for sample in profile_layers(layers, name):
                    file.append(sample)
        except KeyboardInterrupt:
            text = f"walle: stopped; {path} has {len(file.samples)} layers, the same command continues there"
            print(printable(text), file=sys.stderr)
            raise
        report = {
            "file": str(path),
            "cpu": head.cpu,
            "backend": name,
            "layers": len(file.samples),
            "measured": len(file.samples) - before,
            "skipped": draw.too_large,
            "primitives": sorted({one for sample in file.samples for one in sample.us}),
        }
    text = f"{path}: {report['layers']} layers, {report['measured']} of them measured now, {name}"
    emit(report, as_json=as_json, text=escape(f"{text}; {draw.too_large} larger ones were skipped"))


def _backend(name: str) -> str:
    """Return the name of an available backend; raises ConfigError."""
    from walle.engine_ext import _core
    from walle.engine_ext.session import backends

    here = [one.name for one in backends() if one.available]
    if name == "auto":
        return _core.backend()
    if name not in here:
        raise ConfigError(f"backend {name!r} is unknown or not available here; available are: {', '.join(here)}")
    return name


def _limited(begun: int, count: int, most_s: float, *, as_json: bool) -> Iterator[int]:
    """Yield how many layers to measure next, until the count or the time is reached; show a bar with the time left."""
    start_s = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    hidden = as_json or not progress_console.is_terminal
    with Progress(*columns, console=progress_console, transient=True, disable=hidden) as progress:
        bar = progress.add_task("profiling", total=1.0)
        for number in range(begun, count, _AT_ONCE):
            passed_s = time.monotonic() - start_s
            if most_s and passed_s >= most_s:
                return
            share = max((number - begun) / (count - begun), passed_s / most_s if most_s else 0.0)
            progress.update(bar, completed=share, description=f"{number} layers")
            yield min(_AT_ONCE, count - number)
