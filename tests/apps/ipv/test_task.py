import importlib
import itertools
import json
import struct
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from apps.ipv.generator import ShoppingEvents, event_bytes
from apps.ipv.logs import LOGS, generated_visits, logged_visits, open_log
from apps.ipv.make_encoder import CHUNK, STATE, WIDTH, build_encoder, trained_weights, write_encoder
from apps.ipv.make_simulation import simulation_visits
from apps.ipv.training_data import task_module
from tests.apps.ipv import slow_features
from tests.night.cases import at_night
from walle.base import plain
from walle.pipeline.events.event import BASIC_KINDS, PAGE_EXIT, Event, EventError
from walle.pipeline.events.event_log import EventLog
from walle.pipeline.stream.events import Events
from walle.task.format.bundle import TaskVersion, compile_version
from walle.task.format.config import TaskConfig
from walle.task.format.tree import TaskTree

APP = Path(__file__).parents[3] / "apps" / "ipv"
TASK, TASK_BROKEN = APP / "task", APP / "task_broken"
DATA = APP.parents[2] / "shared" / "data" / "events"
WEIGHTS = trained_weights()
EXIT = {"event_id": "page_exit", "page_id": "item_detail", "ts_ms": 1_700_000_000_000}

type Load = Callable[..., ModuleType]


class EscalationError(Exception):
    """Raised by the fake context's `escalate`; carries the payload."""

    def __init__(self, payload: Any) -> None:
        super().__init__("to the cloud")
        self.payload = payload


class FakeContext:
    """A task's context without a VM: the events of a page, the device's attributes, the encoder computed by NumPy."""

    def __init__(self, graph: Any, events: list[Event], performance: str = "middle") -> None:
        self.events = Events(events)
        self.device = {"performance": performance, "os": "android"}
        self.logged: list[str] = []
        self.runs = 0
        self.local: list[tuple[str, Any]] = []
        self._graph = graph

    def log(self, text: str) -> None:
        self.logged.append(text)

    @property
    def store(self) -> "FakeContext":
        return self

    def put(self, topic: str, payload: Any, *, upload: bool) -> None:
        assert not upload
        self.local.append((topic, payload))

    def session(self, name: str) -> "FakeContext":
        assert name == "encoder"
        return self

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        graph = self._graph(inputs)
        build_encoder(graph, WEIGHTS)
        outputs: dict[str, Any] = graph.outputs
        return outputs

    def escalate(self, payload: Any) -> Any:
        raise EscalationError(payload)


def run_task(main: ModuleType, ctx: FakeContext) -> dict[str, Any]:
    """Return the uploaded output, and the feature that stays on the device as `feature`."""
    output: dict[str, Any] = main.postprocess(ctx, main.execute(ctx, main.preprocess(ctx, EXIT)))
    assert "feature" not in output
    ((topic, feature),) = ctx.local
    assert topic == "feature"
    return {**output, "feature": feature if isinstance(feature, dict) else feature.decode()}


def visits() -> Iterator[list[Event]]:
    visit: list[Event] = []
    for _, event in ShoppingEvents(11, "device"):
        visit.append(event)
        if event.event_id == PAGE_EXIT:
            yield visit
            visit = []


def event(kind: str, ts_ms: int, **contents: Any) -> Event:
    return Event(kind, "item_detail", ts_ms, contents)


def a_visit(length: int) -> list[Event]:
    middle = [event("exposure", 1000 + n, item_id=str(n), slot=n) for n in range(length - 2)]
    return [event("page_enter", 1000), *middle, event("page_exit", 5000 + length)]


