"""`walle model cut`: latency of a model by where it is cut between device and cloud, and the files of the two parts."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.model.measure import random_input
from walle.cli.model.shapes import parse_shapes
from walle.cli.output import JsonFlag, emit, emit_rows, working
from walle.errors import ConfigError

_RATES = {"kbit/s": 1e3, "mbit/s": 1e6, "gbit/s": 1e9}
_TIMES = {"ms": 1.0, "s": 1e3}
_SHOWN = 12  # cuts of the table


def _quantity(text: str, units: dict[str, float], option: str, example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z/]+)", text.strip())
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise typer.BadParameter(f"{text!r} is not a quantity such as {example}", param_hint=option)
    return float(match[1]) * unit


def cut(
    model: Annotated[Path, typer.Argument(help="A .walle or .onnx model without control flow.")],
    bandwidth: Annotated[str, typer.Option(help="Bandwidth of the link, in kbit/s, Mbit/s or Gbit/s.")],
    rtt: Annotated[str, typer.Option(help="Round trip of the link, in ms or s.")],
    device_slower: Annotated[float, typer.Option(min=0.01, help="Time of the device as a multiple of this one's.")] = 1,
    cloud_faster: Annotated[float, typer.Option(min=0.01, help="Speed of the cloud as a multiple of this one's.")] = 1,
    quantised: Annotated[bool, typer.Option("--quantised", help="Pass float32 arrays at a cut in int8.")] = False,
    shape: Annotated[
        list[str] | None, typer.Option(help="NAME=8x16, for an input whose shape the model does not fix.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Write the files of both parts and the picture here.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the picture, a PNG, here; it needs matplotlib.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a model's latency by where it is cut between device and cloud, and the best cut.

    The time of each operator is measured on this machine, and scaled. An array at a cut and the outputs of the cloud
    pass the link. --json has all cuts, the table the best ones. With --out, both parts run on seeded inputs, and the
    difference of their outputs from the uncut model's is shown.
    """
    bits_per_s = _quantity(bandwidth, _RATES, "--bandwidth", "10Mbit/s")
    round_trip_ms = _quantity(rtt, _TIMES, "--rtt", "30ms")
    from walle.split.chooser import choose, latencies, named
    from walle.split.conditions import Conditions
    from walle.split.cuts import find_cuts

    with working(f"timing {model}", as_json=as_json):
        found = find_cuts(model, parse_shapes(shape or []))
    conditions = Conditions(round_trip_ms, bits_per_s / 8e3, device_slower, 1 / cloud_faster)
    times = latencies(found.cuts, conditions, is_quantised=quantised)
    choice = choose(found.cuts, conditions, is_quantised=quantised)
    best = found.cuts.index(choice.cut)
    report: dict[str, Any] = {
        "model": str(model),
        "best": best,
        "why": choice.why,
        "cuts": [
            {"name": named(found.cuts, at), "latency_ms": one.total_ms, **asdict(one), **asdict(found.cuts[at])}
            for at, one in enumerate(times)
        ],
    }
    if out is not None:
        report |= _write(model, found, best, out, is_quantised=quantised)
        picture = picture or out / f"{found.name}.cuts.png"
    if picture is not None:
        title = f"{found.name}, {bandwidth}, {rtt}, device {device_slower:g} × slower, cloud {cloud_faster:g} × faster"
        _draw(found.cuts, times, best, title, picture)
        report["picture"] = str(picture)
    if as_json:
        emit(report, as_json=True)
        return
    listed = sorted(range(len(times)), key=lambda at: times[at].total_ms)[:_SHOWN]
    rows = [
        {
            "cut": named(found.cuts, at) + (" (best)" if at == best else ""),
            "bytes": found.cuts[at].quantised_bytes if quantised and at else found.cuts[at].up_bytes,
            "device ms": f"{times[at].device_ms:.2f}",
            "transfer ms": f"{times[at].transfer_ms:.2f}",
            "cloud ms": f"{times[at].cloud_ms:.2f}",
            "latency ms": f"{times[at].total_ms:.2f}",
        }
        for at in sorted({0, len(times) - 1, *listed})
    ]
    emit_rows(rows, as_json=False, title=f"{found.name}: {len(times)} cuts")
    emit(None, as_json=False, text=escape(choice.why))
    for key in ("device", "cloud", "picture", "no_files"):
        if key in report:
            emit(None, as_json=False, text=escape(f"{key.replace('_', ' ')}: {report[key]}"))
    for one in report.get("errors", ()):
        text = f"output {one['output']} differs by {one['relative']:.1e} of its norm, on seeded inputs"
        emit(None, as_json=False, text=escape(text))


def _write(model: Path, found: Any, best: int, out: Path, *, is_quantised: bool) -> dict[str, Any]:
    """Return the paths of the two files and the difference that they make, or why there are none."""
    from walle.engine_ext.session_info import TensorInfo
    from walle.split.chooser import named
    from walle.split.files import errors_of, write_parts

    try:
        out.mkdir(parents=True, exist_ok=True)
        if best in {0, len(found.cuts) - 1}:
            return {"no_files": f"{named(found.cuts, best)} is best, which needs the model's own file only"}
        parts = write_parts(found, found.cuts[best], out, is_quantised=is_quantised)
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}") from error
    inputs = zip(found.graph.input_names, found.inputs, strict=True)
    sample = {name: random_input(TensorInfo(name, one.shape, one.dtype), None) for name, one in inputs}
    errors = errors_of(model, parts, [sample])
    return {"device": str(parts.device), "cloud": str(parts.cloud), "errors": [asdict(one) for one in errors]}


def _draw(cuts: Any, times: Any, best: int, title: str, path: Path) -> None:
    from walle.split.picture import draw

    try:
        draw(cuts, times, best, title, path)
    except ImportError as error:
        raise ConfigError("the picture needs matplotlib: pip install walle[cloud]") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
