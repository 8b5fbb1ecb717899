"""`walle figures`: the benchmarks, each of which is a module under benchmarks/ and also runs alone."""

import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from walle.base.durable_file import write_file
from walle.cli.figures.budget import Budget
from walle.cli.figures.catalogue import Catalogue, Figure
from walle.cli.figures.load_tests import read_load_tests
from walle.cli.figures.page import best_peer, outcome, page
from walle.cli.figures.run import FigureResult, revision_of, run_directly, run_figure
from walle.cli.output import JsonFlag, emit, emit_rows, progress_console
from walle.errors import ConfigError

_QUICK_LIMIT_S = 120.0
_QUICK_BUDGET_S = 600.0
_LIMIT_S = 7200.0


def figures(
    name: Annotated[str, typer.Argument(help="The figure to measure; by default all.")] = "",
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments, after --; see its module.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Only list the figures.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure all with few repetitions and small sizes, in about ten minutes.")
    ] = False,
    only: Annotated[str, typer.Option(help="Of all figures, these alone; names separated by commas.")] = "",
    skip: Annotated[str, typer.Option(help="All figures but these; names separated by commas.")] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Measure also what an earlier call has measured at this commit.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of report.html, and of the results that are kept.")] = Path("out"),
    limit_s: Annotated[
        float,
        typer.Option("--limit-s", min=0, help="Seconds after which a figure is ended; 0: 7200, or 120 with --quick."),
    ] = 0.0,
    budget_s: Annotated[
        float,
        typer.Option(
            "--budget-s",
            min=0,
            help="Seconds that all figures share; 0: 600 with --quick, else any number. None is left out silently.",
        ),
    ] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Measure figures on this machine, against their peers in the same run.

    Without a name all are measured, one after the other, and out/report.html has each of them: first a table with the
    paper's number, ours and the best peer's, then what each printed, its command, time, machine and versions. One that
    fails is shown with its last lines, and the others continue; exit status 1 says so. Load tests that were run are
    linked to. An interrupted call continues where it was: what the same command has measured at the same commit,
    without changes to its files, is not measured again.
    """
    catalogue = Catalogue.find()
    if show:
        rows = [
            {"figure": one.name, "paper": one.section, "title": one.title, "module": f"benchmarks/{one.path.name}"}
            for one in catalogue.figures.values()
        ]
        emit_rows(rows, as_json=as_json)
        return
    if name:
        if quick or only or skip or budget_s:
            what = "--quick, --only, --skip and --budget-s are for the report of all figures"
            raise ConfigError(f"{what}; give arguments of one figure after --")
        if name not in catalogue.modules:
            raise ConfigError(f"unknown figure {name!r}; known are: {', '.join(catalogue.figures)}")
        given = [*(arguments or []), *(["--json"] if as_json else [])]
        if status := run_directly(catalogue.modules[name], given, catalogue.root):
            raise typer.Exit(status)
        return
    chosen = catalogue.chosen(only, skip)
    limit_s = limit_s or (_QUICK_LIMIT_S if quick else _LIMIT_S)
    budget = Budget(budget_s or (_QUICK_BUDGET_S if quick else math.inf))
    results = _measure(
        catalogue, chosen, out, quick=quick, again=again, limit_s=limit_s, budget=budget, as_json=as_json
    )
    kept = {one: FigureResult.load(_record(out, one)) for one in catalogue.figures}
    report = out / "report.html"
    rows_of_page = [(figure, kept[figure.name]) for figure in catalogue.figures.values()]
    write_file(
        report, page(rows_of_page, catalogue.root / "out", read_load_tests(catalogue.root / "out/loadtest", report))
    )
    bad = [one for one in results if one.status != "ok"]
    plain = {
        "report": str(report),
        "figures": [one.to_plain() | {"headlines": _headlines(one)} for one in results],
    }
    if not as_json:
        papers = {figure.name: figure.short for figure in chosen}
        emit_rows([row for one in results for row in _rows(one, papers[one.name])], as_json=False)
    text = f"{len(results) - len(bad)} of {len(results)} figures measured; report: {report}"
    emit(plain, as_json=as_json, text=escape(text + "".join(f"\n{one.name}: {_last(one)}" for one in bad)))
    if bad:
        raise typer.Exit(1)


def _record(out: Path, name: str) -> Path:
    return out / "figures" / f"{name}.json"


def _last(result: FigureResult) -> str:
    lines = result.error.splitlines()
    return f"{result.status}: {' / '.join(lines[-2:])}"


def _headlines(result: FigureResult) -> list[dict[str, Any]]:
    """Return the headlines as JSON, each with the peer that is best."""
    return [
        dataclasses.asdict(one) | {"best_peer": best[0] if (best := one.best_peer()) else None}
        for one in result.headlines
    ]


def _rows(result: FigureResult, paper: str) -> list[dict[str, str]]:
    """Return the rows of the table for a terminal: one for each headline."""
    seconds = f"{result.seconds:.1f}"
    cells = [
        {"measured": headline.title(), "ours": headline.shown(headline.ours), "best peer": best_peer(headline)}
        for headline in result.headlines
    ] or [{"measured": "", "ours": outcome(result), "best peer": ""}]
    return [{"figure": result.name, "paper": paper, **one, "seconds": seconds} for one in cells]


def _measure(
    catalogue: Catalogue,
    chosen: list[Figure],
    out: Path,
    *,
    quick: bool,
    again: bool,
    limit_s: float,
    budget: Budget,
    as_json: bool,
) -> list[FigureResult]:
    """Measure what is not measured yet, and keep each result at once; return all of them."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    revision = revision_of(catalogue.root)
    results, kept, to_measure = [], dict[str, FigureResult](), list[Figure]()
    for figure in chosen:
        found = None if again else FigureResult.load(_record(out, figure.name))
        if found is not None and found.stands_for(figure, quick=quick, revision=revision):
            kept[figure.name] = found
        else:
            to_measure.append(figure)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    shows = progress_console.is_terminal and not as_json
    with Progress(*columns, console=progress_console, transient=True, disable=not shows) as progress:
        bar = progress.add_task("figures", total=len(chosen))
        for figure in chosen:
            progress.update(bar, description=figure.name)
            result = kept.get(figure.name)
            if result is None:
                to_measure.remove(figure)
                share_s = budget.share_s(figure, to_measure)
                why = (
                    "the limit of each (--limit-s)"
                    if limit_s <= share_s
                    else f"its share of {budget.all_s:.0f} s (--budget-s)"
                )
                result = run_figure(
                    figure, catalogue.root, quick=quick, revision=revision, limit_s=min(limit_s, share_s), why=why
                )
                write_file(_record(out, figure.name), json.dumps(result.to_plain(), indent=1))
                if not shows and not as_json:
                    at = time.strftime("%H:%M:%S")
                    print(f"{at} {figure.name}: {result.status}, {result.seconds:.1f} s", file=sys.stderr, flush=True)
            results.append(result)
            progress.advance(bar)
    return results


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: walle figures vm")(figures)
