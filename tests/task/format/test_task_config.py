import contextlib
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.tasks import CONFIG
from walle.base.names import is_name
from walle.protocol import PHASES, ContentsTest, Destination, ExclusiveFile, TriggerCondition
from walle.task.format.config import LIMITS, MAX_CONFIG_BYTES, PLACES, TaskConfig, TaskConfigError, load_config

REST = {"log_kb": 64, "output_kb": 1024, "recursion": 1000, "queue": 16}
POLICIES = {"queue_full": "block", "outbox_full": "block"}

FULL = b"""
[task]
name = "ipv"
[trigger]
sequence = ["page_enter", "page_exit"]
without_visit = true
[phases]
execute = "auto"
postprocess = "cloud"
[files]
"resources/encoder.walle" = "shared"
"resources/user.walle" = "cloud"
[[exclusive]]
name = "gallery.json"
[[exclusive]]
name = "face.walle"
required = false
max_bytes = 5000
[limits]
deadline_ms = 250
queue_full = "drop-newest"
[simulation]
events = "simulation/events.jsonl"
"""


def test_the_options_of_a_trigger_are_read() -> None:
    options = b"within_ms = 5000\nskip_till_next = true\ncooldown_ms = 60000\n[trigger.where]\n"
    where = b'field = "item.price"\nis = ">="\nvalue = 10\n'
    config = TaskConfig.parse(CONFIG.replace(b'["page_exit"]\n', b'["a", "*"]\n' + options + where), "t.toml")
    test = ContentsTest("item.price", ">=", 10)
    assert config.trigger == TriggerCondition(("a", "*"), 5000, skip_till_next=True, cooldown_ms=60000, where=test)
    with pytest.raises(TaskConfigError, match=r"\[trigger\] where.is must be one of"):
        TaskConfig.parse(
            CONFIG.replace(b'["page_exit"]\n', b'["a"]\n[trigger.where]\n' + where.replace(b">", b"~")), "t.toml"
        )


def test_topics_of_other_tasks_are_listed() -> None:
    config = TaskConfig.parse(CONFIG + b'[reads]\ntopics = ["rank", "browse/clicks.v2"]\n', "t.toml")
    assert config.reads == ("browse/clicks.v2", "rank")
    assert TaskConfig.parse(CONFIG + b"[reads]\ntopics = []\n", "t.toml").reads == ()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"\[reads\] topics is missing"),
        ("topic = []", r"\[reads\] has an unknown key 'topic'; did you mean topics"),
        ('topics = "rank"', "must be a list of topics"),
        ("topics = [1]", "must be a list of topics"),
        ('topics = ["shop/rank/x"]', r"\[reads\] topics 'shop/rank/x' is neither a task of this scenario"),
        ('topics = ["rank/"]', "is neither a task"),
        ('topics = ["*"]', "is neither a task"),
        ('topics = ["rank", "rank"]', "lists a topic twice"),
        ('topics = ["ipv/clicks"]', "'ipv/clicks' is the task's own, which it may always read"),
        (f"topics = {[f'rank/{number}' for number in range(101)]}", "has 101 topics, more than 100"),
    ],
)
def test_wrong_reads_are_refused(table: str, message: str) -> None:
    with pytest.raises(TaskConfigError, match=message):
        TaskConfig.parse(CONFIG + f"[reads]\n{table}\n".encode(), "t.toml")


def test_the_destination_of_outputs_is_read() -> None:
    for table, destination in (
        (b"", Destination.CLOUD),
        (b"[output]\n", Destination.CLOUD),
        (b'[output]\ndestination = "device"\n', Destination.DEVICE),
        (b'[output]\ndestination = "app"\n', Destination.APP),
    ):
        assert TaskConfig.parse(CONFIG + table, "t.toml").output.destination is destination
    for table, message in (
        (b'destination = "phone"', r"\[output\] destination must be one of cloud, device, app; is 'phone'"),
        (b"destination = 1", r"\[output\] destination must be one of"),
        (b'destinaton = "app"', r"\[output\] has an unknown key 'destinaton'; did you mean destination"),
    ):
        with pytest.raises(TaskConfigError, match=message):
            TaskConfig.parse(CONFIG + b"[output]\n" + table + b"\n", "t.toml")


def test_every_part_is_read() -> None:
    assert TaskConfig.parse(FULL, "task.toml") == TaskConfig(
        name="ipv",
        trigger=TriggerCondition(("page_enter", "page_exit"), without_visit=True),
        phases={"preprocess": "device", "execute": "auto", "postprocess": "cloud"},
        files={"resources/encoder.walle": "shared", "resources/user.walle": "cloud"},
        exclusive=(
            ExclusiveFile(name="gallery.json"),
            ExclusiveFile(name="face.walle", required=False, max_bytes=5000),
        ),
        limits={"deadline_ms": 250, "memory_mb": 32} | REST,
        policies=POLICIES | {"queue_full": "drop-newest"},
        simulation_events="simulation/events.jsonl",
    )


