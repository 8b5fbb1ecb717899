"""walle figures: the report of all figures, with benchmarks of a small checkout and with the catalogue of this one."""

import json
import math
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from loadtest.report import write_report
from walle.cli import app
from walle.cli.figures.budget import Budget
from walle.cli.figures.catalogue import Catalogue, Figure
from walle.cli.figures.run import versions

_HELPERS = {  # modules without a figure: a part of tunnel, the last line of a benchmark
    "headline",
    "tunnel_authority",
}
_CATALOGUE = """\
[good]
title = "Runs & <calls>"
section = "§4"
paper = "52 % faster"
peers = ["typer", "no-such-package"]
quick = ["--rounds", "1"]
pictures = ["good.png"]

[bad]
title = "Broken"
section = "§5"

[endless]
title = "Endless"
section = "§6"
"""
_GOOD = """\
import argparse, base64, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=5)
rounds = parser.parse_args().rounds
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/good.png").write_bytes(base64.b64decode("PICTURE"))
with open("runs.txt", "a") as file:
    file.write("good\\n")
print(f"ours {rounds}, theirs <7>")
print(f"In short | runs & <calls>; lower is better | ours {rounds} ms | peer a 7 ms | peer b: not installed")
print("In short | calls; higher is better | ours 12,345 a second")
"""


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import base64

    folder = tmp_path / "checkout"
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks/figures.toml").write_text(_CATALOGUE)
    picture = base64.b64encode(_png()).decode()
    programs = {
        "good": _GOOD.replace("PICTURE", picture),
        "bad": "import sys\nprint('half a table')\nsys.exit('no clips: put them into <folder>')\n",
        "endless": "import time\nprint('begun', flush=True)\ntime.sleep(600)\n",
    }
    for name, text in programs.items():
        (folder / f"benchmarks/{name}.py").write_text(text)
    (folder / ".gitignore").write_text("out/\nruns.txt\n")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    monkeypatch.chdir(folder)
    return folder


def _figures(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["figures", *arguments])


def _statuses(result: Result) -> dict[str, str]:
    return {one["name"]: one["status"] for one in json.loads(result.stdout)["figures"]}


def test_the_report_has_each_figure_and_shows_those_that_failed(checkout: Path) -> None:
    result = _figures("--json", "--limit-s", "5", "--skip", "endless")
    assert result.exit_code == 1
    assert _statuses(result) == {"good": "ok", "bad": "failed"}
    page = (checkout / "out/report.html").read_text()
    for expected in (
        "Runs &amp; &lt;calls&gt;", "52 % faster", "ours 5, theirs &lt;7&gt;", "data:image/png;base64,",
        "walle figures good", "no-such-package not installed", "half a table", "no clips: put them into &lt;folder&gt;",
        "exit status 1", "Not run.", "1 of 3 figures were measured",
    ):  # fmt: skip
        assert expected in page, expected
    assert "<calls>" not in page
    assert "http" not in page.replace("</html>", "").replace("<html", "")  # nothing is fetched


def test_the_first_table_has_the_papers_number_ours_and_the_best_peers(checkout: Path) -> None:
    result = _figures("--skip", "endless")
    assert result.exit_code == 1
    (row,) = [line for line in result.stdout.splitlines() if "runs & <calls>" in line]
    assert re.search(
        r"good +52 % faster +runs & <calls>; lower is better +5 ms +peer a 7 ms; peer b not installed", row
    )
    (row,) = [line for line in result.stdout.splitlines() if "12,345" in line]
    assert "no peer in this benchmark" in row
    page = (checkout / "out/report.html").read_text()
    table = page[page.index("<table id='in-short'>") : page.index("</table>")]
    for expected in (
        "§4: 52 % faster", "<b>5 ms</b>", "runs &amp; &lt;calls&gt;; lower is better",
        "peer a 7 ms; peer b not installed",
        "<b>12,345 a second</b>", "no peer in this benchmark", "<td class='failed'>failed</td>", "§5: no number",
        "<td class='missing'>not run</td>",
    ):  # fmt: skip
        assert expected in table, expected


