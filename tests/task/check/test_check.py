"""Static check of tasks: each kind of finding, its place, and what must not be found."""

# ruff: noqa: E501 -- rows of tables

import gzip
from pathlib import Path
from typing import get_args

import pytest

from walle.engine_ext.model import GraphBuilder
from walle.errors import ConfigError
from walle.pipeline.events.event_log import EventLog
from walle.task.check import Finding, check_task
from walle.task.check.finding import MAX_FINDINGS, MEANINGS, Code
from walle.task.format.config import TaskConfig
from walle.task.format.module_set import ModuleSet

CONFIG = '[task]\nname = "small"\n[trigger]\nsequence = ["page_exit"]\n'
MAIN = "def execute(ctx, trigger):\n    return 1\n"


def check(folder: Path, main: str = MAIN, config: str = CONFIG, **files: str) -> list[Finding]:
    """Return the findings of a task; `files` are by path, with __ for a slash and no ending for .py."""
    tree = {"task.toml": config, "main.py": main}
    tree |= {path.replace("__", "/") + ("" if "." in path else ".py"): text for path, text in files.items()}
    for path, text in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return check_task({path: text.encode() for path, text in tree.items()}, folder)


def a_model() -> bytes:
    graph = GraphBuilder("small")
    graph.output("y", graph.op("Neg", [graph.input("x", (1,))]))
    return graph.to_bytes()


def shown(findings: list[Finding]) -> list[str]:
    return [str(one) for one in findings]


@pytest.mark.parametrize(
    ("main", "found"),
    [
        ("def exectue(ctx, trigger): ...", "main.py:1:1: error: exectue is not a phase, and nothing calls it; did you mean execute? [phase-name]"),
        ("def excute(ctx, x): ...", "did you mean execute? [phase-name]"),
        ("def preproces(ctx, x): ...\n" + MAIN, "main.py:1:1: error: preproces is not a phase, and nothing calls it; did you mean preprocess?"),
        ("def post_process(ctx, x): ...\n" + MAIN, "did you mean postprocess?"),
        ("def Execute(ctx, x): ...", "did you mean execute?"),
        ("async def exectue(ctx, x): ...", "did you mean execute?"),
        ("def run(ctx, x): ...", "main.py:1:1: error: has none of preprocess, execute, postprocess; a task needs at least one"),
        ("def execute(trigger): ...", "main.py:1:1: error: execute(trigger) is called with 2 arguments; it must be def execute(ctx, x) [phase-signature]"),
        ("def preprocess(ctx, a, b): ...", "preprocess(ctx, a, b) is called with 2 arguments; it must be def preprocess(ctx, trigger)"),
        ("def postprocess(): ...", "postprocess() is called with 2 arguments; it must be def postprocess(ctx, y)"),
        ("def execute(ctx, x, *, k): ...", "execute(ctx, x, *, k) is called with 2 arguments"),
        ("async def execute(ctx, x): ...", "execute is called without await; it must be def execute(ctx, x)"),
        ("def execute(ctx, x):\n    yield x", "execute yields, so that its result is a generator"),
        (MAIN + "import numpy as np", "main.py:3:8: error: imports numpy, which a task may not: use `import walle.np as np`"),
        (MAIN + "import math, cv2", "main.py:3:14: error: imports cv2, which a task may not: use `import walle.cv as cv`"),
        (MAIN + "from torch.nn import Linear", "main.py:3:1: error: imports torch.nn, which a task may not: convert the model with `walle model convert`, and run it with ctx.session(name)"),
        (MAIN + "import onnxruntime", "run it with ctx.session(name)"),
        (MAIN + "def f():\n    import os.path", "main.py:4:12: error: imports os.path, which a task may not: a task has no files"),
        (MAIN + "import requests", "a task has no network"),
        (MAIN + "import threading", "one thread"),
        (MAIN + "import logging", "use ctx.log(text)"),
        (MAIN + "import walle", "use `import walle.np as np` and `import walle.cv as cv`"),
        (MAIN + "from walle import search", "imports walle.search, which a task may not"),
        (MAIN + "from walle.task import Context", "it has types only: import it under `if TYPE_CHECKING:`"),
        (MAIN + "import helpers", "imports helpers, which a task may not; did you mean helper?"),
        (MAIN + "import jsn", "did you mean json?"),
        (MAIN + "import pack.deap", "imports pack.deap, which the task does not have; did you mean pack.deep?"),
        (MAIN + "import frobnicate", "docs/vm.md lists the modules"),
        ("import walle.np as np\n" + MAIN + "a = np.zeross(3)", "main.py:4:5: error: walle.np has no zeross; did you mean zeros? [attribute]"),
        ("from walle import np\n" + MAIN + "a = np.linalg.invv(3)", "walle.np.linalg has no invv; did you mean inv?"),
        ("import walle.np\n" + MAIN + "a = walle.np.arrange(3)", "walle.np has no arrange; did you mean arange?"),
        ("from walle.np import arrange\n" + MAIN, "main.py:1:1: error: walle.np has no arrange; did you mean arange?"),
        ("from walle.np.linalg import invv\n" + MAIN, "walle.np.linalg has no invv"),
        ("import walle.cv as cv\n" + MAIN + "cv.rezise", "walle.cv has no rezise; did you mean resize?"),
        ("def execute(ctx, x):\n    return ctx.sesion('a')", "main.py:2:12: error: ctx has no sesion; did you mean session? [ctx-attribute]"),
        ("def execute(context, x):\n    return context.evnts", "ctx has no evnts; did you mean events?"),
        (MAIN + "def helper(ctx):\n    ctx.logg('x')", "main.py:4:5: error: ctx has no logg; did you mean log?"),
        ("def execute(ctx, x):\n  return 1\n return 2", "main.py:3:10: error: does not compile: unindent"),
        ("x = '\0'", "main.py: error: does not compile: source code"),
    ],
)  # fmt: skip
def test_a_fault_of_the_code_is_found(tmp_path: Path, main: str, found: str) -> None:
    own = {"helper": "x = 1\n", "pack____init__": "", "pack__deep": ""}
    own = {name: text for name, text in own.items() if name != "pack____init__"} | {"pack/__init__.py": ""}
    findings = check(tmp_path, main, **own)
    assert len(findings) == 1, shown(findings)
    assert found in str(findings[0])


