"""`walle features`: look at the features that devices upload, and export them to files."""

import asyncio
import bisect
import contextlib
import dataclasses
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from walle.base.plain_json import dumps
from walle.cli.cloud_call import call_cloud, open_client
from walle.cli.credentials import TokenOption
from walle.cli.feature_time import parse_time
from walle.cli.features.options import DeviceOption, TaskOption, TopicOption, VersionOption
from walle.cli.features.sink import resend, sink
from walle.cli.output import JsonFlag, JsonLinesFlag, emit, emit_line, progress_console
from walle.errors import ConfigError, WalleError
from walle.protocol import UNKNOWN_VERSION

if TYPE_CHECKING:
    from walle.client.admin_client import AdminClient, ClientPage
    from walle.feature_files import Export
    from walle.pipeline.ingest.store.feature_reader import FeaturePage, FeatureReader
    from walle.protocol import Manifest

_PAGE = 1_000
_BLOCK = 5_000  # features of a page in columns
_LATEST = 10  # features that `tail` shows first
_SHOWN_CHARS = 400  # characters of a payload shown as text
_MAX_WAIT_S = 30.0  # longest pause between two attempts to reach a cloud that does not answer


class _Source(Protocol):
    """A cloud, or its store of uploads, with a filter."""

    async def page(self, after: int, limit: int) -> "ClientPage": ...
    async def latest(self, count: int) -> "ClientPage": ...


class _Block(NamedTuple):
    """Features in columns; the rest as in `ClientPage`."""

    fields: Mapping[str, Sequence[Any]]
    payloads: Sequence[Any]
    after: int
    head: int
    more: bool


class _Cloud:
    """Features of a cloud, with a filter."""

    def __init__(self, client: "AdminClient", wanted: Mapping[str, Any]) -> None:
        self._client = client
        self._wanted = wanted

    async def page(self, after: int, limit: int) -> "ClientPage":
        return await self._client.features({**self._wanted, "after": after, "limit": limit})

    async def latest(self, count: int) -> "ClientPage":
        return await self._client.features({**self._wanted, "latest": count})


class _Store:
    """Features of a store of uploads, shown as the cloud shows them."""

    def __init__(self, reader: "FeatureReader") -> None:
        self._reader = reader

    async def page(self, after: int, limit: int) -> "ClientPage":
        return self._shown(await self._reader.page(after, limit))

    async def latest(self, count: int) -> "ClientPage":
        return self._shown(await self._reader.latest(count))

    async def block(self, after: int, limit: int) -> _Block:
        from walle.pipeline.ingest.store.feature_columns import feature_columns

        page = await self._reader.columns(after, limit)
        return _Block(*feature_columns(page.columns), page.after, page.head, page.more)

    @staticmethod
    def _shown(page: "FeaturePage") -> "ClientPage":
        from walle.client.admin_client import ClientPage
        from walle.pipeline.ingest.store.feature_reader import feature_row

        return ClientPage([feature_row(*one) for one in page.uploads], page.after, page.head, page.more)


UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="WALLE_URL",
        is_eager=True,
        help="The cloud, as `walle cloud up` prints it; or give --uploads.",
    ),
]
UploadsOption = Annotated[
    str,
    typer.Option(
        help="Read the store itself: uploads.db of a cloud's folder, or postgresql://USER@HOST/DATABASE"
        " (its password is better in PGPASSWORD than here).",
    ),
]
GroupOption = Annotated[str, typer.Option(help="Only of the scenarios of this group; with --url.")]
SinceOption = Annotated[
    str, typer.Option(help="Only those received since: 15m, 2h, 3d ago, or 2026-11-22T10:00 (local time).")
]
UntilOption = Annotated[str, typer.Option(help="Only those received before this time, written as for --since.")]


