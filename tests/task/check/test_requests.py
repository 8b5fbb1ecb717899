"""Check of what a task's code asks for: files, models, sections, topics, events, builtins; and what must not be found."""

# ruff: noqa: E501 -- rows of tables

from collections.abc import Mapping
from pathlib import Path

import pytest

from walle.engine_ext.model import GraphBuilder
from walle.task.check import Finding, check_task

CASES = Path(__file__).parents[4] / "shared" / "cases"
CONFIG = '[task]\nname = "small"\n[trigger]\nsequence = ["page_exit"]\n'
FILES = '[files]\n"resources/intent.walle" = "shared"\n"resources/table.bin" = "shared"\n'


def model() -> bytes:
    graph = GraphBuilder("small")
    graph.output("y", graph.op("Neg", [graph.input("x", (1,))]))
    return graph.to_bytes()


def check(
    main: str, config: str = CONFIG + FILES, more: Mapping[str, bytes] | None = None, folder: Path = Path()
) -> list[Finding]:
    """Return the findings of a task with a model and a table, and `more` files."""
    files = {"resources/intent.walle": model(), "resources/table.bin": b"x"} if FILES in config else {}
    return check_task({"task.toml": config.encode(), "main.py": main.encode(), **files, **(more or {})}, folder)


def main_of(expression: str) -> str:
    return f"def execute(ctx, trigger):\n    return {expression}\n"


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('ctx.session("intnet")', "main.py:2:12: error: the task has no model resources/intnet.walle; did you mean intent? [resource]"),
        ('ctx.session("zzz").run({})', "the task has no model resources/zzz.walle; it has: intent [resource]"),
        ('ctx.session(name="intnet.walle")', "the task has no model resources/intnet.walle; did you mean intent?"),
        ("ctx.session(MODEL)\nMODEL = 'intnet'", "did you mean intent?"),
        ('ctx.resource("tabel.bin")', "main.py:2:12: error: the task has no file resources/tabel.bin; did you mean table.bin? [resource]"),
        ('ctx.exclusive("gallery.json")', "[[exclusive]] of task.toml does not list 'gallery.json'; add to task.toml: [[exclusive]] with name = \"gallery.json\" [resource]"),
        ("ctx.history()", "ctx.history needs [history] in task.toml, such as: [history] days = 7 [section]"),
        ('ctx.state["n"]', "ctx.state needs [state] in task.toml, such as: [state] version = 1 [section]"),
        ("ctx.escalate(1)", 'ctx.escalate needs a phase that may run in the cloud: [phases] execute = "auto" in task.toml [section]'),
        ('ctx.features("v")', "ctx.features needs a phase that may run in the cloud"),
        ("ctx.store.putt('a', 1)", "ctx.store has no putt; did you mean put? [ctx-attribute]"),
        ("ctx.log.warn('a')", "ctx.log has no warn; did you mean warning? [ctx-attribute]"),
        ("ctx.events.wehre('a', '==', 1)", "ctx.events has no wehre; did you mean where? [ctx-attribute]"),
        ("ctx.recent.cuont()", "ctx.recent has no cuont; did you mean count? [ctx-attribute]"),
        ('ctx.store.put("clicks", 1), ctx.store.query("clikcs")', "main.py:2:40: warning: nothing of the task puts the topic 'clikcs'; did you mean clicks? [topic]"),
        ('ctx.store.query("clicks")', "warning: nothing of the task puts the topic 'clicks'; without a topic, ctx.store.query reads the task's outputs [topic]"),
        ('ctx.events.named("clik")', "main.py:2:12: warning: no event is known with the event id 'clik'; did you mean click? [event-id]"),
        ('ctx.recent.key_by("page_entre")', "did you mean page_enter? [event-id]"),
        ('trigger["evnt"]', "main.py:2:12: error: the trigger has no 'evnt'; did you mean event? [event-field]"),
        ('trigger["event"]["pageid"]', "main.py:2:12: error: an event has no 'pageid'; did you mean page_id? [event-field]"),
        ('trigger["event"].pageid', "an event has no 'pageid'; did you mean page_id? [event-field]"),
        ('trigger["event"]["price"]', "an event has no 'price'; it has event_id, page_id, ts_ms, contents; what the event is about is in its contents: event[\"contents\"] [event-field]"),
        ("trigger.event", 'the trigger is a dict, without an attribute event; write trigger["event"] [event-field]'),
        ("[e.pageid for e in ctx.events]", "main.py:2:13: error: an event has no 'pageid'; did you mean page_id? [event-field]"),
        ("[one['event-id'] for one in list(ctx.recent)[-20:]]", "an event has no 'event-id'; did you mean event_id? [event-field]"),
        ("[e.price for e in reversed(ctx.events.where('price', '>', 1))]", "an event has no 'price'; it has event_id, page_id, ts_ms, contents; what the event is about is in its contents"),
        ('open("resources/table.bin")', "main.py:2:12: error: open is not a builtin of tasks: a task has no files: ctx.resource(name) reads those of resources/"),
        ('eval("1")', "eval is not a builtin of tasks: a task runs the code of its version alone"),
        ("input()", "input is not a builtin of tasks: a task has no terminal"),
        ("exit()", "exit is not a builtin of tasks: a run ends when its last phase returns"),
    ],
)  # fmt: skip
def test_a_request_for_what_the_task_does_not_have_is_found(expression: str, found: str) -> None:
    findings = check(main_of(expression))
    assert len(findings) == 1, [str(one) for one in findings]
    assert found in str(findings[0])