@pytest.mark.parametrize(
    "main",
    [
        "def execute(ctx, trigger, extra=1): ...",
        "def execute(*args): ...",
        "def execute(ctx, /, x): ...",
        "from helper import execute",
        "from helper import *",
        "import helper\nexecute = helper.execute",
        "@staticmethod\ndef execute(): ...",
        "def executed(ctx, x): ...\ndef preprocess(ctx, x): return executed(ctx, x)",
        "def preprocess_image(ctx, x): ...\n" + MAIN,
        "import helper\nif helper.x:\n    def execute(ctx, x): ...\n",
        "def execute(ctx, x):\n    def inner():\n        yield 1\n    return list(inner())",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from walle.task import Context\n    import numpy\n" + MAIN,
        "import typing\nif typing.TYPE_CHECKING:\n    import numpy\n" + MAIN,
        "import collections.abc\nfrom os_like import path\n" + MAIN,
        "import walle.np as np\ndef execute(ctx, x):\n    return np.asarray(x).anything.at_all + np.linalg.inv(x)",
        "import walle.np as np\ndef execute(np, x):\n    return np.log",
        "import walle.np as np\nnp = None\ndef execute(ctx, x):\n    return np.nothing",
        "def execute(ctx, x):\n    ctx = x\n    return ctx.nothing",
        "from walle.np import *\nfrom walle.np.linalg import inv\nfrom walle.np import linalg\n" + MAIN,
        "import walle.cv as cv\nimport walle.np as np\ndef execute(ctx, x):\n    return cv.resize(np.zeros((4, 4)), (2, 2))",
    ],
)
def test_correct_code_has_no_findings(tmp_path: Path, main: str) -> None:
    findings = check(tmp_path, main, helper="x = 1\ndef execute(ctx, x): ...\n", os_like="path = 1")
    assert not findings, shown(findings)