def test_a_dictionary_is_a_shared_file() -> None:
    listed = CONFIG + b'[files]\n"resources/f.dict" = "shared"\n"resources/own.dict" = "cloud"\n'
    config = TaskConfig.parse(listed + b'[tunnel]\ndictionary = "resources/f.dict"\n', "task.toml")
    assert config.dictionary == "resources/f.dict"
    for wrong in (b'dictionary = "resources/own.dict"', b'dictionary = "other"', b"dictionary = 5", b"dict = 1", b""):
        with pytest.raises(TaskConfigError, match=r"\[tunnel\]"):
            TaskConfig.parse(listed + b"[tunnel]\n" + wrong + b"\n", "task.toml")


def test_missing_keys_get_their_defaults() -> None:
    config = TaskConfig.parse(CONFIG, "task.toml")
    assert (config.limits, config.files) == ({"deadline_ms": 500, "memory_mb": 32} | REST, {})
    assert config.policies == POLICIES
    assert set(config.phases.values()) == {"device"}
    assert config.simulation_events == ""


@pytest.mark.parametrize(
    ("data", "section", "message"),
    [
        (b"", "task", "t.toml: [task] is missing"),
        (b'[task]\nname = "ipv"', "trigger", "t.toml: [trigger] is missing"),
        (b"[task]\n[trigger]\nsequence = ['a']", "task", "t.toml:1: [task] name is missing"),
        (CONFIG.replace(b"ipv", b"IPV"), "task", "t.toml:2: [task] name must be lower-case letters"),
        (CONFIG.replace(b"ipv", b"../ipv"), "task", "is '../ipv'"),
        (
            CONFIG.replace(b'["page_exit"]', b"[]"),
            "trigger",
            "[trigger] sequence must be a list of 1 to 64 trigger ids",
        ),
        (CONFIG.replace(b'["page_exit"]', b'"page_exit"'), "trigger", "is 'page_exit'"),
        (CONFIG.replace(b'["page_exit"]', b'["a", 3]'), "trigger", "[trigger] sequence[1] must be an event id"),
        (CONFIG + b"[trigers]\n", "", "t.toml:5: has an unknown section [trigers]; did you mean trigger?"),
        (CONFIG + b"[xyz]\n", "", "unknown section [xyz]; there are task, trigger, phases"),
        (b"limits = 3\n" + CONFIG, "", "limits must be a section: write [limits] on a separate line"),
        (CONFIG + b"[limits]\ndeadline = 3", "limits", "unknown key 'deadline'; did you mean deadline_ms?"),
        (CONFIG + b"[limits]\ndeadline_ms = 0", "limits", "deadline_ms must be a whole number from 1 to 60000, is 0"),
        (CONFIG + b"[limits]\nmemory_mb = true", "limits", "is True"),
        (CONFIG + b"[limits]\nqueue = 0", "limits", "queue must be a whole number from 1 to 1024, is 0"),
        (
            CONFIG + b'[limits]\nqueue_full = "drop"',
            "limits",
            "queue_full must be one of block, drop-oldest, drop-newest; is 'drop'",
        ),
        (
            CONFIG + b'[limits]\noutbox_full = "drop-oldest"',
            "limits",
            "outbox_full must be one of block, drop-newest; is 'drop-oldest'",
        ),
        (
            CONFIG.replace(b"[trigger]", b"[trigger]\nwithout_visit = 1"),
            "trigger",
            "[trigger] without_visit must be true or false, is 1",
        ),
        (CONFIG + b'[phases]\nexecute = "devise"', "phases", "is 'devise'; did you mean device?"),
        (CONFIG + b"[phases]\nexecute = [1]", "phases", "must be one of device, cloud, auto; is [1]"),
        (CONFIG + b'[files]\n"a" = "public"', "files", "a must be one of shared, cloud; is 'public'"),
        (CONFIG + b'[files]\n"a" = "exclusive"', "files", "replace this line with a table [[exclusive]] with its name"),
        (CONFIG + b"[exclusive]\n", "", "write [[exclusive]] on a separate line"),
        (CONFIG + b"[[exclusive]]\n", "exclusive", "1.name must be letters, digits and ._-"),
        (CONFIG + b'[[exclusive]]\nname = "../a"\n', "exclusive", "1.name must be letters, digits and ._-"),
        (CONFIG + b'[[exclusive]]\nname = "a"\nrequired = 1\n', "exclusive", "1.required must be true or false"),
        (CONFIG + b'[[exclusive]]\nname = "a"\nmax_bytes = 0\n', "exclusive", "1.max_bytes must be a whole number"),
        (CONFIG + b'[[exclusive]]\nname = "a"\nsize = 0\n', "exclusive", "1 has an unknown key 'size'"),
        (CONFIG + b'[[exclusive]]\nname = "a"\n' * 1 + b'[[exclusive]]\nname = "a"\n', "exclusive", "listed twice"),
        (CONFIG + b'[files]\n"../a" = "shared"', "files", "must be a plain path from the task's root"),
        (CONFIG + b'[simulation]\nevents = "/etc/passwd"', "simulation", "must be a plain path"),
        (CONFIG + b'[simulation]\nevents = "e"\nsmoke_events = 257', "simulation", "a whole number from 0 to 256"),
        (CONFIG + b'[simulation]\nevents = "e"\nsmoke_events = true', "simulation", "a whole number from 0 to 256"),
        (b"[task", "", "t.toml: is not TOML: Expected"),
        (b"\xff", "", "t.toml: is not UTF-8 (byte 0)"),
        (b"#" * (MAX_CONFIG_BYTES + 1), "", "has 65537 bytes, more than 65536"),
        (b"a = " + b"[" * 5000, "", "is not TOML"),
    ],
)
def test_error_names_file_section_and_key(data: bytes, section: str, message: str) -> None:
    with pytest.raises(TaskConfigError) as caught:
        TaskConfig.parse(data, "t.toml")
    assert message in str(caught.value)
    assert (caught.value.where, caught.value.section) == ("t.toml", section)


