"""Stores of uploads and processes of `walle features sink` for the tests of sinks."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.sim.program import run_main
from walle.base import plain
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received

LIMIT_S = 60.0


def uploads_of(first: int, last: int, *, devices: int = 20, topic: str = "shop/visits") -> list[Received]:
    """Return uploads `first` to `last` of each device, as devices take turns."""
    return [
        Received(
            f"phone-{device}", "e1", seq, topic, plain.encode({"page": f"item/{seq}", "n": seq}), seq, 1000 * seq,
            version="v2",
        )
        for seq in range(first, last + 1)
        for device in range(devices)
    ]  # fmt: skip


def store_uploads(path: Path | str, uploads: list[Received]) -> None:
    async def accept() -> None:
        async with open_uploads(path, create=True) as store:
            for start in range(0, len(uploads), 5_000):
                await store.accept(uploads[start : start + 5_000])

    asyncio.run(accept())


def keys_of(uploads: list[Received]) -> set[str]:
    return {f"{one.device_id}/{one.epoch}/{one.seq}" for one in uploads}


def repeated(keys: list[str]) -> list[str]:
    return [key for key, count in Counter(keys).items() if count > 1]


def words_of(target: object, uploads: Path | str, *options: object) -> list[str]:
    """Return the arguments of `walle` for a sink."""
    return [*map(str, ("features", "sink", target, "--uploads", uploads, "--group", "g", "--lease-s", "1", *options))]


def command(target: object, uploads: Path | str, *options: object) -> list[str]:
    return [sys.executable, "-c", "from walle.cli import main; main()", *words_of(target, uploads, *options)]


@contextlib.contextmanager
def running(
    target: object, uploads: Path | str, *options: object, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A sink's process within the block, which is killed at its end."""
    process = subprocess.Popen(
        command(target, uploads, *options), env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_to_end(
    target: object, uploads: Path | str, *options: object, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a sink in this process until all was sent, or until an error."""
    return run_main(*words_of(target, uploads, "--once", *options), **(env or {}))


def run_once(target: object, uploads: Path | str, *options: object, env: Mapping[str, str] | None = None) -> str:
    """Run a sink until all was sent; return what it prints."""
    done = run_to_end(target, uploads, *options, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition does not hold in time"
        time.sleep(0.01)


def kill_at_random(
    target: object,
    uploads: Path | str,
    *options: object,
    rows: Callable[[], int],
    times: int,
    seed: int,
    env: Mapping[str, str] | None = None,
) -> int:
    """Kill a sink (SIGKILL) `times` times, each when the target has a random number of `rows` more; then run it once.

    Return how often it was killed before it had sent all.
    """
    rng, in_the_middle = random.Random(seed), 0
    for _ in range(times):
        with running(target, uploads, "--once", *options, env=env) as process:
            before, more = rows(), rng.randint(1, 400)
            deadline_s = time.monotonic() + LIMIT_S
            while rows() < before + more and process.poll() is None:
                assert time.monotonic() < deadline_s, "the sink neither sends nor ends"
                time.sleep(0.002)
            time.sleep(rng.random() * 0.02)
            process.send_signal(signal.SIGKILL)
            in_the_middle += process.wait() == -signal.SIGKILL
    run_once(target, uploads, *options, env=env)
    return in_the_middle