def test_warnings_of_the_compiler_are_findings(tmp_path: Path) -> None:
    escape, literal = shown(check(tmp_path, MAIN + 'a = "\\d"\nb = a is 5\n'))
    assert escape.startswith("main.py:3: warning: ")
    assert "invalid escape sequence" in escape
    assert literal == 'main.py:4: warning: "is" with \'int\' literal. Did you mean "=="? [syntax]'


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (CONFIG + "[limits]\ndeadline_sm = 5\n", ["task.toml:6:1: error: [limits] has an unknown key 'deadline_sm'; did you mean deadline_ms? [unknown-key]"]),
        (CONFIG + "[limts]\n", ["task.toml:5:2: error: has an unknown section [limts]; did you mean limits? [unknown-key]"]),
        (CONFIG + "limits = 5\n", ["task.toml:5:1: error: [trigger] has an unknown key 'limits'"]),
        ("limits = 5\n" + CONFIG, ["task.toml:1:1: error: limits must be a section: write [limits] on a separate line [unknown-key]"]),
        (
            '[task]\nname = "Small"\nnam = 1\n[trigger]\nsequense = ["a"]\nwithin_ms = -1\n[limits]\nqueue = 0\nmemory_mb = "x"\n',
            [
                "task.toml:2:1: error: [task] name must be",
                "task.toml:3:1: error: [task] has an unknown key 'nam'; did you mean name?",
                "task.toml:5:1: error: [trigger] has an unknown key 'sequense'; did you mean sequence?",
                "task.toml:6:1: error: [trigger] within_ms",
                "task.toml:8:1: error: [limits] queue must be",
                "task.toml:9:1: error: [limits] memory_mb must be",
            ],
        ),
        ('[task]\nname = "small"\n', ["task.toml: error: [trigger] is missing"]),
        ("[task\n", ["task.toml:1:6: error: is not TOML: Expected"]),
        ("[task]\nname =\n", ["task.toml:2:7: error: is not TOML: Invalid value [toml-syntax]"]),
        (CONFIG + '[tunnel]\ndictionary = "d"\n', ["task.toml:6:1: error: [tunnel] dictionary 'd' must be in [files]"]),
        (CONFIG + "[tunnel]\n", ["task.toml:5:2: error: [tunnel] dictionary is missing"]),
        (CONFIG + '[files]\n"a.b" = "public"\n"c" = "shared"\n', ["task.toml:6:1: error: [files] a.b must be one of shared", "task.toml:7:1: error: [files] 'c' does not exist; add the file"]),
        (CONFIG + '[simulation]\nevents = "none.jsonl"\n', ["task.toml:6:1: error: [simulation] events: file 'none.jsonl' does not exist"]),
        (CONFIG + '[state]\nversion = 2\non_upgrade = "migrate"\n', ["main.py:1:1: error: has no migrate(old_version, state)"]),
        (CONFIG.replace("page_exit", "page_exti"), ["task.toml:4:1: warning: 'page_exti' is not a basic kind of event; did you mean page_exit? [trigger-event]"]),
        (CONFIG.replace('["page_exit"]', '[\n  "page_exit", # ]\n  "page_exti"\n]'), ["task.toml:4:1: warning"]),
    ],
)  # fmt: skip
def test_faults_of_the_configuration_are_found_with_their_lines(tmp_path: Path, config: str, found: list[str]) -> None:
    findings = shown(check(tmp_path, config=config))
    assert len(findings) == len(found), findings
    for one, start in zip(findings, found, strict=True):
        assert one.startswith(start)


def test_a_misspelt_migrate_is_found(tmp_path: Path) -> None:
    config = CONFIG + '[state]\nversion = 2\non_upgrade = "migrate"\n'
    (finding,) = check(tmp_path, MAIN + "def migrat(old, state): ...\n", config)
    assert "did you mean migrate?" in finding.message
    (finding,) = check(tmp_path, MAIN + "def migrate(state): ...\n", config)
    assert "it must be def migrate(old_version, state)" in finding.message


