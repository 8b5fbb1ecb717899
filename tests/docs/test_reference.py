"""Reference pages: those written from the code are as it says, and those written by hand name all that there is."""

import re
import runpy
from pathlib import Path

from walle.deploy.gate.gate import GATE_OPTIONS
from walle.pipeline.stream.context import Context, Store
from walle.pipeline.stream.run_log import Log
from walle.protocol import (
    PHASES,
    CloudPolicy,
    ExclusiveFile,
    HistoryPolicy,
    OutputPolicy,
    StatePolicy,
    TrainingPolicy,
    TriggerCondition,
)
from walle.task.format.config import LIMITS, POLICIES

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"


def test_a_page_of_each_kind_is_made_from_the_code() -> None:
    script = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))
    pages = {name: make() for name, make in script["PAGES"].items()}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {f"docs/reference/{name}" for name in pages} <= set(ignored)
    parts = {
        "cli.md": "walle release start",
        "cv.md": "GaussianBlur",
        "findings.md": "`phase-signature`",
        "http.md": "/v1/releases",
        "metrics.md": "walle_releases",
        "np.md": "`matmul`",
        "operators.md": "Conv",
        "routes.md": "/v1/outcomes",
        "walle-toml.md": "business_app",
    }
    parts["task-toml.md"] = "| `absent` | none | a trigger id: run if"
    assert pages.keys() == parts.keys()
    assert [name for name, part in parts.items() if part not in pages[name]] == []
    for key, one in GATE_OPTIONS.items():
        assert f"- {key}: {one.help}\n" in pages["cli.md"]
        assert f"| {one.meaning}; {one.form} |" in pages["http.md"]


def task_toml_page() -> str:
    script = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))
    return str(script["task_toml_page"]())


def test_every_key_of_task_toml_has_a_row() -> None:
    rows = re.findall(r"^\| (`.+?) \|", task_toml_page(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    tables = (HistoryPolicy, StatePolicy, TrainingPolicy, CloudPolicy, OutputPolicy, ExclusiveFile)
    policies = {key for table in tables for key in table.KEYS}
    keys = {*TriggerCondition.KEYS, *PHASES, *LIMITS, *POLICIES, *policies}
    assert named == {*keys, "rule", "files", "name", "topics", "dictionary", "events", "destination", "smoke_events"}


def test_every_limit_has_its_default_and_range() -> None:
    text = task_toml_page()
    assert "{{" not in text
    for key, (default, least, most) in LIMITS.items():
        assert f"| `{key}` | {default:,} | {least:,}, {most:,} |" in text


def test_every_name_of_ctx_is_there() -> None:
    text = (REFERENCE / "ctx.md").read_text()
    names = {name for name in dir(Context) if not name.startswith("_")}
    names |= {"task", "events", "visit", "device", "log", "phase", "store.put", "store.query"}
    assert [name for name in sorted(names) if f"ctx.{name}" not in text] == []
    assert {name for name in dir(Store) if not name.startswith("_")} == {"put", "query"}
    levels = {name for name in dir(Log) if not name.startswith("_")} - {"add", "drop_lines", "to_plain"}
    assert all(f"`.{level}`" in text for level in levels)
