"""Values of the tests of a gate, as they are shown. Plain values."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class TestValue:
    """Evidence of one test: `value` decides when it reaches `boundary`. Both are logarithms of a wealth."""

    name: str
    value: float
    boundary: float

    def to_plain(self) -> dict[str, Any]:
        return {"test": self.name, "value": round(self.value, 3), "boundary": round(self.boundary, 3)}