@pytest.mark.parametrize(
    ("code", "section", "message"),
    [
        ("", "when = {}", "has no train(ctx), which [training] of task.toml calls"),
        ("def trains(ctx): ...\n", "when = {}", "did you mean train?"),
        ("def train(ctx, x): ...\n", "when = {}", "is called with 1 argument; it must be def train(ctx)"),
        ("def train(ctx): ...\n", "", "[training] when is missing: give attributes of the device, such as"),
        ("def train(ctx): ...\n", "when = { charging = [1] }", "true or false for 'charging', has [1]"),
        ("def train(ctx): ...\n", "when = {}\ncpu_percent = 0", "must be a whole number from 1 to 100, is 0"),
    ],
)
def test_faults_of_training_are_found(tmp_path: Path, code: str, section: str, message: str) -> None:
    (finding,) = check(tmp_path, MAIN + code, f"{CONFIG}[training]\n{section}\n")
    assert message in finding.message


def test_a_checkpoint_needs_training(tmp_path: Path) -> None:
    main = MAIN.replace("return", "ctx.checkpoint\n    return", 1)
    (finding,) = check(tmp_path, main)
    assert finding.message.startswith("ctx.checkpoint needs [training] in task.toml")


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("ctx.state['n'] = 1", "train(ctx) has no ctx.state; keep it in ctx.checkpoint"),
        ("ctx.recent.count()", "train(ctx) has no ctx.recent; no event triggers it"),
        ("ctx.escalate(1)", "train(ctx) has no ctx.escalate; it runs on the device alone"),
        ("ctx.features('v')", "train(ctx) has no ctx.features; it runs on the device alone"),
        ("run = lambda: ctx.state", "train(ctx) has no ctx.state"),
    ],
)
def test_what_ctx_does_not_have_in_train_is_found_with_its_line(tmp_path: Path, use: str, found: str) -> None:
    sections = '[state]\nversion = 1\n[phases]\nexecute = "auto"\n[training]\nwhen = {}\n'
    train = f"def train(ctx):\n    ctx.checkpoint = ctx.store.query()\n    {use}\n"
    main = MAIN.replace("return", "ctx.state, ctx.recent, ctx.checkpoint, ctx.escalate\n    return", 1)
    (finding,) = check(tmp_path, main + train, CONFIG + sections)
    assert (finding.file, finding.line, finding.code) == ("main.py", (main + train).count("\n"), "phase-context")
    assert finding.message.startswith(found)


def test_a_function_that_train_alone_calls_is_as_a_part_of_it(tmp_path: Path) -> None:
    main = MAIN.replace("return 1", "return both(ctx)") + (
        "def train(ctx):\n    return own(ctx)\n"
        "def own(ctx):\n    return both(ctx), ctx.state\n"
        "def both(ctx):\n    return ctx.recent\n"
    )
    (finding,) = check(tmp_path, main, CONFIG + "[state]\nversion = 1\n[training]\nwhen = {}\n")
    assert (finding.line, finding.code) == (6, "phase-context")
    assert finding.message.startswith("train(ctx) has no ctx.state")


@pytest.mark.parametrize("section", ["", "[training]\nwhen = {}\n"])
def test_a_train_that_another_phase_calls_may_use_its_state(tmp_path: Path, section: str) -> None:
    main = MAIN.replace("return 1", "return train(ctx)") + "def train(ctx):\n    return ctx.state, ctx.recent\n"
    assert check(tmp_path, main, f"{CONFIG}[state]\nversion = 1\n{section}") == []


def test_a_checkpoint_that_another_phase_assigns_is_found(tmp_path: Path) -> None:
    main = MAIN.replace("return", "ctx.checkpoint = 1\n    return", 1) + "def train(ctx): ...\n"
    (finding,) = check(tmp_path, main, f"{CONFIG}[training]\nwhen = {{}}\n")
    assert finding.code == "phase-context"
    assert "cannot assign ctx.checkpoint; train(ctx) does" in finding.message


