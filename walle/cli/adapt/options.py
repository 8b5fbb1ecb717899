"""Options that commands of `walle adapt` share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Goals = Annotated[Path, typer.Argument(help="A file of goals: TOML, or the JSON of the paper.", dir_okay=False)]
ReleaseOf = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--release",
        metavar="SCENARIO TASK",
        help="Push the models as the next version of this task, and release it, each to the devices of its rule.",
    ),
]
Folder = Annotated[Path, typer.Option(help="The checkout of that task, on its branch.", file_okay=False)]
File = Annotated[str, typer.Option(help="The file of the task that the models replace; its only model if not given.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the models, the report and the checkpoints.")]


class Method(StrEnum):
    """Ways in which goals share passes."""

    CHAINS = "chains"
    TREE = "tree"
    ALONE = "alone"
