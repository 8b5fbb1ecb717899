"""Examples of the documentation: tables of task.toml are read, tasks and programs run, commands have these options."""

import ast
import asyncio
import inspect
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from tests.docs.blocks import Block, blocks
from tests.pipeline.ingest.upload_samples import received
from tests.sim.shop_cloud import shop_cloud
from walle import cv, nn
from walle import np as wnp
from walle.adapt.goals.config import parse_config
from walle.base import plain
from walle.cli import app
from walle.cli.cloud.config import read_config, up_parameters
from walle.deploy.policies.attribute_schema import parse_schema
from walle.model_files.manifest import ModelManifest
from walle.pipeline import open_uploads
from walle.pipeline.events.event_mapping import EventMapping
from walle.task.format.config import TaskConfig
from walle.task.format.module_set import MODULES_FILE, ModuleSet
from walle.task.format.tree import TaskTree

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for form in ("*.md", "*.md.in") for path in (ROOT / "docs").rglob(form) if "adr" not in path.parts)
BLOCKS = [block for page in PAGES for block in blocks(page, ROOT)]
RUN_AS_A_WHOLE = "docs/tutorial.md"  # tests/system/test_tutorial.py
SHOWN_ONLY = {"", "text", "json", "nginx", "{toctree}", "{include}"}  # outputs, formats, tests/security/test_https.py
PHASES = {"preprocess", "execute", "postprocess"}
MINIMAL = {"task": '[task]\nname = "example"\n', "trigger": '[trigger]\nsequence = ["page_exit"]\n'}
SECTION_OF = {
    "ctx.exclusive": "exclusive",
    "ctx.state": "state",
    "ctx.checkpoint": "training",
    "ctx.history": "history",
    "ctx.escalate": "phases",
    "execute_batch": "cloud",
    "task=": "reads",
}  # code → what it needs
EVENTS = [
    {"event_id": "page_enter", "page_id": "item/7", "ts_ms": 1_700_000_000_000, "contents": {"item_id": "600"}},
    {"event_id": "click", "page_id": "item/7", "ts_ms": 1_700_000_000_005, "contents": {"widget_id": "buy"}},
    {"event_id": "page_exit", "page_id": "item/7", "ts_ms": 1_700_000_000_900, "contents": {}},
]


def of(language: str, kind: str = "") -> list[Block]:
    chosen = [block for block in BLOCKS if block.language == language and block.kind == kind]
    return [block for block in chosen if block.page != RUN_AS_A_WHOLE]


def functions(block: Block) -> set[str]:
    return {node.name for node in ast.parse(block.text).body if isinstance(node, ast.FunctionDef)}


def phase_text(block: Block) -> str:
    """Return a task's `main.py`: the block, or for lines without a phase, an `execute` that has them."""
    if functions(block) & {*PHASES, "migrate"}:
        return block.text if functions(block) & PHASES else block.text + "\ndef execute(ctx, trigger):\n    return {}\n"
    body = "".join(f"    {line}\n" for line in block.text.splitlines())
    return f"def execute(ctx, trigger):\n{body}"


def config_text(block: Block, code: str) -> str:
    """Return a task.toml for the code, with the page's own tables of those sections that it needs."""
    parts = dict(MINIMAL)
    for name, section in SECTION_OF.items():
        if name in code:
            tables = [one.text for one in BLOCKS if one.page == block.page and f"[{section}]" in one.text]
            parts[section] = next(iter(tables), f"[{section}]\n")
    if "migrate" in functions(block):
        parts["state"] = '[state]\nversion = 2\non_upgrade = "migrate"\n'
    return "".join(parts.values()) + '[simulation]\nevents = "events.jsonl"\n'


def test_every_block_is_of_a_kind_that_a_test_knows() -> None:
    assert [block.place for block in BLOCKS if block.language not in {"toml", "python", "sh", *SHOWN_ONLY}] == []


