"""Check of the direction of C++ includes: which folder of the engine may include which (ADR 2).

usage: include_layers.py [SOURCE_FOLDER]

Prints each include that breaks the table below as "file:line: ...", and exits with 1 where there is one. The rows of
the instruction sets' folders come from kernels/sets.inc.
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "walle/engine_ext/src"

# For each folder, the folders that its files may include beside their own. A folder that has no row, here or by
# sets.inc, may not exist.
_GEOMETRY = ("core", "geometry", "geometry/transform")
_ATOMIC = (*_GEOMETRY, "kernels", "atomic")
_OPERATORS = (*_ATOMIC, "geometry/composite", "atomic/products", "atomic/image", "atomic/linalg", "operators")
# A plan is for any device: it reaches kernels through core/device.h and plan/kernel_set.h. `host` has those of the CPU.
_PLAN = ("core", "geometry", "atomic", "operators", "graph", "plan")
_HOST = (*_OPERATORS, "graph", "plan", "search", "host")
_ROWS: dict[str, tuple[str, ...]] = {
    "core": (),
    "files": ("core",),
    "search": ("core",),
    "geometry": ("core",),
    "geometry/transform": ("core", "geometry"),
    "geometry/composite": _GEOMETRY,
    "kernels": ("core",),
    "kernels/generic": ("kernels",),
    "kernels/scalar": ("core", "kernels", "kernels/generic"),
    "kernels/x86": ("kernels", "kernels/generic"),
    "kernels/neon": ("kernels", "kernels/generic"),
    "kernels/avx512_vnni": ("kernels", "kernels/generic", "kernels/avx512", "kernels/x86"),
    "atomic": _ATOMIC,
    "atomic/products": _ATOMIC,
    "atomic/image": _ATOMIC,
    "atomic/linalg": _ATOMIC,
    "operators": _OPERATORS,
    "operators/data": ("core", "geometry", "geometry/transform", "operators"),
    "operators/gradient": ("core", "geometry", "geometry/composite", "operators"),
    "graph": ("core", "operators"),
    "rewrite": ("core", "kernels", "operators", "graph"),
    "plan": (*_PLAN, "operators/gradient"),
    "host": _HOST,
    "run": (*_PLAN, "kernels", "rewrite", "host", "run"),
    "stream": ("core",),
    "vm": ("core",),
    "bindings/stream": ("core", "stream"),
    "bindings/store": ("core", "bindings/stream"),
    "bindings/tunnel": ("core",),
    "bindings/deploy": ("core",),
    "bindings": (
        *_HOST,
        *(
            "operators/gradient",
            "rewrite",
            "run",
            "files",
            "stream",
            "vm",
            "bindings/stream",
            "bindings/store",
            "bindings/tunnel",
            "bindings/deploy",
        ),
    ),
}

# What each instruction set's folder may include, beside the folders of the sets before it in sets.inc.
_SET = ("kernels", "kernels/generic", "kernels/x86")

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_SET_LINE = re.compile(r"^WALLE_SET\((\w+)\)", re.MULTILINE)


def allowed_includes(source: Path) -> dict[str, tuple[str, ...]]:
    """Return the whole table: the rows above, and one for each set in the kernels/sets.inc of `source`."""
    table = dict(_ROWS)
    listed = source / "kernels/sets.inc"
    folders: list[str] = []
    for name in _SET_LINE.findall(listed.read_text()) if listed.exists() else []:
        table.setdefault(f"kernels/{name}", (*_SET, *folders))
        folders.append(f"kernels/{name}")
    return table


def violations(source: Path) -> list[str]:
    """Return one line for each include that the table does not allow, sorted by file and line."""
    table = allowed_includes(source)
    found = []
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".inc"}:
            continue
        name = path.relative_to(source)
        folder = name.parent.as_posix()
        if folder not in table:
            found.append(f"{name}:1: folder {folder!r} has no row in the table of {Path(__file__).name}")
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            match = _INCLUDE.match(line)
            if match is None:
                continue
            target = Path(match[1]).parent.as_posix()
            allowed = dict.fromkeys((folder, *table[folder]))
            if target not in allowed:
                found.append(f"{name}:{number}: {folder} may not include {match[1]}; allowed: {', '.join(allowed)}")
    return found


def main() -> int:
    """Print the violations; return how the process ends."""
    found = violations(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
