"""The detector of items that the setting `detector` names: NanoDet, or the app's own."""

import nanodet
import own_detector
from settings import settings

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context

DETECTORS = {"nanodet": nanodet, "own": own_detector}


def item_detector(ctx: "Context") -> "Any":
    """Return the detector's module: SIDE, INPUT, LABELS, blob and objects.

    Raises:
        ValueError: the setting names another one.
    """
    name = settings(ctx).get("detector")
    if name not in DETECTORS:
        raise ValueError(f"setting detector is {name!r}, must be one of {', '.join(DETECTORS)}")
    return DETECTORS[name]