def tail(
    url: UrlOption = "",
    token: TokenOption = "",
    uploads: UploadsOption = "",
    task: TaskOption = "",
    topic: TopicOption = "",
    group: GroupOption = "",
    device: DeviceOption = "",
    version: VersionOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", help="How many of the latest; without it 10, or all with --since.", min=1, max=1000
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new ones until Ctrl-C.")] = False,
    poll_s: Annotated[float, typer.Option(help="Seconds between two queries with --follow.", min=0.1, max=3600)] = 1.0,
    as_json: JsonLinesFlag = False,
) -> None:
    """Show the latest features: time of receipt, device, topic, version of the task, page and payload.

    With --json each is a line: position, time, device, task, version ("" if unknown), topic, page, sent_ms (by the
    device's clock), received_ms (by the cloud's), payload. What JSON lacks is {"$bytes": base64} and {"$float": "nan"}.
    With --follow a cloud that does not answer is asked again, and nothing is shown twice.
    """
    _check_group(group, uploads)
    wanted = _wanted(task, topic, group, device, version, since, until)

    async def run(source: _Source) -> None:
        if since and lines is None:
            after = await _show_pages(source, 0, as_json=as_json)
        else:
            page = await source.latest(lines or _LATEST)
            _show(page.rows, as_json=as_json)
            after = page.after
        while follow:
            await asyncio.sleep(poll_s)
            after = await _show_pages(source, after, as_json=as_json, patient=True)

    _run(url, token, uploads, wanted, run)


async def _show_pages(source: _Source, after: int, *, as_json: bool, patient: bool = False) -> int:
    """Show all features after a position; return the last position. If `patient`, wait for a cloud that is away."""
    wait_s = 1.0
    while True:
        try:
            page = await source.page(after, _PAGE)
        except WalleError as error:
            if not patient or not _may_pass(error):
                raise
            progress_console.print(f"{error}; trying again in {wait_s:.0f} s", markup=False, soft_wrap=True)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
            continue
        wait_s = 1.0
        _show(page.rows, as_json=as_json)
        if page.head < page.after:
            what = f"the store went back from position {page.after} to {page.head}, as after a restore from a backup"
            progress_console.print(f"{what}; continuing there", markup=False, soft_wrap=True)
            return page.head
        after = page.after
        if not page.more:
            return after


def _may_pass(error: WalleError) -> bool:
    """Return whether an error is of a cloud or store that may answer later."""
    from walle.client.cloud_client import CloudRefusedError, CloudUnreachableError, CutAnswerError
    from walle.pipeline.ingest.store.upload_store import IngestError

    if isinstance(error, CloudRefusedError):
        return error.status >= 500
    return isinstance(error, CloudUnreachableError | CutAnswerError) or (
        isinstance(error, IngestError) and error.may_pass
    )


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    for row in rows:
        if as_json:
            emit_line(row)
            continue
        payload = row.get("error") or dumps(row["payload"])
        if len(payload) > _SHOWN_CHARS:
            payload = f"{payload[:_SHOWN_CHARS]} ... ({len(payload)} characters; --json shows all)"
        page = f" {row['page']}" if row["page"] else ""
        version = row.get("version") or UNKNOWN_VERSION  # a cloud of before has no versions
        text = f"{row['time']} {row['device']} {row['topic']} {version}{page} {payload}".replace("\n", " ")
        emit(row, as_json=False, text=escape(text))


