"""`json.dumps`, `dump` and `JSONEncoder` as tasks get them: numbers of `walle.np` are numbers in JSON.

What NumPy returns as a scalar is an array without dimensions here (ADR 16), which json does not know. The encoder asks
`default` only for what it does not know, so that plain values take the same time as with the library's functions.
"""

from __future__ import annotations

import json

from walle.engine_ext._core import ndarray

TYPE_CHECKING = False  # `typing` would double a VM's start-up time
if TYPE_CHECKING:
    from typing import IO, Any

__all__ = ["JSONEncoder", "dump", "dumps"]


class JSONEncoder(json.JSONEncoder):
    """`json.JSONEncoder` for which an array without dimensions is its number."""

    def default(self, o: Any) -> Any:
        """Return the number of an array without dimensions.

        Raises:
            TypeError: json has no form of the object: an array with dimensions, a complex number, any other type.
        """
        if isinstance(o, ndarray):
            if o.ndim == 0:
                return o.item()
            raise TypeError(f"an array of shape {o.shape} is not JSON serializable; use its tolist()")
        return super().default(o)


_encoder = JSONEncoder()


def dumps(obj: Any, *, cls: Any = None, **options: Any) -> str:
    """Return the JSON text of the object, as `json.dumps` does."""
    if cls is None and not options:
        return _encoder.encode(obj)
    return json.dumps(obj, cls=JSONEncoder if cls is None else cls, **options)


def dump(obj: Any, fp: IO[str], *, cls: Any = None, **options: Any) -> None:
    """Write the JSON text of the object to a file object, as `json.dump` does."""
    json.dump(obj, fp, cls=JSONEncoder if cls is None else cls, **options)