def test_json_has_the_headlines_and_the_best_peer(checkout: Path) -> None:
    assert checkout.exists()
    good, bad = json.loads(_figures("--json", "--skip", "endless").stdout)["figures"]
    first, second = good["headlines"]
    assert (first["ours"], first["unit"], first["better"], first["best_peer"]) == (5, "ms", "lower", "peer a")
    assert first["peers"] == {"peer a": 7, "peer b": "not installed"}
    assert (second["ours"], second["best_peer"]) == (12345, None)
    assert bad["headlines"] == []


def test_a_figure_without_a_headline_says_so(checkout: Path) -> None:
    program = checkout / "benchmarks/good.py"
    program.write_text(program.read_text().replace("In short", "In brief"))
    result = _figures("--only", "good")
    assert result.exit_code == 0
    assert "measured, but without a headline" in result.stdout
    assert "measured, but without a headline" in (checkout / "out/report.html").read_text()


def test_a_figure_that_takes_too_long_is_ended_and_says_so(checkout: Path) -> None:
    result = _figures("--json", "--limit-s", "1", "--only", "endless")
    assert _statuses(result) == {"endless": "late"}
    page = (checkout / "out/report.html").read_text()
    assert "it was ended after 1 s, the limit of each (--limit-s)" in page
    assert "begun" in page


def test_figures_that_do_not_fit_into_the_time_of_all_are_in_the_report(checkout: Path) -> None:
    # The catalogue says 10 s for each of three: each has its part, and the endless one what the others left over.
    result = _figures("--json", "--quick", "--budget-s", "4")
    assert _statuses(result) == {"good": "ok", "bad": "failed", "endless": "late"}
    page = (checkout / "out/report.html").read_text()
    assert re.search(r"it was ended after \d s, its share of 4 s \(--budget-s\)", page)
    assert "begun" in page


def test_a_figure_may_take_half_of_what_none_needs_and_the_last_one_all_of_it() -> None:
    now_s = 0.0
    first, second, third = (Figure(name=name, path=Path(name), title=name, quick_s=98.0) for name in "abc")
    budget = Budget(600.0, lambda: now_s)
    assert budget.share_s(first, [second, third]) == 250.0
    now_s = 200.0  # the first one took twice its time
    assert budget.share_s(second, [third]) == 200.0
    now_s = 400.0
    assert budget.share_s(third, []) == 200.0
    assert Budget(math.inf).share_s(first, [second]) == math.inf


def test_a_budget_that_is_too_small_is_shared_by_all_figures() -> None:
    now_s = 0.0
    first, second = (Figure(name=name, path=Path(name), title=name, quick_s=98.0) for name in "ab")
    budget = Budget(50.0, lambda: now_s)
    assert budget.share_s(first, [second]) == 25.0
    now_s = 51.0
    assert budget.share_s(second, []) == 0.0


def test_the_catalogue_fits_into_ten_minutes_also_on_a_machine_of_two_thirds_of_the_speed() -> None:
    assert sum(one.quick_s for one in Catalogue.find().figures.values()) <= 400


def test_a_measured_figure_is_not_measured_again_until_its_code_changes(checkout: Path) -> None:
    def runs() -> int:
        return len((checkout / "runs.txt").read_text().splitlines())

    assert _figures("--only", "good").exit_code == 0
    assert _figures("--only", "good").exit_code == 0
    assert runs() == 1
    assert _figures("--only", "good", "--again").exit_code == 0
    assert runs() == 2
    assert _figures("--only", "good", "--quick").exit_code == 0  # other sizes
    assert runs() == 3
    page = (checkout / "out/report.html").read_text()
    assert "ours 1," in page
    assert "few repetitions" in page
    with (checkout / "benchmarks/good.py").open("a") as file:
        file.write("print('changed')\n")
    assert _figures("--only", "good", "--quick").exit_code == 0  # a file differs from the commit
    assert runs() == 4
    (checkout / "out/figures/good.json").write_text("{")
    assert _figures("--only", "good", "--quick").exit_code == 0
    assert "ours 1," in (checkout / "out/report.html").read_text()


