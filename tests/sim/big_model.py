"""A model of a gigabyte on its whole way, with the memory that cloud and device take for it: `make test-big`.

A model of weights (a table of which a task looks up one row) is pushed by git-lfs, or by `walle task add-file` where
git-lfs is not installed, released to a device, trained a little (every weight is nudged), and released again. Cloud and
device are processes of their own, started by the command line. Fails where the device does not run the new version, a
clone does not have the model, or a process took more anonymous memory than `--max-mb`.

    python -m tests.sim.big_model [--megabytes 1200] [--max-mb 400] [--models FOLDER] [--json]
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.sim import program
from tests.sim.git_host import address, git
from tests.sim.program import Program, Programs, walle
from walle.engine_ext.model import GraphBuilder

_COLUMNS = 1000
_GIT_S = 600.0
_CONFIG = """\
[task]
name = "ipv"
[trigger]
sequence = ["page_exit"]
without_visit = true
[limits]
deadline_ms = 20000
memory_mb = 64
[files]
"resources/table.walle" = "shared"
[simulation]
events = "simulation/events.jsonl"
"""
_MAIN = """\
import walle.np as np

_table = None


def execute(ctx, trigger):
    global _table
    if _table is None:
        _table = ctx.session("table")
    row = _table.run({"rows": np.array([7], dtype="int64")})["found"]
    return {"sum": float(np.sum(row))}