def export(
    file: Annotated[Path, typer.Argument(help="A new file; .jsonl, .csv or .parquet, which says its format.")],
    url: UrlOption = "",
    token: TokenOption = "",
    uploads: UploadsOption = "",
    task: TaskOption = "",
    topic: TopicOption = "",
    group: GroupOption = "",
    device: DeviceOption = "",
    version: VersionOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Write features to a file of JSON lines, CSV or Parquet (with walle[parquet]).

    The same command continues where it was cut: until the file is whole, its part is in FILE.part. Times of --since
    and --until belong to what is exported, so give dates where an export may be cut, not how long ago.

    JSON lines are as those of `walle features tail --json`. In CSV and Parquet each field of a payload is a column:
    payload.item.price of {"item": {"price": 5}}, with a backslash before a dot in a key. Lists are JSON text. A column
    whose values have several kinds is text. Beyond 1,000 fields, the others are JSON text in the column `more`.

    In CSV a text that a spreadsheet would compute has an apostrophe in front: it begins with = + - @, a tab or a line
    break. So have = + - @ after ; or a line break within a text. `walle.feature_files.text_of_cell` gives the text.
    """
    from walle.feature_files import Export

    _check_group(group, uploads)
    wanted = _wanted(task, topic, group, device, version, since, until)
    what = {"source": name_of_store(uploads) or url, **wanted}

    async def run(source: _Source) -> int:
        with Export(file, what) as exporting, _uncollected():
            await _export(source, exporting, as_json=as_json)
            return exporting.features

    features = _run(url, token, uploads, wanted, run)
    report = {"file": str(file), "features": features, "size_bytes": file.stat().st_size}
    text = f"{escape(str(file))}: {features} features, {report['size_bytes']:,} bytes"
    emit(report, as_json=as_json, text=text)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Run the block without garbage collection: an export makes millions of objects, and no cycles of them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _export(source: _Source, exporting: "Export", *, as_json: bool) -> None:
    """Read pages up to the position that was the newest at the start, and write the file."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    hidden = as_json or not progress_console.is_terminal
    with Progress(*columns, console=progress_console, disable=hidden) as progress:
        bar = progress.add_task(escape(exporting.path.name), total=None, note="")
        first, last = exporting.position, -1
        while True:
            # Nothing here keeps a page while the next one is read: the objects of two are more than a processor caches.
            head, is_last = await _add_page(source, exporting, last)
            last = head if last < 0 else last
            progress.update(
                bar, total=max(1, last - first), completed=exporting.position - first, note=f"{exporting.features:,}"
            )
            if is_last:
                break
        progress.update(bar, note=f"{exporting.features:,}, writing the file")
        await asyncio.to_thread(exporting.finish)


async def _add_page(source: _Source, exporting: "Export", last: int) -> tuple[int, bool]:
    """Read the next page up to position `last`, up to the newest if -1; return the newest, and whether it was the end.

    Raises:
        ConfigError: the store has gone back to before what was exported.
    """
    page: _Block | ClientPage
    if exporting.form == "parquet" and isinstance(source, _Store):
        page = await source.block(exporting.position, _BLOCK)
    else:
        page = await source.page(exporting.position, _PAGE)
    last = page.head if last < 0 else last
    if page.head < exporting.position:
        what = f"the store went back from position {exporting.position} to {page.head}, as a restored backup"
        raise ConfigError(f"{exporting.path}: {what}; remove {exporting.path.name}.part and export again")
    if isinstance(page, _Block):
        count = bisect.bisect_right(page.fields.get("position", ()), last)
        fields = {name: values[:count] for name, values in page.fields.items()}
        exporting.add_columns(fields, page.payloads[:count], page.after)
    else:
        exporting.add([row for row in page.rows if row["position"] <= last], page.after)
    return page.head, not page.more or page.after >= last


def made_by(
    task: Annotated[str, typer.Argument(help="SCENARIO/TASK, as in a feature.")],
    version: Annotated[str, typer.Argument(help="Its version, as in a feature, such as v3.")],
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Show what a version that made features is: its commit and its files, models among them, with their SHA-256.

    They are those of its manifest, which the cloud builds from the version's tag.
    """
    scenario, slash, name = task.partition("/")
    if not (scenario and slash and name) or "/" in name:
        what = f"{task[:200]!r} is not SCENARIO/TASK, such as shop/visits"
        raise typer.BadParameter(what, param_hint="TASK")
    if not url:
        raise typer.BadParameter("name the cloud with --url or WALLE_URL", param_hint="--url")
    manifest = _manifest(url, token, scenario, name, version)
    files = [{"path": one.path, "sha256": one.sha256, "size_bytes": one.size_bytes, "route": one.route}
             for one in (*manifest.device_files, *manifest.cloud_files)]  # fmt: skip
    modules = [dataclasses.asdict(one) for one in manifest.modules]
    report = {"task": task, "version": manifest.version, "commit": manifest.commit, "modules": modules, "files": files}
    lines = [f"{task} {manifest.version}, commit {manifest.commit}"]
    lines += [f"shared modules {one.name} {one.version}, commit {one.commit}" for one in manifest.modules]
    lines += [f"{one['sha256']}  {one['size_bytes']:>12,}  {one['path']}" for one in files]
    emit(report, as_json=as_json, text=escape("\n".join(lines)))


def _manifest(url: str, token: str, scenario: str, task: str, version: str) -> "Manifest":
    import base64

    from walle.client.release_client import ReleaseClient
    from walle.protocol import Manifest

    found = call_cloud(ReleaseClient, url, token, lambda client: client.manifest(scenario, task, version))
    return Manifest.from_bytes(base64.b64decode(found["payload"]))


# --- the source -------------------------------------------------------------------------------------------------------


def _check_group(group: str, uploads: str) -> None:
    if group and uploads:
        what = "a store of uploads does not have the groups; name the cloud with --url"
        raise typer.BadParameter(what, param_hint="--group")


def _wanted(
    task: str, topic: str, group: str, device: str, version: str, since: str, until: str
) -> dict[str, str | int]:
    """Return the filter as the fields of the cloud's query, without those that are empty."""
    now_s = time.time()
    texts = {"task": task, "topic": topic, "group": group, "device": device, "version": version}
    times = {
        "since_ms": parse_time(since, now_s) if since else None,
        "until_ms": parse_time(until, now_s) if until else None,
    }
    found: dict[str, str | int] = {name: text for name, text in texts.items() if text}
    return found | {name: ms for name, ms in times.items() if ms is not None}


def _run[T](
    url: str,
    token: str,
    uploads: str,
    wanted: Mapping[str, Any],
    work: Callable[[_Source], Coroutine[Any, Any, T]],
) -> T:
    """Return what `work` returns for the source that the options name."""
    if not uploads and not url:
        raise typer.BadParameter(
            "name the cloud with --url or WALLE_URL, or its store of uploads with --uploads", param_hint="--url"
        )

    async def within() -> T:
        async with _store(uploads, wanted) if uploads else _cloud(url, token, wanted) as source:
            return await work(source)

    return asyncio.run(within())


@contextlib.asynccontextmanager
async def _cloud(url: str, token: str, wanted: Mapping[str, Any]) -> AsyncIterator[_Source]:
    from walle.client.admin_client import AdminClient

    async with open_client(AdminClient, url, token) as client:
        yield _Cloud(client, wanted)


@contextlib.asynccontextmanager
async def _store(uploads: str, wanted: Mapping[str, Any]) -> AsyncIterator[_Source]:
    from walle.pipeline.ingest.store.feature_reader import FeatureFilter, FeatureReader
    from walle.pipeline.ingest.stores import open_uploads

    async with open_uploads(uploads) as store:
        yield _Store(FeatureReader(store, FeatureFilter(**wanted)))


def name_of_store(uploads: str) -> str:
    """Return what an export's spool says of a store: its path, or its URL without user, password and options."""
    scheme, slashes, rest = uploads.partition("://")
    if not slashes:
        return str(Path(uploads).resolve()) if uploads else ""
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at the features that devices upload, and export them.", no_args_is_help=True)
    group.command(epilog="Example: walle features tail --task shop/visits --follow")(tail)
    group.command("made-by", epilog="Example: walle features made-by shop/visits v3")(made_by)
    group.command(epilog="Example: walle features export visits.csv --task shop/visits --since 2026-11-22")(export)
    group.command(
        epilog="Example: walle features sink s3://lake/features --uploads shop-cloud/uploads.db --group lake"
    )(sink)
    group.command(epilog="Example: walle features resend shop-refused https://hook.example/walle --group hook")(resend)
    app.add_typer(group, name="features")
