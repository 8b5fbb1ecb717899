"""The cloud-only baseline: a Ray actor to which devices stream frames and sound, and which decides every second.

The same task folders run here as on a device, in VMs of the actor's own process: no VM host, no feature store and no
tunnel lie between them. A connection is TLS. A message is a head (`HEAD`: kind, size, time) and a body: a frame as
JPEG, or sound as 16-bit PCM; an answer is a line of JSON for each second. The next message of a stream is read when the
one before is done, so that a server which is behind stops its clients by TCP; streams share the VMs, each of which is
a thread. Arrays, and the JPEG that is decoded once, reach the tasks without a copy. A device does not send a frame that
has not changed, but says so: the answers about the last one are its own, as in the app.
"""

import asyncio
import contextlib
import dataclasses
import enum
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apps.livestream.player import DECIDER
from apps.livestream.seconds import SOUND_TASK, SecondBuilder
from apps.livestream.task_files import NO_EXCLUSIVE_FILES, add_modules
from walle import cv
from walle.access.identity.authority import Authority
from walle.vm import VM

HEAD = struct.Struct("<BIq")  # kind, bytes of the body, pts_ms


class Kind(enum.IntEnum):
    """Kinds of messages: a frame, a frame like the last one, sound, or the stream's end."""

    FRAME = 1
    SAME = 2
    SOUND = 3
    END = 4


FULL_SCALE = 32768.0  # largest value of the sound's samples
MAX_BODY_BYTES = 8 << 20
_RUN, _PHASE = "walle.pipeline.stream.context:run", "walle.pipeline.stream.context:phase"
_DEADLINE_S = 60.0
_CLOSER = "closer"  # the highlight task's second VM: its `execute` as the cloud runs it


@dataclasses.dataclass(slots=True)
class ModelRuns:
    """Runs of the models so far, by which the same work is put into another engine's time."""

    detector: int = 0  # frames, and views of closer looks
    embedder: int = 0
    faces: int = 0  # frames
    voice: int = 0  # windows of 32 ms
    unchanged: int = 0  # frames that were not sent
    closer: int = 0  # seconds that were looked at more closely


class Tasks:
    """The app's tasks, each in a VM of this process. `folders` are the tasks' by name."""

    def __init__(self, folders: Mapping[str, Path], *, views: int) -> None:
        self.runs = ModelRuns()
        self._views = views
        self._vms = {name: VM(add_modules(folder), name=name) for name, folder in folders.items()}
        self.of_frames = [name for name in folders if name not in (SOUND_TASK, DECIDER)]
        self._vms[_CLOSER] = VM(folders[DECIDER], name=_CLOSER)

    async def run(self, name: str, contents: Mapping[str, Any], state: dict[str, Any] | None) -> dict[str, Any]:
        """Return a run's `output` and `state`, for an event with these contents."""
        event = {"event_id": name, "page_id": "", "ts_ms": 1, "contents": contents}
        trigger = {"event": event, "position": 1, "visit": "none"}
        arguments: tuple[Any, ...] = (f"livestream/{name}", trigger, [], {}, {}, state)
        result: dict[str, Any] = await self._vms[name].call(
            _RUN, *arguments, deadline=_DEADLINE_S, callbacks={**NO_EXCLUSIVE_FILES, "escalate": self._look_closer}
        )
        self._count(name, result["output"])
        return result

    async def _look_closer(self, phase: str, payload: Any, _timeout_ms: int | None, _spent_ms: float) -> Any:
        done = await self._vms[_CLOSER].call(_PHASE, f"livestream/{DECIDER}", phase, payload, {}, deadline=_DEADLINE_S)
        self.runs.closer += 1
        self.runs.detector += self._views * len(payload["jpegs"])
        return "", done["output"]

    def _count(self, name: str, output: Mapping[str, Any]) -> None:
        runs = self.runs
        if name == "item":
            runs.detector += 1
            runs.embedder += output["match"] is not None
        elif name == "face":
            runs.faces += 1
        elif name == SOUND_TASK:
            runs.voice += len(output["windows"])

    async def close(self) -> None:
        for vm in self._vms.values():
            vm.close()
        for vm in self._vms.values():
            await vm.wait_closed()


