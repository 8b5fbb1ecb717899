"""Options that several commands of `walle features` have: the choice of features."""

from typing import Annotated

import typer

TaskOption = Annotated[str, typer.Option(help="Only of this task, SCENARIO/TASK, such as shop/visits.")]
TopicOption = Annotated[str, typer.Option(help="Only of this topic, such as shop/visits or shop/visits/clicks.")]
DeviceOption = Annotated[str, typer.Option(help="Only of the device with this id.")]
VersionOption = Annotated[
    str,
    typer.Option(help="Only those that this version of their task made, such as v3; or unknown, of devices before it."),
]
