"""`walle model bench`: the times of a model."""

import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.model.shapes import parse_shapes
from walle.cli.output import JsonFlag, emit, emit_rows, interruptible, progress_console
from walle.errors import ConfigError

_MOST_RANDOM = 1 << 16  # random values per input; a larger input repeats them


def _progress(*, as_json: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(
        *columns, console=progress_console, transient=True, disable=as_json or not progress_console.is_terminal
    )


def random_input(info: Any, shape: tuple[int, ...] | None) -> Any:
    """Return seeded values for an input: floats between -1 and 1, zeros of other types.

    Raises:
        ConfigError: the model does not fix the shape, and `shape` is not given.
    """
    from walle import np

    sizes = shape if shape is not None else info.shape
    if sizes is None or None in sizes or info.dtype is None:
        raise ConfigError(
            f"input {info.name}: its shape is known at run time only; give it with: --shape {info.name}=8x16"
        )
    if not info.dtype.startswith("float"):
        return np.zeros(sizes, dtype=info.dtype)
    count = 1
    for size in sizes:
        count *= size
    draw = random.Random(info.name)
    some = [draw.uniform(-1, 1) for _ in range(min(count, _MOST_RANDOM))]
    values = (some * (count // len(some) + 1))[:count] if some else []
    return np.asarray(values, dtype="float32").reshape(sizes).astype(info.dtype)


def _timed(session: Any, inputs: dict[str, Any]) -> tuple[float, float]:
    """Return the wall and CPU milliseconds of one run."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    session.run(inputs)
    return (time.perf_counter() - begin) * 1e3, (time.process_time() - begin_cpu) * 1e3


def _operator_rows(ops: Any, times: list[list[float]]) -> list[dict[str, Any]]:
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    whole = sum(medians) or 1.0
    return [
        {
            "node": op.name,
            "operator": op.op,
            "algorithm": f"{op.algorithm}({op.candidates[0].parameter})" if op.candidates else op.algorithm,
            "predicted_us": round(op.predicted_us, 1),
            "median_us": round(median, 1),
            "share": f"{100 * median / whole:.1f} %",
        }
        for op, median in zip(ops, medians, strict=True)
    ]


def bench(
    model: Annotated[Path, typer.Argument(help="A .walle model.")],
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads of the session.")] = 1,
    backend: Annotated[
        str, typer.Option(help="An instruction set; auto: the one with the least predicted cost.")
    ] = "auto",
    runs: Annotated[int, typer.Option(min=1, help="Timed runs, after the first one.")] = 50,
    profile: Annotated[bool, typer.Option("--profile", help="Time each operator too.")] = False,
    shape: Annotated[
        list[str] | None, typer.Option(help="NAME=8x16, once for each input whose shape the model does not fix.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time a model on seeded inputs: load, search, first run, then the median of many runs."""
    from walle.engine_ext.session import Session

    shapes = parse_shapes(shape or [])
    begin = time.perf_counter()
    session = Session(model, backend=backend, threads=threads)
    load_ms = (time.perf_counter() - begin) * 1e3
    planned_in = "load" if session.plan() is not None else "first run"  # the first run knows the shapes
    if unknown := sorted(shapes.keys() - {info.name for info in session.inputs}):
        known = ", ".join(info.name for info in session.inputs)
        raise ConfigError(f"{model}: no input is named {', '.join(unknown)}; its inputs are: {known}")
    inputs = {info.name: random_input(info, shapes.get(info.name)) for info in session.inputs}
    profiles: list[list[float]] = []
    with interruptible(f"timing {model}"), _progress(as_json=as_json) as progress:
        first_ms, _ = _timed(session, inputs)
        times = [_timed(session, inputs) for _ in progress.track(range(runs), description="timing")]
        if profile:
            profiles = [session.profile(inputs) for _ in progress.track(range(runs), description="operators")]
    plan = session.plan()
    if plan is None:
        raise ConfigError(f"{model}: it has no plan after a run")
    wall, cpu = zip(*times, strict=True)
    report: dict[str, Any] = {
        "model": str(model),
        "backend": plan.backend,
        "threads": threads,
        "runs": runs,
        "median_ms": statistics.median(wall),
        "min_ms": min(wall),
        "cpu_ms": statistics.median(cpu),
        "load_ms": load_ms,
        "search_ms": plan.search_ms,
        "planned_in": planned_in,
        "first_ms": first_ms,
        "predicted_ms": sum(op.predicted_us for op in plan.ops) / 1e3,
        "arena_bytes": plan.arena_bytes,
    }
    rows = _operator_rows(plan.ops, profiles) if profile else []
    if as_json:
        emit(report | ({"operators": rows} if profile else {}), as_json=True)
        return
    if rows:
        emit_rows(rows, as_json=False)
    search = f", of which search {plan.search_ms:.2f} ms"
    load = f"load {load_ms:.2f} ms{search if planned_in == 'load' else ''}"
    first = f"first run {first_ms:.2f} ms{search if planned_in == 'first run' else ''}"
    emit(
        None,
        as_json=False,
        text=escape(
            f"{model} on {plan.backend}, {threads} thread{'s' if threads > 1 else ''}, {runs} runs: median"
            f" {report['median_ms']:.3f} ms, least {report['min_ms']:.3f} ms, CPU {report['cpu_ms']:.3f} ms a run;"
            f" {load}; {first}"
        ),
    )