"""
_EVENT = {"event_id": "page_exit", "page_id": "item/1", "ts_ms": 1_700_000_000_000, "contents": {}}


def _write_models(folder: Path, megabytes: int) -> None:
    """Write `v1.walle`, and `v2.walle` with the same weights nudged; in a process of its own, for its memory."""
    rng = np.random.default_rng(1)
    shape = (megabytes * 1_000_000 // 4 // _COLUMNS, _COLUMNS)
    weights = rng.standard_normal(shape, dtype=np.float32)
    for version in ("v1", "v2"):
        graph = GraphBuilder("table")
        table = graph.raw("weights", "float32", shape, weights.tobytes())
        graph.output("found", graph.op("Gather", [table, graph.input("rows", (1,), "int64")]))
        graph.save(folder / f"{version}.walle")
        del graph, table
        for row in weights:  # changed in place
            row *= 1 + np.float32(1e-4) * rng.standard_normal(_COLUMNS, dtype=np.float32)


class Memory:
    """Peaks of a process and its children, looked at every 20 ms: anonymous memory, without mapped files."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_kib = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def take(self) -> int:
        """Return the peak since the last call, in MB."""
        peak_kib, self._peak_kib = self._peak_kib, 0
        return peak_kib * 1024 // 1_000_000

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.wait(0.02):
            self._peak_kib = max(self._peak_kib, sum(_anonymous_kib(pid) for pid in _family(self._pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                yield from _family(int(child))


def _anonymous_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1])
    return 0


class Journey:
    """The way of the model. `rows` are what each step took: seconds, and MB of memory of cloud and device."""

    def __init__(self, folder: Path, models: Path, start: Programs) -> None:
        self.rows: list[dict[str, Any]] = []
        self._folder = folder
        self._models = models
        self._start = start
        options = ["--http-port=0", "--tunnel-port=0", "--plain-http", "--scenario=shop", "--json"]
        self._cloud = start("cloud", "up", str(folder / "cloud"), *options)
        up = self._cloud.wait_for(lambda line: "url" in line)
        self._join = up["join_file"]
        token = Path(up["admin_token_file"]).read_text().strip()
        self._remote = address(up["url"], token, "shop")
        self._reached = {"WALLE_URL": up["url"], "WALLE_TOKEN": token}
        self._work = folder / "work"
        self._memory = {"cloud": Memory(self._cloud.process.pid)}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        for memory in self._memory.values():
            memory.take()
        begun_s = time.monotonic()
        yield
        row: dict[str, Any] = {"step": name, "seconds": round(time.monotonic() - begun_s, 1)}
        self.rows.append(row | {f"{who}_mb": memory.take() for who, memory in self._memory.items()})
        sys.stderr.write(f"{self.rows[-1]}\n")

    def prepare(self) -> None:
        self._work.mkdir()
        git(self._work, "init", "-b", "ipv")
        files = {"task.toml": _CONFIG, "main.py": _MAIN, "simulation/events.jsonl": json.dumps(_EVENT) + "\n"}
        for name, text in files.items():
            (self._work / name).parent.mkdir(exist_ok=True)
            (self._work / name).write_text(text)

    def push(self, version: str, *, by_git_lfs: bool) -> None:
        model = self._models / f"{version}.walle"
        (self._work / "resources").mkdir(exist_ok=True)
        if by_git_lfs:
            git(self._work, "lfs", "install", "--local")
            git(self._work, "lfs", "track", "*.walle")
            shutil.copyfile(model, self._work / "resources/table.walle")
        else:
            options = [f"--folder={self._work}", "--as=resources/table.walle", "--json"]
            walle("task", "add-file", "shop", str(model), *options, **self._reached)
        git(self._work, "add", "--all", limit_s=_GIT_S)
        git(self._work, "commit", "-q", "-m", version)
        git(self._work, "tag", f"ipv/{version}")
        git(self._work, "push", self._remote, "ipv", f"ipv/{version}", limit_s=_GIT_S)

    def release(self, version: str) -> None:
        # Each is for other devices by its policy, so that the second need not wait until the first is at all of them.
        stages = ["--beta-device=d1", "--step=1", f"--app-version=>={version[1:]}", "--json"]
        made = walle("release", "start", "shop", "ipv", version, *stages, **self._reached)
        while (shown := walle("release", "status", made["id"], "--json", **self._reached))["state"] == "simulating":
            time.sleep(0.2)
        assert shown["state"] in ("beta", "gray", "full"), shown

    def device(self) -> Program:
        paces = ["--checkin-s=0.3", "--report-s=0.3", "--status-s=0.1", "--max-version-mb=5000", "--json"]
        place = [str(self._folder / "device"), f"--join={self._join}", "--id=d1", "--app-version=10.1"]
        device = self._start("device", "run", *place, *paces)
        self._memory["device"] = Memory(device.process.pid)
        return device

    def clone(self, version: str) -> None:
        options = ("-c", "filter.lfs.smudge=git-lfs smudge -- %f", "-c", "filter.lfs.required=true")
        git(self._folder, *options, "clone", "-q", self._remote, "clone", limit_s=_GIT_S)
        with (self._folder / "clone/resources/table.walle").open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        with (self._models / f"{version}.walle").open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == found

    def close(self) -> None:
        for memory in self._memory.values():
            memory.close()


def run(folder: Path, models: Path, megabytes: int) -> list[dict[str, Any]]:
    """Return the steps of a journey in `folder`, which has room for ten models; `models` are made if not there."""
    has_git_lfs = shutil.which("git-lfs") is not None
    if not (models / "v2.walle").exists():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(_write_models, (models, megabytes))
    with Programs() as start, contextlib.ExitStack() as undo:
        journey = Journey(folder, models, start)
        undo.callback(journey.close)
        journey.prepare()
        with journey.step(f"push of v1 ({'git-lfs' if has_git_lfs else 'walle task add-file'})"):
            journey.push("v1", by_git_lfs=has_git_lfs)
        with journey.step("release of v1: simulation, compression"):
            journey.release("v1")
        device = journey.device()
        with journey.step("pull of v1 by a device"):
            device.wait_for(lambda line: line["tasks"].get("shop/ipv") == "v1")
        with journey.step("push of v2, nudged (walle task add-file)"):
            journey.push("v2", by_git_lfs=False)
        with journey.step("release of v2: simulation, differences"):
            journey.release("v2")
        with journey.step("pull of v2 by the device"):
            device.wait_for(lambda line: line["tasks"].get("shop/ipv") == "v2")
        forms = {path.suffix[1:]: path.stat().st_size for path in (folder / "cloud/coded-files").rglob("*.*")}
        for coding, size_bytes in forms.items():
            journey.rows.append({"step": f"bytes as {coding}: {size_bytes / 1e6:,.0f} MB"})
        if has_git_lfs:
            with journey.step("clone with git-lfs"):
                journey.clone("v2")
        return journey.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1200)
    parser.add_argument("--max-mb", type=int, default=400, help="anonymous memory of cloud or device, children too")
    parser.add_argument("--models", type=Path, help="folder in which the models are kept for another run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # git-lfs may be there
    program.LIMIT_S = 600.0
    with tempfile.TemporaryDirectory(prefix="walle-big-") as name:
        rows = run(Path(name), options.models or Path(name), options.megabytes)
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        table = Table("step", "seconds", "cloud MB", "device MB")
        for row in rows:
            table.add_row(row["step"], *(str(row.get(key, "")) for key in ("seconds", "cloud_mb", "device_mb")))
        Console(width=110).print(table)
    most_mb = max(row.get(key, 0) for row in rows for key in ("cloud_mb", "device_mb"))
    if most_mb > options.max_mb:
        raise SystemExit(f"a process took {most_mb} MB; at most {options.max_mb} are allowed")


if __name__ == "__main__":
    main()
