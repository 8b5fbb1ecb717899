"""`walle adapt`: one model in, a model for each goal out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.adapt.branches import branches
from walle.cli.adapt.follow import follow
from walle.cli.adapt.options import File, Folder, Goals, Method, Out, ReleaseOf
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows, interruptible, progress_console
from walle.deploy.releases.stage_text import state_text

if TYPE_CHECKING:
    from walle.adapt.adaptation import Outcome
    from walle.adapt.adaptation import Progress as Done
    from walle.adapt.costs.engine import Latency
    from walle.cli.adapt.release import AdaptedRelease
    from walle.client.release_client import ReleaseJson


def run(
    goals: Goals,
    out: Out = Path("adapted"),
    method: Annotated[
        Method, typer.Option(help="chains: the fewest passes; tree: each goal from the nearest looser one; alone.")
    ] = Method.CHAINS,
    release: ReleaseOf = None,
    folder: Folder = Path(),
    file: File = "",
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Adapt a model to each goal of a file, and write a .walle file for each and a report.

    Goals that no width of the model can meet, or that contradict each other, are named before any training. Ctrl-C
    keeps the goals that are done: `walle adapt resume` goes on. A model that misses its goal is not released.
    """
    _run(goals, out, method, _release_of(goals, release, folder, file, url, token), as_json=as_json, resume=False)


def resume(
    goals: Goals,
    out: Out = Path("adapted"),
    method: Annotated[Method, typer.Option(help="As in the run that was interrupted.")] = Method.CHAINS,
    release: ReleaseOf = None,
    folder: Folder = Path(),
    file: File = "",
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Go on with an interrupted run of the same goals, from the last goal that is done."""
    _run(goals, out, method, _release_of(goals, release, folder, file, url, token), as_json=as_json, resume=True)


def tree(goals: Goals, as_json: JsonFlag = False) -> None:
    """Show how the goals of a file are ordered: each with the nearest looser one, and its pass. Nothing is trained."""
    from walle.adapt.collective.plan import plan_stops
    from walle.adapt.goals.config import read_config

    rows = []
    for job in read_config(goals):
        ones = {name: max(goal.budgets.get(name, 0.0) for goal in job.goals) or 1.0 for name in _constraints(job.goals)}
        above = {stop.goal: stop.before for stops in plan_stops(job.goals, ones, "tree") for stop in stops}
        passes = {
            stop.goal: number for number, stops in enumerate(plan_stops(job.goals, ones, "chains"), 1) for stop in stops
        }
        for at, goal in enumerate(job.goals):
            before = above[at]
            below = "" if before is None else job.goals[before].name
            rows.append({"goal": goal.name, "budgets": goal.describe(), "below": below, "pass": passes[at]})
    emit_rows(rows, as_json=as_json)


def show(
    out: Annotated[Path, typer.Argument(help="The folder of a run.", file_okay=False)] = Path("adapted"),
    as_json: JsonFlag = False,
) -> None:
    """Show what a run made: costs and accuracy of each model, beside the model that was given."""
    from walle.adapt.adaptation import read_outcomes

    _show(read_outcomes(out), as_json=as_json)


def _run(
    goals: Path, out: Path, method: Method, release: "AdaptedRelease | None", *, as_json: bool, resume: bool
) -> None:
    from walle import adapt

    with interruptible("adapting; walle adapt resume continues"), _bar(as_json=as_json) as on_progress:
        outcomes = adapt.run(goals, out, method=method, on_progress=on_progress, resume=resume)
    started = None if release is None else release.start(outcomes[0], out)
    _show(outcomes, as_json=as_json, release=started)
    if not as_json:
        emit(None, as_json=False, text=f"models and report.html are in {out}")


def _release_of(
    goals: Path, release: tuple[str, str] | None, folder: Path, file: str, url: str, token: str
) -> "AdaptedRelease | None":
    if release is None:
        return None
    from walle.adapt.goals.config import read_config
    from walle.cli.adapt.release import AdaptedRelease

    jobs = read_config(goals)
    if len(jobs) > 1:
        raise typer.BadParameter("has several adaptations, and a release is of one", param_hint="GOALS")
    return AdaptedRelease(*release, folder, file, jobs[0].goals, url=url, token=token)


@contextmanager
def _bar(*, as_json: bool) -> Iterator[Callable[["Done"], None]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(
        *columns, console=progress_console, transient=True, disable=as_json or not progress_console.is_terminal
    )
    with progress:
        bar = progress.add_task("adapting", total=None)

        def on_progress(done: "Done") -> None:
            shown = f"{done.goal}: {done.costs['operations']:.3g} operations"
            progress.update(bar, description=shown, completed=done.done, total=done.goals)

        yield on_progress


def _show(outcomes: list["Outcome"], *, as_json: bool, release: "ReleaseJson | None" = None) -> None:
    if as_json:
        emit([asdict(one) | ({} if release is None else {"release": release["id"]}) for one in outcomes], as_json=True)
        return
    from walle.adapt.report import describe_latencies, rows_of

    for one in outcomes:
        latencies = {latency.model: latency for latency in one.latencies}
        rows = [_row(name, costs, latencies.get(name), missed) for name, costs, missed in rows_of(one)]
        title = f"{len(one.fitted)} models in {one.passes} passes, {one.seconds:.0f} s"
        known = [name for name in rows[0] if name == "missed" or any(row[name] for row in rows)]
        emit_rows([{name: row[name] for name in known} for row in rows], as_json=False, title=title)
        emit(None, as_json=False, text=escape(describe_latencies(one)))
    if release is not None:
        name = release["id"]
        emit(None, as_json=False, text=f"{name} is {state_text(release['state'])}; next: walle release status {name}")


def _row(name: str, costs: Any, latency: "Latency | None", missed: str) -> dict[str, Any]:
    from walle.adapt.report import LATENCIES, latency_cells

    cells = zip(LATENCIES, latency_cells(costs, latency), strict=True)
    return {
        "goal": name,
        "operations": f"{costs['operations']:.4g}",
        "parameters": f"{costs['parameters']:.4g}",
        "memory": f"{costs['memory'] / 1e3:.4g} KB",
        **{f"ms, {title}": cell for title, cell in cells},
        "accuracy": f"{costs['accuracy']:.4f}",
        "missed": missed,
    }


def _constraints(goals: Any) -> list[str]:
    from walle.adapt.goals.goal import constraints_of

    return constraints_of(goals)


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Fit one model to many budgets, for a fleet of unlike devices.", no_args_is_help=True)
    group.command(epilog="Example: walle adapt run goals.toml --out models")(run)
    group.command(epilog="Example: walle adapt tree goals.toml")(tree)
    group.command(epilog="Example: walle adapt show models")(show)
    group.command(epilog="Example: walle adapt branches net.py:make --data train.npz --test test.npz --out net.walle")(
        branches
    )
    group.command(epilog="Example: walle adapt resume goals.toml --out models")(resume)
    group.command(epilog="Example: walle adapt follow goals.toml --release shop visits --folder visits")(follow)
    app.add_typer(group, name="adapt")
