"""Table of the native core's size by part: kernels by instruction set, folders of the engine, bindings, VMs.

usage: core_size.py [BUILD_FOLDER]

BUILD_FOLDER holds the object files of a build; left out, it is the one of `make setup`. The sizes are code and constant
data (`text` of binutils' `size`) and initialised data of the object files, before the linker drops what nothing calls.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SOURCE = re.compile(r"walle/engine_ext/src/(.+)/([^/]+)\.cpp\.o$")
_PART = re.compile(r"CMakeFiles/(?:walle_)?([^/]+)\.dir/Unity/")


def part_of(path: str) -> str:
    """Return the part of the core that an object file belongs to."""
    if match := _SOURCE.search(path):
        folder, name = match.groups()
        return f"{folder}, images" if folder.startswith("kernels/") and name == "image" else folder
    if match := _PART.search(path):
        return match[1]
    return "other"


def sizes(build: Path) -> Counter[str]:
    """Return the bytes of each part."""
    objects = sorted(str(path) for path in build.glob("CMakeFiles/*.dir/**/*.o"))
    if not objects:
        sys.exit(f"core_size: {build} holds no object files; run `make setup`, or name the folder of another build")
    found: Counter[str] = Counter()
    lines = subprocess.run(["size", *objects], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    for line in lines:
        text, data, _bss, _dec, _hex, path = line.split(maxsplit=5)
        found[part_of(path)] += int(text) + int(data)
    return found


def main() -> None:
    """Print the table, largest part first."""
    folders = [Path(sys.argv[1])] if len(sys.argv) > 1 else sorted((ROOT / "build").glob("cp3*"))
    if not folders:
        sys.exit("core_size: build/ holds no build; run `make setup` first")
    found = sizes(folders[-1])
    for part, size in found.most_common():
        print(f"{part:<24}{size:>12,}")
    print(f"{'sum of objects':<24}{found.total():>12,}")
    for module in sorted((ROOT / "walle/engine_ext").glob("_core*.so")):
        print(f"{module.name:<24}{module.stat().st_size:>12,}")


if __name__ == "__main__":
    main()
