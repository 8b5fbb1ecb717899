"""`walle adapt branches`: one file with a model at several costs, switched between two runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from walle.cli.output import JsonFlag, emit, emit_rows, interruptible, progress_console


def branches(
    model: Annotated[str, typer.Argument(help="A trained model: FILE.py:FUNCTION, a .onnx or a .walle file.")],
    data: Annotated[str, typer.Option(help="Training data: .npz, a folder of images, or FILE.py:FUNCTION.")],
    test: Annotated[str, typer.Option(help="Data to measure accuracies on.")],
    count: Annotated[int, typer.Option(min=2, max=9, help="Number of branches.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .walle file.", dir_okay=False)] = Path("branches.walle"),
    added: Annotated[
        float, typer.Option(min=0.0, help="Parameters that branches may add, as a share of the model's.")
    ] = 0.6,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a branch.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 64,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Learning rate of the first step.")] = 0.002,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write one model with branches on one base: from a third of the cost of the branched part to three times.

    The part is as large as the limit of added parameters allows. The input "branch" of the file chooses one for each
    run. Each learns from the labels and from the model's outputs.
    """
    from walle.adapt.branches.build import BranchSettings, make_branches
    from walle.adapt.dataset import load_data
    from walle.adapt.goals.config import Training
    from walle.adapt.source import load_model

    here = Path()
    training = Training(steps=steps, batch=batch, learning_rate=learning_rate)
    with interruptible("training branches"), _bar(as_json=as_json) as on_progress:
        given, train = load_model(model, here), load_data(data, here)
        tested = load_data(test, here, train.classes)
        made = make_branches(given, train, tested, out, BranchSettings(count, added, training, seed), on_progress)
    if as_json:
        emit(asdict(made), as_json=True)
        return
    rows = [
        {
            "branch": f"{at}{' (the model)' if at == made.own else ''}",
            "operations": f"{one.operations:.4g}",
            "of the model's": f"{one.operations / made.operations:.2f}",
            "parameters": f"{one.parameters:.4g}",
            "accuracy": f"{one.accuracy:.4f}",
        }
        for at, one in enumerate(made.branches)
    ]
    emit_rows(rows, as_json=False, title=f"{out}: {made.added:+.0%} parameters")


@contextmanager
def _bar(*, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(
        *columns, console=progress_console, transient=True, disable=as_json or not progress_console.is_terminal
    )
    with progress:
        bar = progress.add_task("training branches", total=None)
        yield lambda done, steps: progress.update(bar, completed=done, total=steps)
