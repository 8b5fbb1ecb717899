"""Push answer (§6): the content of X-Walle-Tasks, a list of directives, or an object with more for short profiles."""

import dataclasses
import json
from typing import Any, Self

from walle.protocol.fields import ProtocolError, take
from walle.protocol.push import TASKS_HEADER, Directive, directives_from_values

MAX_PLACE_CHARS = 700
MAX_WAIT_S = 3600


@dataclasses.dataclass(frozen=True)
class PushAnswer:
    """Directives for a device, the most urgent first, and what its next request should do.

    `unknown` are numbers of parts to send in X-Walle-Have. `place` is not empty where the answer was cut: the device
    sends it back, and the next answer continues there. After `wait_s` seconds there may be more; 0 for nothing.
    """

    directives: tuple[Directive, ...] = ()
    unknown: tuple[int, ...] = ()
    place: str = ""
    wait_s: int = 0

    @classmethod
    def from_header(cls, header: str) -> Self:
        """Parse the header. Raises ProtocolError."""
        try:
            value = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(TASKS_HEADER, f"not JSON ({error})") from error
        if isinstance(value, list):
            return cls(tuple(directives_from_values(value)))
        if not isinstance(value, dict):
            raise ProtocolError(TASKS_HEADER, f"must be a list or an object, is {type(value).__name__}")
        full: dict[str, Any] = {"tasks": [], "unknown": [], "place": "", "wait_s": 0, **value}
        unknown = take(full, "unknown", list, TASKS_HEADER)
        if not all(type(one) is int for one in unknown):
            raise ProtocolError(f"{TASKS_HEADER}.unknown", "must be numbers of parts")
        place = take(full, "place", str, TASKS_HEADER)
        if len(place) > MAX_PLACE_CHARS:
            raise ProtocolError(f"{TASKS_HEADER}.place", f"{len(place)} characters, more than {MAX_PLACE_CHARS}")
        return cls(
            tuple(directives_from_values(take(full, "tasks", list, TASKS_HEADER))),
            tuple(unknown),
            place,
            max(0, min(take(full, "wait_s", int, TASKS_HEADER), MAX_WAIT_S)),
        )
