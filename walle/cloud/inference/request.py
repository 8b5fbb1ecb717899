"""One hand-over of a phase, as it waits: its payload stays encoded until it runs."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgpack

from walle.base import plain
from walle.cloud.inference.failures import InferenceRefusedError
from walle.engine_ext._core import packed_values
from walle.pipeline.tunnel.server.deadline import request_due_s
from walle.task.run.runner import PHASE_TOPIC

MAX_VALUES = 1 << 19  # limit of a request or batch, with values in containers: an empty list has 1 byte, in Python 72
MAX_PART_BYTES = 16 << 10  # limit of the device's attributes, and of each other part beside the payload
_ATTRIBUTES = frozenset({str, int, float, bool, type(None)})
_TEXTS = ("task", "version", "phase")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRequest:
    """A request to run a phase of a task's version on `payload`, which is encoded, for a device.

    `device` has the device's attributes and id. `values` are those of the whole request, with those in containers.
    `due_s` is when the device stops waiting, by the monotonic clock; infinite without a deadline.
    """

    task: str
    version: str
    phase: str
    payload: memoryview
    device: Mapping[str, Any]
    values: int = 1
    due_s: float = math.inf

    @classmethod
    def parse(cls, device_id: str, data: bytes, due_s: float = math.inf) -> "PhaseRequest":
        """Return the request in `data`. The payload is not decoded, so that one that waits costs its bytes alone.

        Raises:
            InferenceRefusedError: it cannot be read, has too many values, or too large attributes of the device.
        """
        if (values := packed_values(data)) > MAX_VALUES:
            raise InferenceRefusedError(
                f"the request of {device_id} has {values} values, more than {MAX_VALUES}; hand over arrays"
            )
        found: dict[str, Any] = {}
        try:
            unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), strict_map_key=True)
            unpacker.feed(data)
            for _ in range(unpacker.read_map_header()):
                key = unpacker.unpack()
                begin = unpacker.tell()
                if key == "payload":
                    unpacker.skip()
                    found[key] = memoryview(data)[begin : unpacker.tell()]
                    continue
                found[key] = unpacker.unpack()
                if (size_bytes := unpacker.tell() - begin) > MAX_PART_BYTES:
                    raise ValueError(f"{key!r} has {size_bytes} bytes, more than {MAX_PART_BYTES}")  # noqa: TRY301
            if unpacker.tell() != len(data):
                raise ValueError("bytes follow it")  # noqa: TRY301 -- answered as any other fault
            task, version, phase = (found[name] for name in _TEXTS)
            if not (isinstance(task, str) and isinstance(version, str) and isinstance(phase, str)):
                raise TypeError("a name is not text")  # noqa: TRY301
            payload, device = found["payload"], {**found["device"], "id": device_id}
            if any(type(name) is not str for name in device):
                raise TypeError("the name of an attribute of the device is not text")  # noqa: TRY301
            if any(type(value) not in _ATTRIBUTES for value in device.values()):
                raise TypeError("an attribute of the device is neither text nor a number")  # noqa: TRY301
        except (ValueError, KeyError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise InferenceRefusedError(f"the request of {device_id} cannot be read: {error!r}") from error
        return cls(task=task, version=version, phase=phase, payload=payload, device=device, values=values, due_s=due_s)

    def value(self) -> Any:
        """Return the payload, decoded.

        Raises:
            InferenceRefusedError: it is not plain data.
        """
        try:
            return plain.decode(self.payload, strict=True)
        except plain.PlainDataError as error:
            raise InferenceRefusedError(f"the request of {self.device['id']} cannot be read: {error}") from error


def phase_request(device_id: str, topic: str, payload: bytes) -> PhaseRequest:
    """Return a device's request, with the deadline of the tunnel's (`request_due_s`).

    Raises:
        InferenceRefusedError: its topic is unknown, or it cannot be read.
    """
    if topic != PHASE_TOPIC:
        raise InferenceRefusedError(f"request {topic[:100]!r} is unknown; a device may send {PHASE_TOPIC!r}")
    due_s = request_due_s()
    return PhaseRequest.parse(device_id, payload, math.inf if due_s is None else due_s)
