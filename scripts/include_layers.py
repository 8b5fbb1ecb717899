"""Check of the direction of C++ includes: which folder of the engine may include which (docs/adr/0080-folders.md).

usage: include_layers.py [SOURCE_FOLDER]

Prints each include that breaks the table below as "file:line: ...", and exits with 1 where there is one.
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "walle/engine_ext/src"

# For each folder, the folders that its files may include beside their own. A folder that has no row may not exist.
_GEOMETRY = ("core", "geometry", "geometry/transform")
_ATOMIC = (*_GEOMETRY, "kernels", "atomic")
_OPERATORS = (*_ATOMIC, "geometry/composite", "atomic/products", "atomic/image", "atomic/linalg", "operators")
_PLAN = (*_OPERATORS, "graph", "plan")
ALLOWED: dict[str, tuple[str, ...]] = {
    "core": (),
    "files": ("core",),
    "geometry": ("core",),
    "geometry/transform": ("core", "geometry"),
    "geometry/composite": _GEOMETRY,
    "kernels": ("core",),
    "kernels/generic": ("kernels",),
    "kernels/scalar": ("core", "kernels", "kernels/generic"),
    "kernels/x86": ("kernels", "kernels/generic"),
    "kernels/avx2": ("kernels", "kernels/generic", "kernels/x86"),
    "kernels/avx512": ("kernels", "kernels/generic", "kernels/x86", "kernels/avx2"),
    "kernels/avx512_bf16": ("kernels", "kernels/generic", "kernels/avx512"),
    "kernels/avx512_vnni": ("kernels", "kernels/generic", "kernels/avx512", "kernels/x86"),
    "kernels/neon": ("kernels", "kernels/generic"),
    "atomic": _ATOMIC,
    "atomic/products": _ATOMIC,
    "atomic/image": _ATOMIC,
    "atomic/linalg": _ATOMIC,
    "operators": _OPERATORS,
    "operators/data": ("core", "geometry", "geometry/transform", "operators"),
    "graph": ("core", "operators"),
    "plan": _PLAN,
    "run": (*_PLAN, "run"),
    "vm": ("core",),
    "bindings": (*_PLAN, "run", "files", "vm"),
}

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def violations(source: Path) -> list[str]:
    """Return one line for each include that the table does not allow, sorted by file and line."""
    found = []
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".inc"}:
            continue
        name = path.relative_to(source)
        folder = name.parent.as_posix()
        if folder not in ALLOWED:
            found.append(f"{name}:1: folder {folder!r} has no row in the table of {Path(__file__).name}")
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            match = _INCLUDE.match(line)
            if match is None:
                continue
            target = Path(match[1]).parent.as_posix()
            if target not in (folder, *ALLOWED[folder]):
                found.append(f"{name}:{number}: {folder} may not include {match[1]}; allowed: {_listed(folder)}")
    return found


def _listed(folder: str) -> str:
    return ", ".join(dict.fromkeys((folder, *ALLOWED[folder])))


def main() -> int:
    """Print the violations; return how the process ends."""
    found = violations(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