def test_the_condition_is_compared_with_the_simulations_events(tmp_path: Path) -> None:
    line = '{{"event_id": "{}", "page_id": "item", "ts_ms": 1, "contents": {{}}}}\n'
    config = (
        CONFIG.replace('"page_exit"', '"page_enter", "*", "item", "buy"')
        + '[simulation]\nevents = "simulation/e.jsonl"\n'
    )
    events = line.format("page_enter") + "broken\n" + line.format("by")
    findings = shown(check(tmp_path, config=config, **{"simulation/e.jsonl": events}))
    assert findings == [
        "task.toml:4:1: error: no event of simulation/e.jsonl has the event id or page id 'buy'; did you mean by? [trigger-event]",
        "simulation/e.jsonl:2: warning: this line is skipped: not JSON (Expecting value: line 1 column 1 (char 0)) [event-line]",
    ]
    events = line.format("page_enter") + line.format("buy")
    assert not check(tmp_path, config=config, **{"simulation/e.jsonl": events})


def test_an_absent_id_that_no_event_has_is_a_warning(tmp_path: Path) -> None:
    line = '{{"event_id": "{}", "page_id": "item", "ts_ms": 1, "contents": {{}}}}\n'
    config = CONFIG.replace('"page_exit"', '"cart"') + '[simulation]\nevents = "e.jsonl"\n'
    config = config.replace("[simulation]", 'absent = "purchase"\nabsent_s = 60\n[simulation]')
    for other, hint in (("purchas", "did you mean purchas?"), ("view", "the task is triggered each time")):
        findings = shown(check(tmp_path, config=config, **{"e.jsonl": line.format("cart") + line.format(other)}))
        assert len(findings) == 1
        assert findings[0].startswith(
            "task.toml:4:1: warning: no event of e.jsonl has the event id or page id 'purchase'"
        )
        assert hint in findings[0]
    assert not check(tmp_path, config=config, **{"e.jsonl": line.format("cart") + line.format("purchase")})


def test_the_ids_of_windows_are_checked_as_those_of_the_sequence(tmp_path: Path) -> None:
    line = '{"event_id": "click", "page_id": "item", "ts_ms": 1, "contents": {}}\n'
    config = CONFIG.replace('sequence = ["page_exit"]', 'window_s = 60\nwindow_of = ["clik", "item", "*"]')
    config += '[simulation]\nevents = "e.jsonl"\n'
    assert shown(check(tmp_path, config=config, **{"e.jsonl": line})) == [
        "task.toml:5:1: error: no event of e.jsonl has the event id or page id 'clik'; did you mean click? [trigger-event]"
    ]
    assert not check(tmp_path, config=config.replace("clik", "click"), **{"e.jsonl": line})


def test_an_unreadable_log_of_the_task_is_a_finding_and_another_an_error(tmp_path: Path) -> None:
    config = CONFIG + '[simulation]\nevents = "simulation/e.txt"\n'
    (finding,) = check(tmp_path, config=config, **{"simulation/e.txt": ""})
    assert (finding.code, finding.line) == ("simulation", 6)
    files = {"task.toml": CONFIG.encode(), "main.py": MAIN.encode()}
    (tmp_path / "gone.jsonl").write_text("")
    log = EventLog(tmp_path / "gone.jsonl")
    (tmp_path / "gone.jsonl").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        check_task(files, tmp_path, log)
    (tmp_path / "good.jsonl.gz").write_bytes(gzip.compress(b""))
    (finding,) = check_task(files, tmp_path, EventLog(tmp_path / "good.jsonl.gz"))
    assert "'page_exit'; it has no events" in finding.message


def test_findings_are_bounded_and_sorted(tmp_path: Path) -> None:
    findings = check(tmp_path, MAIN + "import os\n" * 500, CONFIG + "".join(f"[s{n}]\n" for n in range(3)))
    assert len(findings) == MAX_FINDINGS
    assert [(one.file, one.line) for one in findings[:4]] == [
        ("task.toml", 5), ("task.toml", 6), ("task.toml", 7), ("main.py", 3)
    ]  # fmt: skip
    assert len(check(tmp_path, config=CONFIG + "".join(f"[s{n}]\n" for n in range(500)))) == MAX_FINDINGS


