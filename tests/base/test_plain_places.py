"""Plain data means the same everywhere: what one place takes, each gives back; what one refuses, each refuses."""

import asyncio
import dataclasses
import datetime
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from walle.base import plain
from walle.engine_ext._core import packed_value
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.put import PayloadError, Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_queries import query_payloads
from walle.pipeline.features.task_states import TaskState
from walle.protocol import Manifest, TriggerCondition
from walle.vm import VM, TaskError, VmHost

MAIN = """
def echo(value):
    return value

def make(source):
    import datetime
    return {"output": {"prices": [1, 2, eval_(source, {"datetime": datetime})]}}

from json import dumps
eval_ = dumps.__globals__["__builtins__"]["eval"]
"""

_TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**63, 2**63 - 1, 2**64 - 1, -(2**63), 0, -1]),
    st.floats(),
    _TEXT,
    st.binary(max_size=5),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4) | st.tuples(inner, inner)


VALUES = st.recursive(_SCALARS, _containers, max_leaves=15)
REFUSED = [
    {10**5000: 1}, {(10**5000,): 1},
    {1: 2}, {(1, 2): 3}, {b"x": 1}, {None: 1}, {1.5: 1}, {"\ud800": 1}, "\ud800", 10**400, 2**64, -(2**63) - 1,
    {1}, frozenset(), 1j, datetime.date(2026, 1, 2), object(), np.array(["text"]), np.datetime64("2026-01-02"),
]  # fmt: skip
SCALARS = [np.float32(1.5), np.float16(0.5), np.int64(-3), np.uint8(200), np.bool_(True), np.ones(())]