class Stream:
    """One device's stream: the seconds that it is put together to, and what the tasks keep between its events."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._builder = SecondBuilder()
        self._last: Any = None  # the last image
        self._states: dict[str, dict[str, Any] | None] = {SOUND_TASK: {}, DECIDER: {}}

    async def frame(self, pts_ms: int, jpeg: bytes) -> None:
        """Have the tasks of frames look at one, at the same time.

        Raises:
            ValueError: it is not a JPEG.
        """
        image = await asyncio.to_thread(cv.imdecode, np.frombuffer(jpeg, np.uint8), cv.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"the frame at {pts_ms} ms is not a JPEG")
        self._last = image
        names = self._tasks.of_frames
        self._builder.frame(pts_ms, image, names)
        contents = {"image": image, "second": pts_ms // 1000, "pts_ms": pts_ms}
        outputs = await asyncio.gather(*(self._run(name, contents) for name in names))
        for name, output in zip(names, outputs, strict=True):
            self._builder.answer(name, pts_ms, output)

    def same(self, pts_ms: int) -> None:
        """Note a frame that looks like the last one.

        Raises:
            ValueError: no frame came yet.
        """
        if self._last is None:
            raise ValueError(f"the frame at {pts_ms} ms is to be like the one before, which did not come")
        self._tasks.runs.unchanged += 1
        self._builder.reuse(pts_ms, self._last, has_changed=False)

    async def sound(self, pts_ms: int, pcm: bytes) -> None:
        samples = (np.frombuffer(pcm, "<i2") / np.float32(FULL_SCALE)).astype(np.float32)
        self._builder.sound(pts_ms, [SOUND_TASK])
        output = await self._run(SOUND_TASK, {"samples": samples, "pts_ms": pts_ms})
        self._builder.answer(SOUND_TASK, pts_ms, output)

    def end(self) -> None:
        self._builder.end("frame")
        self._builder.end("sound")

    async def decisions(self) -> list[dict[str, Any]]:
        """Return the highlight task's outputs for the seconds that are complete now."""
        return [await self._run(DECIDER, contents) for contents in self._builder.ready()]

    async def _run(self, name: str, contents: Mapping[str, Any]) -> dict[str, Any]:
        result = await self._tasks.run(name, contents, self._states.get(name))
        self._states[name] = result.get("state")
        output: dict[str, Any] = result["output"]
        return output


class StreamServer:
    """The server, an actor of Ray: `start` once, then devices connect."""

    def __init__(self, folder: Path, folders: Mapping[str, Path], views: int) -> None:
        self._folder = folder
        self._folders = folders
        self._views = views

    async def start(self) -> tuple[int, int]:
        """Listen on this machine; return the port and the process."""
        self._tasks = Tasks(self._folders, views=self._views)
        context = Authority(self._folder, hosts=["127.0.0.1"]).server_context()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        return self._server.sockets[0].getsockname()[1], os.getpid()

    async def runs(self) -> dict[str, int]:
        return dataclasses.asdict(self._tasks.runs)

    async def close(self) -> None:
        self._server.close()
        await self._tasks.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(self._tasks)
        ended = (asyncio.IncompleteReadError, ConnectionError, ValueError)  # ValueError: what came is not a stream
        try:
            with contextlib.suppress(*ended):
                while await self._take_message(stream, reader):
                    for output in await stream.decisions():
                        writer.write(json.dumps(output).encode() + b"\n")
                    await writer.drain()
                for output in await stream.decisions():
                    writer.write(json.dumps(output).encode() + b"\n")
        finally:
            writer.close()

    async def _take_message(self, stream: Stream, reader: asyncio.StreamReader) -> bool:
        """Take the next message; return False after the last one.

        Raises:
            ValueError: it is not one of a stream.
        """
        kind, size, pts_ms = HEAD.unpack(await reader.readexactly(HEAD.size))
        if size > MAX_BODY_BYTES:
            raise ValueError(f"a message of {size} bytes, at most {MAX_BODY_BYTES} are taken")
        body = await reader.readexactly(size)
        match kind:
            case Kind.FRAME:
                await stream.frame(pts_ms, body)
            case Kind.SAME:
                stream.same(pts_ms)
            case Kind.SOUND:
                await stream.sound(pts_ms, body)
            case Kind.END:
                stream.end()
                return False
            case _:
                raise ValueError(f"unknown kind of message {kind}")
        return True