def test_task_toml_is_taken_and_its_simulation_is_there() -> None:
    config = TaskConfig.parse((TASK / "task.toml").read_bytes(), "task.toml")
    assert config.name == "ipv"
    assert config.trigger.trigger_ids == ("page_exit",)
    assert config.phases == {"preprocess": "device", "execute": "auto", "postprocess": "device"}
    assert config.limits.items() >= {"deadline_ms": 2000, "memory_mb": 32}.items()
    assert config.files == {"resources/encoder.walle": "shared"}
    assert (TASK / config.simulation_events).is_file()
    assert "name" in tomllib.loads((TASK / "task.toml").read_text())["task"]


@pytest.mark.parametrize("folders", [(TASK,), (TASK, TASK_BROKEN)])
def test_both_versions_can_be_bundled(tmp_path: Path, folders: tuple[Path, ...]) -> None:
    files = {"resources/encoder.walle": write_encoder(tmp_path / "encoder.walle").read_bytes()}
    for folder in folders:
        paths = [path for path in folder.rglob("*") if path.suffix in {".py", ".toml", ".jsonl"}]
        files |= {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    version = TaskVersion.parse(
        TaskTree(scenario="shop", task="ipv", version=f"v{len(folders)}", commit="0" * 40, files=files)
    )
    config, compiled = version.config, compile_version(version)
    assert config.name == "ipv"
    modules = {"actions.pyc", "features.pyc", "fields.pyc", "main.pyc", "steps.pyc"}
    assert set(compiled) == modules | {"resources/encoder.walle", "smoke.jsonl"}


def test_sizes_fall_as_in_the_paper(load_task: Load, numpy_graph: Any) -> None:
    main = load_task(TASK)
    raw, features = 0, 0
    for _, visit in zip(range(200), visits(), strict=False):
        output = run_task(main, FakeContext(numpy_graph, visit))
        raw += sum(map(event_bytes, visit))
        features += len(json.dumps(output["feature"], separators=(",", ":")))
        assert len(output["encoding"]) == 128
    assert 1000 < features / 200 < 1300  # the paper's feature has 1.3 KB
    assert features < raw / 10


def test_the_feature_of_a_known_visit(load_task: Load, numpy_graph: Any) -> None:
    visit = [
        event(
            "page_enter", 10_000, item_id="600", category="tea", price_cents=1290, source="search", battery_level=0.5
        ),
        event("exposure", 10_100, item_id="7", slot=1),
        event("page_scroll", 11_000, depth=0.5, velocity=100.0),
        event("exposure", 11_100, item_id="8", slot=2),
        event("exposure", 11_200, item_id="7", slot=3),
        event("page_scroll", 12_000, depth=0.2, velocity=300.0),
        event("click", 13_000, widget_id="reviews", x=5),
        event("click", 14_000, widget_id="button_add_cart", action="add_cart", item_id="600", sku_id="99"),
        event("page_exit", 20_000, reason="back", item_id="600"),
    ]
    feature = run_task(load_task(TASK), FakeContext(numpy_graph, visit))["feature"]
    assert (feature["page_id"], feature["item_id"], feature["category"]) == ("item_detail", "600", "tea")
    assert (feature["price_cents"], feature["source"], feature["exit_reason"]) == (1290, "search", "back")
    assert (feature["enter_ms"], feature["exit_ms"], feature["dwell_ms"]) == (10_000, 20_000, 10_000)
    assert feature["events"] == 9
    assert feature["counts"] == {"page_enter": 1, "page_scroll": 2, "exposure": 3, "click": 2, "page_exit": 1}
    assert feature["times"]["exposure"] == {"first_ms": 100, "last_ms": 1200, "mean_gap_ms": 550.0}
    assert feature["gaps_ms"] == {"mean": 1250.0, "std": 1836.4, "quartiles": [100, 800, 1000], "max": 6000}
    assert feature["scroll"]["max"] == 0.5
    assert (feature["scroll"]["down"], feature["scroll"]["up"], feature["scroll"]["turns"]) == (0.5, 0.3, 1)
    assert feature["exposed"] == {"distinct": 2, "deepest_slot": 3, "item_ids": ["7", "8"], "seen_ms": [100, 1100]}
    assert feature["clicks"][1] == {
        "at_ms": 4000, "widget_id": "button_add_cart", "action": "add_cart", "item_id": "600", "sku_id": "99"
    }  # fmt: skip
    assert feature["widgets"] == {"reviews": 1, "button_add_cart": 1}
    assert feature["actions"] == {"add_favorite": 0, "add_cart": 1, "purchase": 0}
    assert "battery" not in json.dumps(feature)


def test_parts_without_events_are_absent(load_task: Load, numpy_graph: Any) -> None:
    visit = [event("page_enter", 1000, category="tea"), event("page_exit", 4000)]
    assert run_task(load_task(TASK), FakeContext(numpy_graph, visit))["feature"] == {
        "version": 2, "page_id": "item_detail", "category": "tea", "counts": {"page_enter": 1, "page_exit": 1},
        "enter_ms": 1000, "exit_ms": 4000, "dwell_ms": 3000, "events": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mapping", "visits", "raw_bytes", "most_bytes"),
    [
        ("shop_app_events_a.jsonl.gz", "shop_app_events", 1284, 6143, 460),
        *at_night(("web_shop_hits_a.csv.gz", "web_shop_hits", 10548, 676, 270)),
        ("snowplow_ecommerce_events.csv", "snowplow_ecommerce", 440, 1603, 300),
    ],
)
def test_features_of_real_logs_are_small(
    load_task: Load, name: str, mapping: str, visits: int, raw_bytes: int, most_bytes: int
) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"the real log {name} is not at {DATA}")
    load_task(TASK)
    features = importlib.import_module("features")
    raw, sizes = 0, []
    for _, visit in logged_visits(EventLog(DATA / name, APP / "mappings" / f"{mapping}.toml")):
        raw += sum(map(event_bytes, visit))
        sizes.append(len(json.dumps(features.ipv_feature(Events(visit)), separators=(",", ":"))))
    assert len(sizes) == visits
    assert raw / visits == pytest.approx(raw_bytes, rel=0.02)
    assert sum(sizes) / visits < most_bytes


