"""Program of the conversion process: it starts a child for each conversion, with limits, and reports its end.

The program that converts starts it with the number of a socket and the format of the models (`converter`). Each request
is a line of JSON with two files; each answer is a line of JSON. This process has no threads, and handles nothing of a
model: what a file does to an importer ends its child alone. Where the child ends in the package `onnx`, further
children find the node.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from walle.engine_ext.conversion.job import FUNCTIONS, READING, SHAPES, ConvertLimits, Job
from walle.errors import EngineError

_MAX_ANSWER_BYTES = 1 << 16
_MAX_TEXT = 4_000  # characters of an error's message
_OUT_FACTOR, _OUT_BYTES = 16, 64 << 20  # a written file, for each byte of the model; and beside that
_SEARCH_S = 10.0  # time of the search for the node that ends a child
_EXIT = 64  # exit status of a child that could not report


class _ClosedError(Exception):
    """The program that asked has closed the socket."""


class _Server:
    """Answers the requests of one socket until it is closed or none has come for `idle_s`."""

    def __init__(self, requests: socket.socket, idle_s: float, importer: ModuleType) -> None:
        self._requests = requests
        self._idle_s = idle_s
        self._importer = importer

    def serve(self) -> None:
        while select.select([self._requests], [], [], self._idle_s)[0]:
            line, files, _, _ = socket.recv_fds(self._requests, _MAX_ANSWER_BYTES, 2)
            if not line:
                return
            while not line.endswith(b"\n"):
                if not (part := self._requests.recv(_MAX_ANSWER_BYTES)):
                    return
                line += part
            asked = json.loads(line)
            one = Job(folder=asked["folder"], limits=ConvertLimits(**asked["limits"]))
            try:
                answer = self._answer(one, files[0], files[1])
            except _ClosedError:
                return
            finally:
                for file in files:
                    os.close(file)
            self._requests.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, one: Job, source: int, out: int) -> dict[str, Any]:
        answer = self._run(one, source, out)
        is_found = bool(answer.get("signal")) and answer["stage"] in (FUNCTIONS, SHAPES)
        return answer | {"node": self._search(one, source, out, answer) if is_found else ""}

    def _search(self, one: Job, source: int, out: int, answer: Mapping[str, Any]) -> str:
        """Return the first node of the graph with which a child ends, as the child of `answer` did with all nodes."""
        low, high, found = 0, int(answer["nodes"]), str(answer["node"])  # the node that is found is the last of `high`
        until_s = time.monotonic() + _SEARCH_S
        while low < high and time.monotonic() < until_s:
            middle = (low + high) // 2
            short = replace(one.limits, cpu_s=max(1, one.limits.cpu_s // 8), wall_s=_SEARCH_S / 2)
            answer = self._run(replace(one, nodes=middle, limits=short), source, out)
            if not answer.get("signal"):
                low = middle + 1
                continue
            high, found = middle, answer["node"]
        return found

    def _run(self, one: Job, source: int, out: int) -> dict[str, Any]:
        """Return what one child says of itself, and how it ended where it did not end by itself."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            self._requests.close()
            _work(self._importer, one, source, out, writer)
        os.close(writer)
        try:
            said, is_late = self._listen(reader, one.limits.wall_s)
        finally:
            os.close(reader)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # a child that has said all ends by itself, or now
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer: dict[str, Any] = {"stage": READING, "node": "", "nodes": 0}
        for line in said.splitlines():
            with contextlib.suppress(ValueError):  # the last line of a child that was ended as it wrote
                answer |= json.loads(line)
        if "end" in answer:
            return answer
        return answer | {"end": "late" if is_late else "died", "signal": -status if status < 0 else status}

    def _listen(self, reader: int, wall_s: float) -> tuple[bytes, bool]:
        """Return what a child says until it closes its pipe, and whether it took more than `wall_s`."""
        until_s, said = time.monotonic() + wall_s, b""
        while (left_s := until_s - time.monotonic()) > 0:
            ready, _, _ = select.select([reader, self._requests.fileno()], [], [], left_s)
            if self._requests.fileno() in ready:
                raise _ClosedError
            if reader in ready:
                part = os.read(reader, _MAX_ANSWER_BYTES)
                if not part or len(said) > _MAX_ANSWER_BYTES:
                    return said, False
                said += part
        return said, True


def _work(importer: ModuleType, one: Job, source: int, out: int, writer: int) -> None:
    """Run a conversion in this child, and end it."""
    try:
        _say(writer, _outcome(importer, one, source, out, writer))
    finally:
        os._exit(_EXIT)


def _outcome(importer: ModuleType, one: Job, source: int, out: int, writer: int) -> dict[str, Any]:
    try:
        size, held_bytes = os.fstat(source).st_size, _data_bytes()
        _limit_time(one.limits)
        _limit_sizes(one.limits, size, held_bytes)
        importer.run(
            one,
            source,
            out,
            report=lambda stage, node, nodes: _say(writer, {"stage": stage, "node": node, "nodes": nodes}),
            on_external=lambda external: _limit_sizes(one.limits, size + external, held_bytes),
        )
    except EngineError as error:
        return {"end": "refused", "kind": type(error).__name__, "message": str(error)[:_MAX_TEXT]}
    except MemoryError:
        return {"end": "memory"}
    except RecursionError:
        return {"end": "refused", "kind": "ModelError", "message": "it is nested too deeply"}
    except Exception as error:  # noqa: BLE001 -- of protobuf, onnx and NumPy: whatever a broken model makes them raise
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {"end": "raised", "message": text[:_MAX_TEXT]}
    return {"end": "done"}


def _say(writer: int, what: Mapping[str, Any]) -> None:
    os.write(writer, json.dumps(what).encode() + b"\n")


def _limit_time(most: ConvertLimits) -> None:
    _set_limit(resource.RLIMIT_CPU, most.cpu_s)
    _set_limit(resource.RLIMIT_CORE, 0)


def _limit_sizes(most: ConvertLimits, size: int, held_bytes: int) -> None:
    """Limit this process's memory beside the `held_bytes` that it began with, and its files; `size` is the model's."""
    _set_limit(resource.RLIMIT_DATA, held_bytes + most.memory_bytes + most.memory_factor * size)
    _set_limit(resource.RLIMIT_FSIZE, _OUT_BYTES + _OUT_FACTOR * size)


def _set_limit(what: int, most: int) -> None:
    """Set a soft limit, so that it can be raised for a model with external data."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_bytes() -> int:
    """Return the memory that counts for RLIMIT_DATA and that this process has."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")), 0)


def main(descriptor: int, idle_s: float, kind: str) -> None:
    """Answer the requests of a socket until it is closed, or none has come for `idle_s` seconds.

    `kind` is the format of the models, `onnx` or `tflite`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for one in (signal.SIGCHLD, signal.SIGXCPU):  # the program that started this process may ignore them
        signal.signal(one, signal.SIG_DFL)
    importer = importlib.import_module(f"walle.engine_ext.{kind}_import.job")
    importer.warm_up()
    gc.collect()
    gc.freeze()  # children share these pages
    with socket.socket(fileno=descriptor) as requests:
        _Server(requests, idle_s, importer).serve()
