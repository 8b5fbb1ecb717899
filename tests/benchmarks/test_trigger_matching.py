"""The benchmark of trigger matching: its second form, optional steps."""

import json
import sys

import pytest

from benchmarks import trigger_matching


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_cost_of_optional_steps_is_printed(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--steps", "--conditions", "1,2", "--events", "50", "--rounds", "1", *form])
    trigger_matching.main()
    printed = capsys.readouterr().out
    if form:
        assert [row["conditions"] for row in json.loads(printed)] == [1, 2]
    else:
        assert [line.split("  ")[0] for line in printed.splitlines()] == ["conditions 1", "conditions 2"]