def test_a_picture_of_an_earlier_run_is_not_shown(checkout: Path) -> None:
    import os

    program = checkout / "benchmarks/good.py"
    program.write_text(program.read_text().replace('pathlib.Path("out/good.png").write', 'pathlib.Path("x.png").write'))
    (checkout / "out").mkdir()
    (checkout / "out/good.png").write_bytes(_png())
    os.utime(checkout / "out/good.png", (1, 1))
    assert _figures("--only", "good").exit_code == 0
    assert "data:image" not in (checkout / "out/report.html").read_text()


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "unknown figure 'nothing'"),
        (["--skip", "good,nothing"], "unknown figure 'nothing'"),
        (["nothing"], "unknown figure 'nothing'"),
        (["good", "--quick"], "--quick, --only, --skip and --budget-s are for the report"),
    ],
)
def test_wrong_names_and_options_are_refused(arguments: list[str], message: str) -> None:
    result = _figures(*arguments)
    assert result.exit_code != 0
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "[gone]\ntitle = 'x'\n", "has no module"),
        (lambda text: text.replace("section", "sektion", 1), "unexpected keyword argument 'sektion'"),
        (lambda _: "[", "figures.toml"),
    ],
)
def test_a_wrong_catalogue_is_refused(checkout: Path, change: Callable[[str], str], message: str) -> None:
    path = checkout / "benchmarks/figures.toml"
    path.write_text(change(path.read_text()))
    result = _figures("--list")
    assert result.exit_code != 0
    assert message in str(result.exception)


def test_every_benchmark_is_in_the_catalogue_and_takes_its_quick_arguments() -> None:
    catalogue = Catalogue.find()
    assert catalogue.modules.keys() - catalogue.figures.keys() == _HELPERS
    for figure in catalogue.figures.values():
        assert figure.title, figure.name
        assert figure.section.startswith("§"), figure.name
        assert figure.quick_s != Figure.quick_s, f"{figure.name} has no quick_s"
        text = figure.path.read_text()
        for option in (one for one in figure.quick if one.startswith("--")):
            assert f'"{option}"' in text, f"{figure.name} does not have {option}"
        assert "not installed" not in versions(("walle",)).values()


def test_load_tests_that_were_run_are_linked_to(checkout: Path) -> None:
    folder = checkout / "out/loadtest"
    for name, wrong in (("cluster-2", []), ("tunnel", ["lost <1>"])):
        write_report(
            folder, name, title=f"Load of {name}", command="python -m x", text="7 calls", summary="a < b", wrong=wrong
        )
    (folder / "torn.json").write_text("{")
    (folder / "later.json").write_text('{"page": "x.html", "else": 1}')
    assert _figures("--only", "good", "--out", "out/other").exit_code == 0
    page = (checkout / "out/other/report.html").read_text()
    assert "<a href='../loadtest/cluster-2.html'>Load of cluster-2</a>: <span class='ok'>no wrong result" in page
    assert "<a href='../loadtest/tunnel.html'>Load of tunnel</a>: <span class='failed'>1 wrong results" in page
    assert "a &lt; b" in page
    assert "7 calls" in (folder / "tunnel.html").read_text()


def _command(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from walle.cli import main; main()", "figures", *arguments]
    return subprocess.run(program, cwd=checkout, capture_output=True, text=True, check=False)


def test_one_figure_still_gets_its_own_arguments(checkout: Path) -> None:
    result = _command(checkout, "good", "--", "--rounds", "3")
    assert "ours 3, theirs <7>" in result.stdout, result.stderr


def test_one_figure_that_fails_gives_its_exit_status(checkout: Path) -> None:
    (checkout / "benchmarks/bad.py").write_text("import sys\nsys.exit(3)\n")
    assert _command(checkout, "bad").returncode == 3
    (checkout / "benchmarks/bad.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    assert _command(checkout, "bad").returncode == 128 + 9


def test_one_figure_imports_what_is_in_its_own_checkout(checkout: Path) -> None:
    (checkout / "benchmarks/links").mkdir()
    (checkout / "benchmarks/links/__init__.py").touch()
    (checkout / "benchmarks/links/own.py").write_text("HERE = 'this checkout'\n")
    (checkout / "benchmarks/bad.py").write_text("from benchmarks.links.own import HERE\nprint(HERE)\n")
    result = _command(checkout, "bad")
    assert result.stdout == "this checkout\n", result.stderr


def test_the_list_names_titles(checkout: Path) -> None:
    assert checkout.exists()
    rows: list[dict[str, Any]] = json.loads(_figures("--list", "--json").stdout)
    assert [row["figure"] for row in rows] == ["good", "bad", "endless"]
    assert rows[0]["paper"] == "§4"