MANIFEST = Manifest(
    scenario="shop",
    task="visits",
    version="v1",
    commit="",
    bytecode=(),
    trigger=TriggerCondition.of(["x"]),
    phases={},
    limits={},
    files=(),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """A boundary: `cross` gives back what came through; tuples are lists beyond all but VMs."""

    name: str
    cross: Callable[[Any], Coroutine[Any, Any, Any]]


async def _codec(value: Any) -> Any:
    return plain.decode(plain.encode(value))


class _Store:
    def __init__(self, path: Path) -> None:
        self.store = FeatureStore(path)
        self.count = 0

    async def cross(self, value: Any) -> Any:
        self.count += 1
        topic = f"shop/visits/topic-{self.count}"
        await self.store.put(topic, value)
        (found,) = await query_payloads(self.store, MANIFEST, 0, topic)
        outbox = Outbox(self.store)
        *_, upload = await outbox.batch(self.store.state.acked, 1_000_000)
        assert upload.topic == topic
        assert plain.encode(plain.decode(upload.payload)) == plain.encode(found)
        return found


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def places(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    folder = tmp_path_factory.mktemp("task")
    (folder / "main.py").write_text(MAIN)
    host = VmHost()
    store = _Store(tmp_path_factory.mktemp("store") / "features.db")

    async def start() -> list[VM]:
        await store.store.start()
        return [VM(folder), VM(folder, host=host)]

    vms = runner.run(start())
    yield [
        Place("codec", _codec),
        Place("VM", lambda value: vms[0].call("echo", value)),
        Place("VM in a host", lambda value: vms[1].call("echo", value)),
        Place("store and upload", store.cross),
    ]

    async def stop() -> None:
        for vm in vms:
            vm.close()
            assert await vm.wait_closed()
        await store.store.close()

    runner.run(stop())
    host.close()


_EACH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_plain_data_comes_back_from_every_place(runner: asyncio.Runner, places: list[Place]) -> None:
    @_EACH
    @given(VALUES)
    @example({"": [math.nan, math.inf, -0.0, (1, [()])]})
    def check(value: Any) -> None:
        expected = plain.encode(value)
        assert packed_value(value) == expected
        for place in places:
            assert plain.encode(runner.run(place.cross(value))) == expected, place.name

    check()


def test_a_refused_value_is_refused_at_any_depth_with_its_path(runner: asyncio.Runner, places: list[Place]) -> None:
    steps = st.lists(st.integers(0, 3) | st.sampled_from(["prices", "list price", "ü", "1"]), max_size=5)

    @_EACH
    @given(st.sampled_from(range(len(REFUSED))), steps)
    def check(which: int, path: list[int | str]) -> None:
        value, where = REFUSED[which], ""
        for step in reversed(path):
            value = [None] * step + [value] if isinstance(step, int) else {"a": 1, step: value}
        for step in path:
            text = f"[{step}]" if isinstance(step, int) else f".{step}" if step == "prices" else f'["{step}"]'
            where += text
        for place in places:
            with pytest.raises((plain.PlainDataError, TypeError, PayloadError)) as caught:
                runner.run(place.cross(value))
            text = str(caught.value)
            assert re.search(rf"(value|args\[0\]|payload){re.escape(where)}(\[[^ ]*\])? (is|has)", text), (place, text)

    check()


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_scalars_of_array_libraries_are_numbers(runner: asyncio.Runner, places: list[Place], value: Any) -> None:
    for place in places:
        (found,) = runner.run(place.cross([value]))
        assert type(found) in (bool, int, float), place.name
        assert found == value


def test_depth_has_one_limit(runner: asyncio.Runner, places: list[Place]) -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    for place in places:
        around = 1 if place.name.startswith("VM") else 0  # the arguments' tuple
        found = runner.run(place.cross(nested(plain.MAX_LEVELS - around - 1)))
        assert found == nested(plain.MAX_LEVELS - around - 1)
        with pytest.raises((plain.PlainDataError, TypeError, PayloadError), match="nested deeper than 100 levels"):
            runner.run(place.cross(nested(plain.MAX_LEVELS + 1)))


def test_a_task_learns_the_place_of_what_was_refused(runner: asyncio.Runner, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MAIN)

    async def check() -> None:
        for host in (None, VmHost()):
            vm = VM(tmp_path, host=host)
            for source, text in (
                ("{1: 2}", r"result\.output\.prices\[2\] has the key 1 of type int; keys of plain data are str"),
                ("{(1, 2): 3}", r"result\.output\.prices\[2\] has the key \(1, 2\) of type tuple"),
                ("10**400", r"result\.output\.prices\[2\] is an int of more than 64 bits; .*str\(value\)"),
                ("'\\ud800'", r"result\.output\.prices\[2\] is text with a lone surrogate"),
                ("{3, 4}", r"result\.output\.prices\[2\] is of type set.*sorted\(value\)"),
                ("datetime.datetime(2026, 1, 2)", r"result\.output\.prices\[2\] is of type datetime.*isoformat"),
            ):
                with pytest.raises(TaskError, match=text):
                    await vm.call("make", source)
            vm.close()
            assert await vm.wait_closed()
            if host is not None:
                await asyncio.to_thread(host.close)

    runner.run(check())


# Rows that a walle before this rule stored: MessagePack, but not plain data.
OLD_ROWS = [
    b"\x81\x01\x02",
    b"\x81\x92\x01\x02\x03",
    b"\x81\xc4\x01x\x01",
    b"\x91" * 150 + b"\xc0",
    b"\xc1",
    b"\x92\x01",
]


@pytest.mark.asyncio
async def test_rows_that_cannot_be_decoded_are_reported_and_the_query_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        for number, row in enumerate(OLD_ROWS):
            await store.put_all([Put("shop/visits", plain.encode({"n": number}), False)], position=2 * number)
            await store.put_all([Put("shop/visits", row, False)], position=2 * number + 1)
        found: list[Any] = []
        while page := await query_payloads(store, MANIFEST, 0, "shop/visits", 0, 4, len(found)):
            found = page + found
        assert found == [{"n": number} for number in range(len(OLD_ROWS))]
        assert store.report.undecodable_features == len(OLD_ROWS)
        (line,) = store.report.lines()
        assert re.search(
            r"6 features could not be decoded; the last: topic 'shop/visits', of the event at position \d+: .+", line
        )
        assert "could not be decoded" in caplog.text


@pytest.mark.asyncio
async def test_a_state_that_cannot_be_decoded_is_reported_and_begins_empty(tmp_path: Path) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        store.activate_state(TaskState(task="t", version=1, data=OLD_ROWS[0]))
        await store.put("topic", 1)
    async with FeatureStore(tmp_path / "features.db") as store:
        assert store.task_states.active("t") is None
        assert store.report.lines() == ("1 states of tasks failed their checksum or could not be decoded",)


# A text that names a thing and not its fault is cut at both ends of a host's socket.
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{'k' * 3_000_000: set()}", "is of type set"),
        ("{chr(0x1F600) * 3_000_000: set()}", "is of type set"),
        ("{('k', chr(0x1F600) * 3_000_000): 1}", "of type tuple"),
        ("type('C' * 3_000_000, (), {})()", "is not plain data"),
        ("{type(chr(0x1F600) * 3_000_000, (), {})(): 1}", "keys of plain data are str"),
    ],
)
def test_a_fault_is_named_beside_long_names(runner: asyncio.Runner, tmp_path: Path, value: str, reason: str) -> None:
    (tmp_path / "main.py").write_text(f"def make():\n    return {value}\n")

    async def refusals() -> list[str]:
        host = VmHost()
        texts = []
        for vm in (VM(tmp_path), VM(tmp_path, host=host)):
            with pytest.raises(TaskError) as refused:
                await vm.call("make")
            texts.append(refused.value.message)
            vm.close()
            assert await vm.wait_closed()
        host.close()
        return texts

    with pytest.raises(plain.PlainDataError) as encoded:
        plain.encode(eval(value))
    for text in [*runner.run(refusals()), str(encoded.value)]:
        assert reason in text
        assert len(text) < 400
        assert "\ufffd" not in text
