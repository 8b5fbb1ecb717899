"""The how-to page of adaptation, followed word by word in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.docs.blocks import blocks
from walle import adapt, np
from walle.cli import app

ROOT = Path(__file__).parents[2]


def written(folder: Path) -> list[str]:
    """Write the page's files to a folder, and return its commands."""
    page = [one for one in blocks(ROOT / "docs/how-to/adapt.md", ROOT) if one.kind != "program"]
    net, own = (one.text for one in page if one.language == "python")
    (folder / "net.py").write_text(net)
    (folder / "even.py").write_text(own)
    (folder / "goals.toml").write_text(next(one.text for one in page if one.language == "toml"))
    return next(one.text for one in page if one.language == "sh").splitlines()


def test_the_page_makes_models_that_meet_its_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in commands:
        shown = CliRunner().invoke(app, line.removeprefix("walle ").split(), catch_exceptions=False)
        assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines() if line.strip().startswith(("watch", "phone"))]
    assert [row[0] for row in rows] == ["watch", "phone-1", "phone-2", "phone-3"]
    assert all(row[-1] not in ("budgets", "accuracy") for row in rows)
    assert (tmp_path / "models" / "watch.walle").exists()
    shown = CliRunner().invoke(app, ["adapt", "show", "models"])
    assert "watch" in shown.output


def test_the_pages_model_of_branches_runs_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/how-to/adapt.md").read_text()
    command = next(line for line in text.split("`") if line.startswith("walle adapt branches"))
    shown = CliRunner().invoke(app, [*command.removeprefix("walle ").split(), "--steps", "40"], catch_exceptions=False)
    assert shown.exit_code == 0
    image = {"input": np.zeros((1, 1, 8, 8), "float32")}
    session = adapt.BranchSession("net.walle", image, adapt.Budget(latency_s=10.0))
    assert len(session.branches) == 3
    assert session.branches[0].operations < 0.5 * session.branches[1].operations
    assert all(one.accuracy > 0.8 for one in session.branches)
    assert session.run(image)["output"].shape == (1, 4)


def test_an_algorithm_of_ones_own_cuts_all_layers_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from walle import adapt, nn

    written(tmp_path)
    goals = (tmp_path / "goals.toml").read_text().replace('name = "morphnet"', 'name = "even.py:Even"\nfactor = 0.8')
    (tmp_path / "goals.toml").write_text(goals.replace("steps = 100", "steps = 30"))
    monkeypatch.chdir(tmp_path)
    (outcome,) = adapt.run("goals.toml", "models")
    assert all(one.meets_budgets for one in outcome.fitted)
    last = nn.from_onnx("models/phone-1.walle")
    narrow, wide = sorted(one.shape[0] for one in last.parameters() if len(one.shape) == 4)
    assert 1.5 < wide / narrow < 3  # the widths of the model are 16 and 32