@pytest.mark.parametrize(
    ("main", "config"),
    [
        (main_of('ctx.session("intent"), ctx.session("intent.walle"), ctx.resource("table.bin")'), ""),
        ("NAMES = ['intnet']\n" + main_of("[ctx.session(one) for one in NAMES]"), ""),
        ("def execute(ctx, trigger):\n    for name in 'ab':\n        ctx.session(name)\nname = 'intnet'\n", ""),
        (main_of('ctx.exclusive("a.json")'), '[[exclusive]]\nname = "a.json"\n'),
        (main_of("ctx.history(), ctx.state"), "[history]\ndays = 1\n[state]\nversion = 1\n"),
        (main_of("ctx.escalate(1)"), '[phases]\nexecute = "auto"\n'),
        (main_of('ctx.store.put("clicks", 1), ctx.store.query("clicks"), ctx.store.query()'), ""),
        (main_of('ctx.store.put(str(1), 1), ctx.store.query("clicks")'), ""),
        (main_of('ctx.store.query("clicks", task="other")'), '[reads]\ntopics = ["other/clicks"]\n'),
        (main_of('ctx.events.named("click"), ctx.events.named("own_kind"), ctx.events.first("item.price")'), ""),
        (main_of('trigger["event"].page_id, trigger["event"]["contents"]["price"], trigger.get("visit")'), ""),
        (main_of('trigger["event"].get("page_id"), dict(trigger["event"]), trigger["event"].contents'), ""),
        (
            main_of(
                "[e.page_id + e['event_id'] + e.contents['x'] for e in ctx.events], [k for k, e in ctx.events.group_by('a')]"
            ),
            "",
        ),
        (
            "def execute(ctx, trigger):\n    for e in ctx.events:\n        e.page_id\n    for e in trigger['event']['contents']['list']:\n        e.other\n",
            "",
        ),
        ("def preprocess(ctx, trigger): ...\ndef execute(ctx, x):\n    return x['evnt'], x.event\n", ""),
        ("def open(name): ...\n" + main_of("open('a')"), ""),
        (main_of("ctx.log('a'), ctx.log.warning('b'), ctx.device['os'], ctx.devices[0]"), ""),
    ],
)
def test_correct_requests_have_no_findings(main: str, config: str) -> None:
    assert not [str(one) for one in check(main, CONFIG + FILES + config)]


def test_options_of_a_state_that_nothing_uses_are_found_with_their_lines() -> None:
    section = '[state]\nversion = 1\non_full = "evict"\nttl_s = 60\n[state.prefix_ttl_s]\n"cart/" = 5\n'
    found = [str(one) for one in check(main_of("1"), CONFIG + section)]
    hint = "has no effect: no code of the task uses ctx.state; use it, or remove [state] [section]"
    assert found == [
        f"task.toml:7:1: warning: [state] on_full {hint}",
        f"task.toml:8:1: warning: [state] ttl_s {hint}",
        f"task.toml:9:2: warning: [state] prefix_ttl_s {hint}",
    ]
    assert not check(main_of("ctx.state"), CONFIG + section)
    helper = "def helper(context):\n    return context.state\n" + main_of("helper(ctx)")
    assert not check(helper, CONFIG + section)
    assert not check(main_of("1"), CONFIG + "[state]\nversion = 1\n")


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ('[state]\non_full = "drop"\n', "task.toml:6:1: error: [state] on_full must be one of refuse, evict; is 'drop' [config]"),
        ("[state]\nmax_bytes = 1_000_000\n", "task.toml:6:1: error: [state] max_bytes must be a whole number from 1024 to 262144, is 1000000 [config]"),
        ("[state]\nversion = 1\nttl_s = 1.5\n", "task.toml:7:1: error: [state] ttl_s must be a whole number of seconds from 0 (never) to 31622400, is 1.5 [config]"),
        ('[state]\n[state.prefix_ttl_s]\n"a.b/" = -1\n', "[state] prefix_ttl_s.a.b/ must be a whole number of seconds from 0 (never) to 31622400, is -1 [config]"),
        ("[state]\nttl = 60\n", "[state] has an unknown key 'ttl'; did you mean ttl_s? [unknown-key]"),
        ("[limits]\nttl_s = 60\n", "[limits] has an unknown key 'ttl_s'"),
    ],
)  # fmt: skip
def test_wrong_options_of_a_state_are_found_with_their_lines(section: str, found: str) -> None:
    findings = [str(one) for one in check(main_of("ctx.state"), CONFIG + section)]
    assert any(found in one for one in findings), findings


