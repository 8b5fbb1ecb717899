"""`walle features sink`: send features on to other systems, as a separate process."""

import os
import random
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.cli import event_loop
from walle.cli.features.options import DeviceOption, TaskOption, TopicOption, VersionOption
from walle.cli.output import JsonFlag, JsonLinesFlag, emit, emit_line

if TYPE_CHECKING:
    from walle.sinks import AsideFolder, ResentRows, Sink, SinkStatus

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def sink(
    target: Annotated[
        str, typer.Argument(help="kafka://HOST/TOPIC, mqtt://HOST/TOPIC, s3://BUCKET/PREFIX, https://..., or a folder.")
    ],
    uploads: Annotated[
        str,
        typer.Option(
            help="The store of uploads: uploads.db of a cloud's folder, or postgresql://USER@HOST/DATABASE.",
            envvar="WALLE_UPLOADS",
        ),
    ],
    group: Annotated[
        str, typer.Option(help="The consumer group: its processes share the devices, and its position is stored.")
    ],
    task: TaskOption = "",
    topic: TopicOption = "",
    device: DeviceOption = "",
    version: VersionOption = "",
    latest: Annotated[bool, typer.Option("--latest", help="Let a new group begin with the next upload.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End once everything stored so far is sent.")] = False,
    every_s: Annotated[
        float | None,
        typer.Option(help="Seconds that rows wait for others of their file or batch; Parquet 60, else 0.", min=0),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            help="Number of waiting rows at which they are written, before --every-s has passed.",
            min=1,
            max=1_000_000,
        ),
    ] = 50_000,
    lease_s: Annotated[
        float, typer.Option(help="Seconds until the devices of a killed process go to another.", min=1, max=3600)
    ] = 30.0,
    set_aside: Annotated[
        Path | None,
        typer.Option(help="Folder for rows that the target refuses alone; without it, the first ends the sink."),
    ] = None,
    set_aside_rows: Annotated[
        int, typer.Option(help="Number of rows in that folder at which the next one ends the sink.", min=1)
    ] = 1000,
    as_json: JsonLinesFlag = False,
) -> None:
    """Send features on: to a Kafka topic, an MQTT broker, Parquet files in a folder or bucket, or a webhook.

    It reads as a member of a consumer group, and commits what the target has: after a crash nothing is missing.
    Parquet files have each feature exactly once; Kafka, MQTT and a webhook at least once, with a `key` that names it.
    While the target is down, it waits and tries again. Ctrl-C or SIGTERM ends it, with --once with status 1 if not all
    was sent. A row that the target refuses alone, such as one that is too large for it, ends the sink with an error
    that names it; with --set-aside, such rows are kept in files of that folder, are counted, and can be sent again
    (walle features resend).

    A user's password, a webhook's token and a file of authorities are in WALLE_SINK_PASSWORD, WALLE_SINK_TOKEN and
    WALLE_SINK_CA. All processes of a group have the same target and options. With --json, a line for each change:
    sent, passed (not chosen), set_aside, retries, commits, error, lag.
    """
    _check_group(group)

    from walle.pipeline.ingest.store.feature_reader import FeatureFilter
    from walle.sinks import AsideFolder, RunnerConfig
    from walle.sinks.address import make_sink
    from walle.sinks.parquet import ParquetSink

    choice: dict[str, Any] = {"task": task, "topic": topic, "device": device, "version": version}
    wanted = FeatureFilter(**choice)
    made = make_sink(target, group, {name: text for name, text in choice.items() if text}, os.environ)
    if every_s is None:
        every_s = 60.0 if isinstance(made, ParquetSink) else 0.0
    config = RunnerConfig(
        group=group, wanted=wanted, start="latest" if latest else "earliest", flush_s=every_s, flush_rows=rows,
        lease_s=lease_s,
    )  # fmt: skip
    aside = None if set_aside is None else AsideFolder(set_aside, group, max_rows=set_aside_rows)
    status, has_sent = event_loop.run(_run(uploads, made, config, aside, once=once, as_json=as_json))
    if not as_json:
        emit(None, as_json=False, text=escape(f"{made.target}: {_line_of(status, aside)}"))
    if once and not has_sent:
        raise typer.Exit(1)


async def _run(
    uploads: str, made: Any, config: Any, aside: "AsideFolder | None", *, once: bool, as_json: bool
) -> tuple["SinkStatus", bool]:
    import asyncio
    import dataclasses

    from walle.pipeline.ingest.stores import open_uploads
    from walle.sinks import SinkRunner

    shown: dict[str, Any] = {}

    def show(status: "SinkStatus") -> None:
        nonlocal shown
        fields = dataclasses.asdict(status)
        if as_json and fields != shown:
            emit_line({"target": made.target, "group": config.group, **fields})
        shown = fields

    async with open_uploads(uploads) as store:
        runner = SinkRunner(store, made, config, rng=random.Random(), aside=aside, on_status=show)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, runner.stop)
        has_sent = await runner.run(once=once)
        show(runner.status)
        return runner.status, has_sent


def _line_of(status: "SinkStatus", aside: "AsideFolder | None") -> str:
    parts = [f"{status.sent:,} features sent"]
    if status.passed:
        parts.append(f"{status.passed:,} not chosen")
    if status.set_aside and aside is not None:
        parts.append(f"{status.set_aside:,} refused and set aside in {aside.name}")
    if status.retries:
        parts.append(f"{status.retries:,} attempts failed")
    if status.error:
        parts.append(f"stopped while: {status.error}")
    return ", ".join(parts)


def resend(
    folder: Annotated[Path, typer.Argument(help="The folder of --set-aside of `walle features sink`.")],
    target: Annotated[
        str, typer.Argument(help="kafka://HOST/TOPIC, mqtt://HOST/TOPIC, https://..., as of the sink, or another.")
    ],
    group: Annotated[str, typer.Option(help="The consumer group of the sink.")],
    as_json: JsonFlag = False,
) -> None:
    """Send the rows again that a sink has set aside, and remove the files of those that the target takes.

    Rows go one at a time in the order of their positions, with the same `key` as before. One that is refused again
    stays, and the status is then 1. A target that does not answer ends the command with an error: call it again.
    """
    _check_group(group)

    from walle.sinks import AsideFolder
    from walle.sinks.address import make_sink

    made = make_sink(target, group, {}, os.environ)
    found = event_loop.run(_resend(made, AsideFolder(folder, group)))
    text = f"{made.target}: {found.sent:,} rows sent again"
    if found.refused:
        text += f", {found.refused:,} refused again"
    emit({"target": made.target, "sent": found.sent, "refused": found.refused}, as_json=as_json, text=escape(text))
    if found.refused:
        raise typer.Exit(1)


async def _resend(made: "Sink", aside: "AsideFolder") -> "ResentRows":
    from walle.sinks import resend

    try:
        await made.start()
        return await resend(made, aside)
    finally:
        await made.close()


def _check_group(group: str) -> None:
    if not _GROUP.fullmatch(group):
        raise typer.BadParameter("has letters, digits and ._- , 64 at most", param_hint="--group")
