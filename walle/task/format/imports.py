"""Imports that a task may make, and the ways to do without others."""

import difflib
from collections.abc import Collection, Iterable

from walle.engine_ext.vm.imports import ALLOWED_IMPORTS, is_allowed

_NO_FILES = "a task has no files: ctx.resource(name) reads those of resources/, and ctx.state is kept between runs"
_NO_NETWORK = "a task has no network: return what the cloud is to get, or ask it with ctx.escalate(payload)"
_NO_THREADS = "a task runs on one thread, and starts no others"
_MODEL = "convert the model with `walle model convert`, and run it with ctx.session(name).run({...})"
_ARRAYS = "use `import walle.np as np`, which has NumPy's names"
_IMAGES = "use `import walle.cv as cv`, which has OpenCV's names"
_TABLES = "use ctx.events (where, group_by, aggregate) and walle.np"
_INSTEAD = {
    **dict.fromkeys(("numpy", "scipy", "cupy"), _ARRAYS),
    **dict.fromkeys(("cv2", "PIL", "skimage", "imageio"), _IMAGES),
    **dict.fromkeys(
        ("torch", "torchvision", "onnx", "onnxruntime", "tensorflow", "tflite_runtime", "keras", "jax", "openvino",
         "MNN", "ncnn", "sklearn", "xgboost", "lightgbm"),
        _MODEL,
    ),
    **dict.fromkeys(("pandas", "polars", "pyarrow"), _TABLES),
    **dict.fromkeys(("os", "pathlib", "shutil", "tempfile", "glob", "sqlite3", "pickle", "shelve"), _NO_FILES),
    **dict.fromkeys(("socket", "ssl", "http", "urllib", "requests", "httpx", "aiohttp"), _NO_NETWORK),
    **dict.fromkeys(("threading", "multiprocessing", "subprocess", "asyncio", "concurrent"), _NO_THREADS),
    "logging": "use ctx.log(text), ctx.log.warning(text) and so on",
    "walle": "use `import walle.np as np` and `import walle.cv as cv`",
    "walle.task": "it has types only: import it under `if TYPE_CHECKING:`",
}  # fmt: skip


def module_names(sources: Iterable[str]) -> set[str]:
    """Return the full names of the modules in source files, packages included."""
    found = set()
    for path in sources:
        parts = path.removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return found


def refusal(module: str, own: Collection[str], owner: str = "the task") -> str:
    """Return why a task may not import a module and what to do, empty if it may; `own` are the modules of `owner`."""
    top = module.partition(".")[0]
    if top in own:
        return "" if module in own else f"imports {module}, which {owner} does not have{_near(module, own)}"
    if is_allowed(module):
        return ""
    if instead := _INSTEAD.get(module) or _INSTEAD.get(top if top != "walle" else ""):
        return f"imports {module}, which a task may not: {instead}"
    hint = _near(module, [*own, *ALLOWED_IMPORTS]) or "; docs/vm.md lists the modules that it may"
    return f"imports {module}, which a task may not{hint}"


def _near(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
