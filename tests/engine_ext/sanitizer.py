"""Factor by which the engine is slower on a module with a sanitizer: for tests that bound its CPU time."""

import os

SLOWDOWN = 10 if any(name in os.environ.get("LD_PRELOAD", "") for name in ("libasan", "libtsan")) else 1
