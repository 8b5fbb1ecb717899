"""Options that several commands of `walle features` have: the choice of features, and the store of uploads."""

from pathlib import Path
from typing import Annotated

import typer

from walle.errors import ConfigError

TaskOption = Annotated[str, typer.Option(help="Only of this task, SCENARIO/TASK, such as shop/visits.")]
TopicOption = Annotated[str, typer.Option(help="Only of this topic, such as shop/visits or shop/visits/clicks.")]
DeviceOption = Annotated[str, typer.Option(help="Only of the device with this id.")]
VersionOption = Annotated[
    str,
    typer.Option(help="Only those that this version of their task made, such as v3; or unknown, of devices before it."),
]


def check_store_file(uploads: str) -> None:
    """Raises ConfigError where a path to a store of uploads names no file, which opening would make."""
    if uploads and "://" not in uploads and not Path(uploads).is_file():
        raise ConfigError(
            f"{uploads}: the file does not exist; name the uploads.db of a cloud's folder, or a postgresql:// URL"
        )
