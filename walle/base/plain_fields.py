"""Fields of a dataclass in plain values that another version of walle may have written."""

import dataclasses
from collections.abc import Mapping
from typing import Any


def known_fields(kind: type[Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that the dataclass `kind` has: a newer walle may have written others."""
    return {field.name: plain[field.name] for field in dataclasses.fields(kind) if field.name in plain}