def test_an_unknown_model_says_how_to_make_one_where_there_is_none() -> None:
    (finding,) = check(main_of('ctx.session("intent")'), CONFIG)
    assert finding.message.endswith("; convert a model: walle model convert MODEL.onnx resources/intent.walle")


def test_a_model_for_the_cloud_alone_needs_a_phase_there() -> None:
    config = CONFIG + FILES.replace('intent.walle" = "shared"', 'intent.walle" = "cloud"')
    files = {"resources/intent.walle": model(), "resources/table.bin": b"x"}
    (finding,) = check(main_of('ctx.session("intent")'), config, files)
    assert 'is "cloud" under [files], and no phase runs there; list it as "shared"' in finding.message
    assert not check(main_of('ctx.session("intent")'), config + '[phases]\nexecute = "cloud"\n', files)


ONNX = b"\x08\x07\x12\x07pytorch" + bytes(100)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (ONNX, "resources/intent.walle: error: is an ONNX model by another name; convert it: mv resources/intent.walle resources/intent.onnx && walle model convert resources/intent.onnx resources/intent.walle [model]"),
        (b"text", "is not a .walle model: it begins with other bytes; make one: walle model convert MODEL.onnx resources/intent.walle [model]"),
        (b"", "is not a .walle model: it begins with other bytes"),
        (model()[:-64], "cannot be loaded: "),
    ],
)  # fmt: skip
def test_bytes_that_are_no_model_are_found(data: bytes, found: str) -> None:
    (finding,) = check(main_of("1"), CONFIG + FILES, {"resources/intent.walle": data})
    assert found in str(finding)


def test_an_onnx_model_is_found_where_the_code_loads_it() -> None:
    config = CONFIG + '[files]\n"resources/intent.onnx" = "shared"\n'
    (finding,) = check(main_of('ctx.session("intent")'), config, {"resources/intent.onnx": ONNX})
    assert finding.message == (
        "resources/intent.onnx is an ONNX model, which a task's VM does not read; convert it: walle model convert"
        " resources/intent.onnx resources/intent.walle, and list that file under [files]"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('"resources/intnet.walle" = "shared"', "task.toml:6:1: error: [files] 'resources/intnet.walle' does not exist; did you mean resources/intent.walle? [files]"),
        ('"resources/*.walle" = "shared"', "[files] 'resources/*.walle' is a pattern, and [files] has no patterns; list each file: resources/intent.walle [files]"),
        ('"resources/*.onnx" = "shared"', "is a pattern, and [files] has no patterns; it would match no file [files]"),
        ('"resources" = "shared"', "[files] 'resources' is a folder; list each file: resources/intent.walle [files]"),
    ],
)  # fmt: skip
def test_a_listed_file_that_does_not_exist_is_found(line: str, found: str) -> None:
    findings = check(main_of("1"), CONFIG + f"[files]\n{line}\n", {"resources/intent.walle": model()})
    assert [found in str(one) for one in findings] == [True], [str(one) for one in findings]


def test_events_of_the_simulation_that_do_not_exist_have_a_nearest_file() -> None:
    config = CONFIG + '[simulation]\nevents = "simulation/event.jsonl"\n'
    (finding,) = check(main_of("1"), config, {"simulation/events.jsonl": b""})
    assert str(finding) == (
        "task.toml:6:1: error: [simulation] events: file 'simulation/event.jsonl' does not exist;"
        " did you mean simulation/events.jsonl? [files]"
    )


def test_event_ids_of_the_code_are_compared_with_the_simulations_events(tmp_path: Path) -> None:
    line = b'{"event_id": "purchase", "page_id": "p", "ts_ms": 1, "contents": {}}\n'
    (tmp_path / "e.jsonl").write_bytes(line)
    config = CONFIG.replace("page_exit", "purchase") + '[simulation]\nevents = "e.jsonl"\n'
    main = main_of('ctx.events.named("purchse"), ctx.history("purchase"), ctx.events.named("refund")')
    findings = check(main, config + "[history]\ndays = 1\n", {"e.jsonl": line}, tmp_path)
    assert [str(one) for one in findings] == [
        "main.py:2:12: warning: no event is known with the event id 'purchse'; did you mean purchase? [event-id]"
    ]


def test_a_misspelt_section_is_one_finding() -> None:
    (finding,) = check(main_of("ctx.history()"), CONFIG + "[histroy]\ndays = 1\n")
    assert finding.code == "unknown-key"


def test_the_misspelt_model_of_the_trials_is_found() -> None:
    if not CASES.is_dir():
        pytest.skip("the cases are not beside this checkout")
    main = (CASES / "author" / "misspelt_model" / "main.py").read_text()
    (finding,) = check(main, CONFIG + FILES)
    assert (finding.line, finding.code) == (17, "resource")
    assert "did you mean intent?" in finding.message