def test_every_block_of_commands_is_marked_as_such() -> None:
    """Else no test reads its options."""
    unmarked = [
        block for block in BLOCKS if not block.language and re.search(r"^(walle|pip) ", block.text, re.MULTILINE)
    ]
    assert [block.place for block in unmarked] == []


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    reasons = {block.place: block.remark for block in BLOCKS if block.kind == "not run"}
    assert all(len(reason) > 10 for reason in reasons.values())
    assert len(reasons) <= 13, reasons


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.place)
def test_a_table_of_task_toml_is_read(block: Block, tmp_path: Path) -> None:
    sections = tomllib.loads(block.text)
    if "fields" in sections:  # a mapping of an event log
        (tmp_path / "mapping.toml").write_text(block.text)
        assert EventMapping.load(tmp_path / "mapping.toml").whole
        return
    if "gateways" in sections:  # walle.toml
        (tmp_path / "walle.toml").write_text(block.text)
        assert read_config(tmp_path / "walle.toml", up_parameters())
        return
    if "attributes" in sections:  # the cloud's file of attributes
        assert parse_schema(block.text, block.place)
        return
    if "goals" in sections:  # goals of an adaptation
        assert parse_config(block.text, tmp_path, block.place, is_json=False)
        return
    if "models" in sections:  # a manifest of models
        assert ModelManifest.parse(block.text.encode(), block.place).chosen(())
        return
    if "name" in sections.get("modules", {}):  # modules.toml of a set of shared modules
        files = {MODULES_FILE: block.text.encode()}
        name = sections["modules"]["name"]
        assert ModuleSet.parse(TaskTree(scenario="shop", task=name, version="v1", commit="0" * 40, files=files))
        return
    missing = "".join(text for name, text in MINIMAL.items() if name not in sections)
    config = TaskConfig.parse((missing + block.text).encode(), block.place)
    assert config.name


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.place)
def test_a_task_of_the_docs_passes_its_simulation(block: Block, tmp_path: Path) -> None:
    code = phase_text(block)
    (tmp_path / "main.py").write_text(code)
    (tmp_path / "task.toml").write_text(config_text(block, code))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    result = CliRunner().invoke(app, ["task", "simulate", str(tmp_path), "--json"])
    report = json.loads(result.output)
    assert report["ok"], report
    assert report["runs"] == 2  # one on each kind of device


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["walle"]:
            yield words[1:]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "sh"], ids=lambda block: block.place)
def test_a_command_exists_with_these_options(block: Block) -> None:
    for words in commands(block):
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while getattr(command, "commands", None) and not (command.invoke_without_command and rest[0].startswith("-")):
            assert rest[0] in command.commands, f"{block.place}: walle {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        rest = rest[: rest.index("--")] if "--" in rest else rest  # what follows is another program's
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, f"{block.place}: {words}"


# --- programs: each is given what its remark says ---------------------------------------------------------------------


def program(what: str) -> Block:
    (found,) = (block for block in BLOCKS if block.kind == "program" and block.remark == what)
    return found


def test_every_program_has_a_test() -> None:
    tested = {
        "with a cloud in data",
        "with features in a cloud",
        "with a task in task",
        "with a device that has live/look",
        "in an empty folder",
        "after the first",
        "of a function",
        "with a device whose model is to be tuned",
    }
    assert {block.remark for block in BLOCKS if block.kind == "program"} == tested


async def run_lines(text: str, names: dict[str, Any]) -> None:
    """Run a program that may await at its top level."""
    code = compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, names)
    if inspect.isawaitable(made):
        await made


