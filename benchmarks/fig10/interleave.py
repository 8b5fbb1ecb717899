"""Interleaved timing of engines: each in its own process, in short turns of random order.

Other load on the machine affects all engines alike, and CPU time excludes what other processes took.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

_WORKER = Path(__file__).with_name("worker.py")
_PAUSE_S = 0.01  # lets spinning thread pools block
_SHOWN = 160  # characters of an error


class Contestant(NamedTuple):
    """An engine to time. `label` names its row; `root` is the checkout whose walle it imports, None for this one."""

    label: str
    engine: str
    root: Path | None = None


class _Worker:
    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: IO[str]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self.report = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        return {"failed": failure(self._log, self._process.returncode)}

    def turn(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer has the reason
        return self._answer()

    def close(self) -> None:
        self._process.communicate()


def failure(log: IO[str], status: int) -> str:
    """Return the last line of a process's log, or its exit status."""
    log.seek(0)
    lines = log.read().strip().splitlines()
    if status < 0:
        return f"killed by signal {-status}"
    return (lines[-1] if lines else f"ended with status {status}")[-_SHOWN:]


def environment(root: Path | None) -> dict[str, str]:
    """Return this process's environment, with a checkout first on PYTHONPATH."""
    here = Path(__file__).resolve().parents[2]
    old = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root or here), old]))}


def measure(
    contestants: Sequence[Contestant], model: Path, reference: Path, threads: int, rounds: int, seconds: float
) -> Iterator[tuple[int, dict[str, dict[str, Any]]]]:
    """Yield, after each round, its number and the results so far by label: figures, or `failed` with the reason."""
    results: dict[str, dict[str, Any]] = {}
    workers: dict[str, _Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        logs: dict[str, IO[str]] = {}
        try:
            for i, one in enumerate(contestants):
                logs[one.label] = open(Path(folder, str(i)), "w+")  # noqa: SIM115  # closed below
                mine = own_model(model, one)
                command = [sys.executable, str(_WORKER), one.engine, str(mine), str(threads), str(reference)]
                env, log = environment(one.root), logs[one.label]
                subprocess.run([*command, "--convert"], env=env, stdout=log, stderr=log, check=False)
                worker = _Worker(command, env, log)
                results[one.label] = worker.report
                if "failed" in worker.report:
                    worker.close()
                else:
                    workers[one.label] = worker
                    results[one.label] |= {"wall": [], "cpu": []}
            for finished in range(1, rounds + 1):
                for label in random.sample(list(workers), len(workers)):
                    answer = workers[label].turn(seconds)
                    if "failed" in answer:
                        results[label] = answer
                        workers.pop(label).close()
                        continue
                    results[label]["wall"] += answer["wall_ms"]
                    results[label]["cpu"] += answer["cpu_ms"]
                    results[label]["peak_mib"] = answer["peak_mib"]
                    time.sleep(_PAUSE_S)
                yield finished, {label: figures(result) for label, result in results.items()}
        finally:
            for worker in workers.values():
                worker.close()
            for log in logs.values():
                log.close()


def own_model(model: Path, one: Contestant) -> Path:
    """Return the path of a contestant's model; another revision gets a folder of its own for the .walle it writes."""
    if one.root is None:
        return model
    folder = one.root / "networks"
    folder.mkdir(exist_ok=True)
    for name in (model.name, "manifest.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to((model.parent / name).resolve())
    return folder / model.name


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of an engine's times for the table; a failure is returned unchanged."""
    if "failed" in result:
        return result
    rest = {key: value for key, value in result.items() if key not in {"wall", "cpu", "peak_mib", "import_mib"}}
    return rest | {
        "wall_ms": statistics.median(result["wall"]),
        "min_ms": min(result["wall"]),
        "cpu_ms": statistics.median(result["cpu"]),
        "runs": len(result["wall"]),
        "memory_mib": result["peak_mib"] - result["import_mib"],
    }
