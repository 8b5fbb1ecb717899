"""The direction of C++ includes: the tree keeps it, and a wrong include is named with its place."""

import runpy
import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[1] / "scripts/include_layers.py"


def run(*arguments: str) -> tuple[int, str]:
    result = subprocess.run([sys.executable, str(CHECK), *arguments], capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


def test_no_include_of_the_engine_runs_up() -> None:
    assert run() == (0, "")


def test_an_include_that_runs_up_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/table.h").write_text(
        '#include "core/dtype.h"\n\n#include "plan/program.h"\n#include <vector>\n'
    )
    code, text = run(str(tmp_path))
    assert code == 1
    assert text == "kernels/table.h:3: kernels may not include plan/program.h; allowed: kernels, core\n"


def test_a_folder_without_a_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "odds").mkdir()
    (tmp_path / "odds/ends.cpp").write_text("\n")
    code, text = run(str(tmp_path))
    assert (code, text.startswith("odds/ends.cpp:1: folder 'odds' has no row")) == (1, True)


def test_an_instruction_set_is_one_folder_and_one_line(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    (kernels / "rvv").mkdir(parents=True)
    (kernels / "rvv/set.cpp").write_text('#include "kernels/generic/all-inl.h"\n#include "kernels/scalar/set.h"\n')
    code, text = run(str(tmp_path))
    assert (code, text.startswith("kernels/rvv/set.cpp:1: folder 'kernels/rvv' has no row")) == (1, True)
    (kernels / "sets.inc").write_text("// The sets.\nWALLE_SET(scalar)\nWALLE_SET(rvv)\n")
    assert run(str(tmp_path)) == (0, "")


def test_a_set_that_includes_a_later_one_is_named(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    (kernels / "wide").mkdir(parents=True)
    (kernels / "sets.inc").write_text("WALLE_SET(scalar)\nWALLE_SET(wide)\nWALLE_SET(wider)\n")
    (kernels / "wide/set.cpp").write_text('#include "kernels/wider/vec.h"\n')
    code, text = run(str(tmp_path))
    assert code == 1
    assert text.startswith("kernels/wide/set.cpp:1: kernels/wide may not include kernels/wider/vec.h")


def test_the_table_has_no_cycle() -> None:
    check = runpy.run_path(str(CHECK))
    allowed: dict[str, tuple[str, ...]] = check["allowed_includes"](check["SOURCE"])

    def below(folder: str, path: tuple[str, ...]) -> None:
        assert folder not in path, " <- ".join((*path, folder))
        for one in allowed[folder]:
            if one != folder:
                below(one, (*path, folder))

    for folder in allowed:
        below(folder, ())