def test_a_device_in_an_app(tmp_path: Path) -> None:
    walle = [sys.executable, "-c", "from walle.cli import main; main()"]
    arguments = ["cloud", "up", "data", "--http-port", "0", "--tunnel-port", "0", "--json"]
    with subprocess.Popen([*walle, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as cloud:
        try:
            assert cloud.stdout is not None
            assert "url" in json.loads(cloud.stdout.readline())
            text = program("with a cloud in data").text
            done = subprocess.run(
                [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            cloud.terminate()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 features by {}\n"


@pytest.mark.asyncio
async def test_the_page_on_frames_gives_the_outputs_that_it_shows(tmp_path: Path) -> None:
    page = [block for block in BLOCKS if block.page == "docs/how-to/frames.md"]
    files = {block.remark: block.text for block in page if block.kind == "file"}
    (line,) = (block.text for block in page if block.language == "json")
    samples = io.BytesIO()
    np.save(samples, np.array([0.5, -1], "float32"))
    image = cv.imencode(".jpg", np.full((20, 30, 3), 60, "uint8"))[1]
    simulation = {
        "simulation/events.jsonl": line.encode(),
        "simulation/frame_1.jpg": bytes(memoryview(image)),
        "simulation/sound_1.npy": samples.getvalue(),
    }
    config = files["task.toml"].replace('"look"', '"count"')  # the task of this cloud
    found: list[Any] = []
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1", config=config, main=files["main.py"], **simulation)
        await shop.release("v1", beta=["d0"])  # the cloud plays the page's event first
        async with asyncio.timeout(30):
            while not device.tasks:
                await device.checkin()
                await asyncio.sleep(0.01)
        text = program("with a device that has live/look").text.replace("live/look", "shop/count")
        await asyncio.wait_for(run_lines(text, {"device": device, "found": found}), 60)
        summary = await device.summary()
    assert len(found) + summary.dropped.get("shop/count", 0) == 5
    last = found[-1]
    assert (last["second"], last["bright"], round(last["loud"], 3)) == (4, 200.0, 0.4)


@pytest.mark.asyncio
async def test_a_device_tunes_its_model_and_shares_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    before = model.state_dict()["0.weight"].tobytes()
    data = {"samples": wnp.ones((6, 4), "float32"), "labels": wnp.asarray([0, 1, 2, 0, 1, 2])}
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1")
        text = program("with a device whose model is to be tuned").text.replace("shop/digits", "shop/count")
        await asyncio.wait_for(run_lines(text, {"device": device, "model": model, **data}), 60)
        assert await device.peer_models.peers("shop/count", 4) == []  # the device has shared its model
    assert model.state_dict()["0.weight"].tobytes() != before


class _EnoughError(Exception):
    pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with what the programs need."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop-cloud").mkdir()
    (tmp_path / "task").mkdir()
    (tmp_path / "task/main.py").write_text("def execute(x):\n    return x + 1\n")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_programs_of_the_page_on_training_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    for what in ("in an empty folder", "after the first", "of a function"):
        exec(compile(program(what).text, what, "exec"), {"__name__": "example"})
    trained, tuned, gradient = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"loss 0\.0\d, (9[7-9]|100)% right", trained)
    assert (tuned, gradient) == ("[1 0 1]", "[0.7615942 0.7615942 0.7615942]")


@pytest.mark.asyncio
@pytest.mark.usefixtures("folder")
async def test_a_consumer_of_features() -> None:
    ranked = []

    def rank(device_id: str, payload: object) -> None:
        ranked.append((device_id, payload))
        if len(ranked) == 3:
            raise _EnoughError

    rows = [received(seq, topic="shop/ipv", payload=plain.encode({"n": seq})) for seq in (1, 2, 3)]
    async with open_uploads("shop-cloud/uploads.db", create=True) as uploads:
        await uploads.accept(rows)
    text = program("with features in a cloud").text
    text = text.replace("postgresql://walle@db.example/features", "shop-cloud/uploads.db")
    with pytest.raises(_EnoughError):
        await asyncio.wait_for(run_lines(text, {"rank": rank}), 30)
    assert ranked == [(row.device_id, {"n": row.seq}) for row in rows]


@pytest.mark.asyncio
@pytest.mark.usefixtures("folder")
async def test_a_vm_in_a_host() -> None:
    names: dict[str, Any] = {}
    await run_lines(program("with a task in task").text, names)
    assert names["result"] == 3
    names["vm"].close()
    names["host"].close()