@pytest.mark.parametrize("folder", ["apps/ipv/task"])
def test_the_reference_apps_task_is_good_but_for_its_encoder(folder: str) -> None:
    root = Path(__file__).parents[3] / folder
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    files = {path: data for path, data in files.items() if "cache" not in path}
    assert TaskConfig.parse(files["task.toml"], "task.toml").name == "ipv"
    missing = {"resources/encoder.walle": a_model()} if "resources/encoder.walle" not in files else {}
    assert not shown(check_task(files | missing, root))


def test_the_documentation_lists_each_code() -> None:
    assert set(MEANINGS) == set(get_args(Code.__value__))
    assert all(MEANINGS.values())


BATCHES = CONFIG + "[cloud]\nmax_batch = 8\n"
BATCH = "def execute_batch(ctx, payloads):\n    return payloads\n"


@pytest.mark.parametrize(
    ("main", "config", "found"),
    [
        (MAIN + BATCH, BATCHES, ""),
        ("from helper import execute, execute_batch\n", BATCHES, ""),
        ("from helper import *\n", BATCHES, ""),
        (MAIN, BATCHES, "main.py:1:1: warning: has no execute_batch(ctx, payloads), so that [cloud] max_batch = 8 has no effect [batch]"),
        (MAIN + BATCH, CONFIG, "main.py:3:1: warning: has execute_batch, which is never called: set max_batch under [cloud] in task.toml [batch]"),
        ("def preprocess(ctx, t): ...\n" + BATCH, BATCHES, "main.py:2:1: error: has execute_batch and no execute"),
        (MAIN + BATCH.replace("ctx, payloads", "payloads"), BATCHES, "execute_batch(payloads) is called with 2 arguments; it must be def execute_batch(ctx, payloads) [phase-signature]"),
        (MAIN + "async " + BATCH, BATCHES, "execute_batch is called without await"),
        (MAIN + BATCH.replace("return", "yield"), BATCHES, "execute_batch yields, so that its result is a generator"),
        (MAIN + BATCH.replace("batch", "bacth"), BATCHES, "main.py:3:1: error: execute_bacth is not a phase, and nothing calls it; did you mean execute_batch?"),
        (MAIN + BATCH.replace("return payloads", "return ctx.devises"), BATCHES, "ctx has no devises; did you mean devices?"),
        (MAIN + BATCH, BATCHES.replace("max_batch", "max_bacth"), "did you mean max_batch?"),
        (MAIN + BATCH, BATCHES.replace("8", "1000"), "[cloud] max_batch must be a whole number from 1 to 256, is 1000"),
    ],
)  # fmt: skip
def test_batches_and_their_configuration_fit(tmp_path: Path, main: str, config: str, found: str) -> None:
    findings = check(tmp_path, main, config, helper=MAIN + BATCH)
    if not found:
        assert findings == []
    else:
        assert found in str(findings[0]), shown(findings)


@pytest.mark.parametrize(
    ("module", "config", "place"),
    [
        ("import numpy\n", "", "task.toml:6:1: error: common/v3/far.py:1: imports numpy, which a task may not"),
        ("def f(ctx):\n    return ctx.store.query('a', task='b')\n", "", "task.toml:6:1: error: common/v3/far.py:2: reads topic 'b/a'"),
        ("def f(ctx):\n    return ctx.store.query('a', task='b')\n", "[reads]\ntopics = ['b/c']\n", "task.toml:8:1: error: common/v3/far.py:2: reads topic 'b/a'"),
    ],
)  # fmt: skip
def test_a_fault_of_a_shared_module_is_at_the_section_of_task_toml_that_leads_to_it(
    tmp_path: Path, module: str, config: str, place: str
) -> None:
    def find(name: str, version: str) -> ModuleSet:
        return ModuleSet(name, version, "c" * 40, {"far.py": module.encode()})

    files = {
        "task.toml": f'{CONFIG}[modules]\ncommon = "v3"\n{config}'.encode(),
        "main.py": f"import far\n{MAIN}".encode(),
    }
    (finding,) = check_task(files, tmp_path, find_modules=find)
    assert (str(finding).startswith(place), finding.code) == (True, "bundle"), shown([finding])