def test_the_encoding_alone_travels_with_the_keys_of_its_visit(load_task: Load, numpy_graph: Any) -> None:
    main = load_task(TASK)
    ctx = FakeContext(numpy_graph, [event("page_enter", 1000, item_id="600", category="tea"), event("page_exit", 4000)])
    output = main.postprocess(ctx, main.execute(ctx, main.preprocess(ctx, EXIT)))
    encoding = output.pop("encoding")
    assert len(encoding) == 128
    assert output == {"page_id": "item_detail", "item_id": "600", "enter_ms": 1000}
    assert len(plain.encode({**output, "encoding": encoding})) < 220


def test_the_lists_of_a_feature_have_limits(load_task: Load, numpy_graph: Any) -> None:
    middle = [event("exposure", 1000 + n, item_id=f"{n:03d}".ljust(100, "x"), slot=n) for n in range(900)]
    middle += [event("click", 3000 + n, widget_id=f"w{n}") for n in range(900)]
    visit = [event("page_enter", 1000), *middle, event("page_exit", 9000)]
    ctx = FakeContext(numpy_graph, visit)
    output = run_task(load_task(TASK), ctx)
    assert len(json.dumps(output["feature"])) < 5000
    assert output["feature"]["exposed"]["distinct"] == 900
    assert len(output["encoding"]) == 128
    assert any("1802 events" in text for text in ctx.logged)