ids = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\\x7f'), min_size=1, max_size=9
)


@given(
    name=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True),
    sequence=st.lists(ids, min_size=1, max_size=8),
    phases=st.dictionaries(st.sampled_from(PHASES), st.sampled_from(PLACES)),
    limits=st.fixed_dictionaries({}, optional={key: st.integers(low, high) for key, (_, low, high) in LIMITS.items()}),
)
def test_a_written_config_is_read_back(
    name: str, sequence: list[str], phases: dict[str, str], limits: dict[str, int]
) -> None:
    lines = ["[task]", f'name = "{name}"', "[trigger]", f"sequence = [{', '.join(f'"{item}"' for item in sequence)}]"]
    lines += ["[phases]", *(f'{phase} = "{place}"' for phase, place in phases.items())]
    lines += ["[limits]", *(f"{key} = {value}" for key, value in limits.items())]
    config = TaskConfig.parse("\n".join(lines).encode(), "task.toml")
    assert (config.name, list(config.trigger.trigger_ids)) == (name, sequence)
    assert config.phases == {**dict.fromkeys(PHASES, "device"), **phases}
    assert config.limits == {**{key: default for key, (default, _, _) in LIMITS.items()}, **limits}


toml_values = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.sampled_from(['"device"', '"a/b"', '""', '"shared"', "1979-05-27", "nan"]),
    lambda inner: st.lists(inner, max_size=3).map(
        lambda items: f"[{', '.join(map(str, items))}]".replace("T", "t").replace("F", "f")
    ),
    max_leaves=4,
).map(lambda value: str(value).replace("True", "true").replace("False", "false"))


@given(
    st.dictionaries(
        st.sampled_from(["task", "trigger", "phases", "files", "limits", "simulation", "other"]),
        st.dictionaries(
            st.sampled_from(["name", "sequence", "execute", "deadline_ms", "events", '"a/b"', "x"]), toml_values
        ),
    )
)
def test_any_toml_is_taken_or_refused_with_a_reason(document: dict[str, dict[str, Any]]) -> None:
    lines = []
    for section, keys in document.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in keys.items())]
    data = "\n".join(lines)
    tomllib.loads(data)
    with contextlib.suppress(TaskConfigError):
        config = TaskConfig.parse(data.encode(), "task.toml")
        assert is_name(config.name)
        assert config.trigger.trigger_ids


@pytest.mark.parametrize(
    "text",
    [
        "a." * 32_000 + "a = 1\n",
        "[task]\nname = 'x'\n[" + "a." * 31_000 + "a]\n",
        "x = { " + "a." * 31_000 + "a = 1 }\n",
        ("a." * 499 + "b = 1\n") * 60,
        "a" + " .a" * 21_000,
    ],
)
def test_a_key_of_many_parts_costs_no_more_than_its_length(text: str) -> None:
    """The parser of the standard library took 12 s of CPU time for the first."""
    began = time.process_time()
    with pytest.raises(TaskConfigError):
        TaskConfig.parse(text.encode(), "task.toml")
    assert time.process_time() - began < 1.0


def test_a_line_of_too_many_dots_is_refused_with_its_number() -> None:
    with pytest.raises(TaskConfigError, match=r"task\.toml:2: has 501 dots, and a line may have 500"):
        load_config(b"[task]\nname = '" + b"." * 501 + b"'\n", "task.toml")
