"""Type adapters of FastAPI's parameters, each made once: every cloud that a test starts has the same hundred routes.

FastAPI makes an adapter for each parameter of a route when the route is added, and again for the first request of an
app. Making one takes much longer than comparing what it is made of.
"""

import contextlib
import sys
from typing import Any

_FIELDS = "fastapi._compat.v2"


def make_once(fields: Any) -> None:
    """Let fields of equal types, constraints and defaults share their adapter, which has no state."""
    make, made = fields.ModelField.__post_init__, dict[Any, Any]()

    def adapter_of(field: Any) -> None:
        parts = fields.asdict(field.field_info)
        # Objects that a text names by their address are kept by the adapter, so that none gets the address of another.
        key = (parts["annotation"], repr(parts["metadata"]), repr(parts["attributes"]), repr(field.config))
        try:
            field._type_adapter = made[key]
        except (KeyError, TypeError):  # new, or of a type that has no hash
            make(field)
            with contextlib.suppress(TypeError):
                made[key] = field._type_adapter

    fields.ModelField.__post_init__ = adapter_of


def pytest_collection_finish() -> None:
    fields = sys.modules.get(_FIELDS)  # loaded by tests of the cloud
    if hasattr(fields, "ModelField") and hasattr(fields, "asdict"):
        make_once(fields)