def test_a_step_says_what_happened(load_task: Load) -> None:
    load_task(TASK)
    import steps  # type: ignore[import-not-found]

    rows = steps.step_rows([
        event("page_enter", 1000),
        event("page_scroll", 2000, depth=0.4),
        event("click", 3000, action="purchase", widget_id="button_buy_now"),
        event("tracker_own", 3000),
    ])  # fmt: skip
    assert (len(rows), {len(row) for row in rows}) == (CHUNK, {WIDTH})
    assert [row[0] for row in rows] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [row[1:6].index(1.0) for row in rows[:3]] == [0, 1, 3]
    assert not any(rows[3][1:6])
    assert rows[1][6] == pytest.approx(np.log(2) / 4)
    assert (rows[1][8], rows[1][9]) == (0.4, 0.4)
    assert (rows[2][8], rows[2][9]) == (0.4, 0.0)
    assert rows[2][11:14] == [0.0, 0.0, 1.0]
    assert rows[2][15] != 0.0
    assert not any(map(any, rows[4:]))


@pytest.mark.parametrize(("length", "rows"), [(2, 8), (8, 8), (9, 16), (64, 64), (65, 72), (256, 256), (300, 256)])
def test_steps_come_in_whole_chunks(load_task: Load, numpy_graph: Any, length: int, rows: int) -> None:
    main = load_task(TASK)
    ctx = FakeContext(numpy_graph, a_visit(length))
    assert main.preprocess(ctx, EXIT)["steps"].shape == (rows, WIDTH)
    run_task(main, ctx)
    assert ctx.runs == rows / CHUNK


def test_a_visit_without_events_has_a_feature_too(load_task: Load, numpy_graph: Any) -> None:
    output = run_task(load_task(TASK), FakeContext(numpy_graph, []))
    assert output["feature"]["events"] == 0
    assert output["encoding"] == bytes(128)


@pytest.mark.parametrize(("performance", "length", "escalates"), [
    ("low", 64, False), ("low", 65, True), ("middle", 65, False), ("high", 256, False),
])  # fmt: skip
def test_only_long_visits_on_low_devices_go_to_the_cloud(
    load_task: Load, numpy_graph: Any, performance: str, length: int, escalates: bool
) -> None:
    main = load_task(TASK)
    ctx = FakeContext(numpy_graph, a_visit(length), performance)
    if escalates:
        with pytest.raises(EscalationError):
            run_task(main, ctx)
    else:
        run_task(main, ctx)


def test_the_cloud_makes_the_encoding_that_the_device_would(load_task: Load, numpy_graph: Any) -> None:
    main = load_task(TASK)
    visit = a_visit(90)
    low, middle = (FakeContext(numpy_graph, visit, performance) for performance in ("low", "middle"))
    with pytest.raises(EscalationError) as escalation:
        main.execute(low, main.preprocess(low, EXIT))
    cloud = FakeContext(numpy_graph, [], "low")  # the cloud has the payload only
    there = main.postprocess(low, main.execute(cloud, escalation.value.payload))
    here = run_task(main, middle)
    assert low.local == middle.local  # both encoded
    assert there == {name: value for name, value in here.items() if name != "feature"}


def test_like_visits_have_near_encodings(load_task: Load, numpy_graph: Any) -> None:
    main = load_task(TASK)

    def encoding(visit: list[Event]) -> Any:
        return np.array(struct.unpack("<32f", run_task(main, FakeContext(numpy_graph, visit))["encoding"]))

    buying = [event("click", 1500 + n * 400, action="add_cart", widget_id="button_add_cart") for n in range(8)]
    scrolling = [event("page_scroll", 1500 + n * 400, depth=n / 10) for n in range(8)]
    same_but_slower = [event("page_scroll", 1500 + n * 420, depth=n / 10) for n in range(8)]
    enter, leave = event("page_enter", 1000), event("page_exit", 6000)
    one, near, far = (encoding([enter, *middle, leave]) for middle in (scrolling, same_but_slower, buying))
    assert np.linalg.norm(one - near) * 5 < np.linalg.norm(one - far)


contents = st.dictionaries(
    st.sampled_from(["item_id", "depth", "velocity", "slot", "action", "widget_id", "price_cents", "reason", "sku_id"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80) | st.binary(max_size=4)
    | st.sampled_from(["add_cart", "purchase", 10**5000]) | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)  # fmt: skip
any_events = st.lists(
    st.builds(Event, st.sampled_from([*BASIC_KINDS, "other"]), st.text(max_size=5), st.integers(0, 2**53), contents),
    max_size=80,
)


@pytest.mark.night
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=any_events)
def test_no_event_log_breaks_the_task(load_task: Load, numpy_graph: Any, events: list[Event]) -> None:
    output = run_task(load_task(TASK), FakeContext(numpy_graph, events))
    state = struct.unpack("<32f", output["encoding"])
    assert len(state) == STATE
    assert all(-1 <= value <= 1 for value in state)
    json.dumps(output["feature"], allow_nan=False)
    assert sum(output["feature"]["counts"].values()) <= output["feature"]["events"] == len(events)


def is_taken(event: Event) -> bool:
    """Return whether a device takes the event: it refuses one with an int of more than 64 bits."""
    try:
        event.encode()
    except EventError:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(events=any_events)
@example(
    events=[Event("page_enter", "", ts_ms, {}) for ts_ms in (1, 216, 0, 0, 0, 2**53 - 4)]
)  # gaps of more than 2**53
def test_the_feature_is_byte_for_byte_that_of_plain_python(events: list[Event]) -> None:
    events = list(filter(is_taken, events))
    feature = task_module("features").ipv_feature(Events(events))
    expected = slow_features.ipv_feature(Events(events))
    assert plain.encode(feature) == plain.encode(expected)
    assert task_module("features").encoded_feature(Events(events)).data == plain.encode(expected)


def test_features_of_generated_and_real_visits_are_byte_for_byte_those_of_plain_python() -> None:
    visits = [visit for _, visit in generated_visits(3, 20, 20)]
    for name in LOGS:
        visits += [visit for _, visit in itertools.islice(logged_visits(open_log(DATA, name)), 400)]
    encoded_feature = task_module("features").encoded_feature
    for visit in visits:
        text = json.dumps([event.to_dict() for event in visit]).encode()
        expected = plain.encode(slow_features.ipv_feature(Events(visit)))
        assert encoded_feature(Events.from_json(text)).data == expected
        assert encoded_feature(Events.from_bytes(Events(visit).encode())).data == expected


def simulation() -> list[list[Event]]:
    lines = (TASK / "simulation" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    found: list[list[Event]] = [[]]
    for line in lines:
        found[-1].append(Event.from_dict(json.loads(line)))
        if found[-1][-1].event_id == PAGE_EXIT:
            found.append([])
    assert not found.pop()
    return found


def test_the_simulation_is_what_the_generator_made() -> None:
    assert simulation() == simulation_visits()
    times = [event.ts_ms for visit in simulation() for event in visit]
    assert times == sorted(times)
    assert 24 <= len(simulation()) <= 60
    assert (TASK / "simulation" / "events.jsonl").stat().st_size < 300_000


@pytest.mark.parametrize("folders", [(TASK,), (TASK, TASK_BROKEN)])
def test_the_simulation_passes_with_both_versions(load_task: Load, numpy_graph: Any, folders: tuple[Path, ...]) -> None:
    main = load_task(*folders)
    for visit in simulation():
        assert len(run_task(main, FakeContext(numpy_graph, visit))["encoding"]) == 128


def test_the_broken_version_raises_where_nothing_is_clicked_and_only_there(load_task: Load, numpy_graph: Any) -> None:
    main = load_task(TASK, TASK_BROKEN)
    failed = 0
    for _, visit in zip(range(300), visits(), strict=False):
        ctx = FakeContext(numpy_graph, visit)
        if any(event.event_id == "click" for event in visit):
            run_task(main, ctx)
        else:
            failed += 1
            with pytest.raises(ZeroDivisionError):
                run_task(main, ctx)
    assert 0.15 < failed / 300 < 0.26
