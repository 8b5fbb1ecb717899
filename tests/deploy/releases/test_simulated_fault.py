"""Faults of a simulation: counted once, with the author's own paths and source lines."""

import dataclasses
import json
from pathlib import Path

import walle
from walle.deploy.releases.simulated_fault import MAX_FAULTS, FaultCount, SimulatedFault
from walle.protocol import Failure, Manifest, TriggerCondition

MANIFEST = Manifest(
    scenario="shop", task="ipv", version="v2", commit="0" * 40, bytecode=("cpython-313",),
    trigger=TriggerCondition(("page_exit",)), phases={}, limits={}, policies={}, files=(),
)  # fmt: skip
LOW = {"id": "simulated-low", "os": "android", "performance": "low"}
HIGH = {"id": "simulated-high", "os": "ios", "performance": "high"}
EVENT = {"event_id": "page_exit", "page_id": "item/7", "ts_ms": 5, "contents": {"n": 2}, "position": 3, "line": 4}
SOURCES = {"main.py": b"def execute(ctx, x):\n    return prices[x]\n"}
RUNTIME = f"{Path(walle.__file__).parent}/pipeline/stream/context.py"


def failure(error: str = "KeyError: 'n'", line: int = 2) -> Failure:
    place = f"shop/ipv/v2/main.py:{line} in execute"
    frames = [
        f'  File "shop/ipv/v2/main.py", line {line}, in execute',
        f'  File "{RUNTIME}", line 9, in session',
        '  File "/usr/lib/python3.13/json/decoder.py", line 5, in decode',
    ]
    return Failure(
        error_type=error.partition(":")[0],
        error=f"task shop/ipv v2: {error} ({place})",
        place=place,
        traceback="\n".join(["Traceback (most recent call last):", *frames, error]),
        log="info: before\nwarning: it",
    )


def test_a_fault_is_counted_once_with_its_first_device_and_event() -> None:
    faults = FaultCount()
    for device, position in ((LOW, 3), (LOW, 4), (HIGH, 3)):
        faults.add(SimulatedFault.of(failure(), MANIFEST, device, {**EVENT, "position": position}))
    faults.add(SimulatedFault.of(failure(line=9), MANIFEST, HIGH, EVENT))
    first, other = faults.all()
    assert (first.count, first.devices, first.event["position"]) == (3, ("simulated-low", "simulated-high"), 3)
    assert first.device == LOW
    assert (other.count, other.devices) == (1, ("simulated-high",))
    assert list(first.in_sources("shop/ipv/v2", SOURCES, "tasks/ipv", "log.jsonl").lines()) == [
        "failed: KeyError: 'n' (3 times)",
        "  at tasks/ipv/main.py:2 in execute: return prices[x]",
        '  first at event 3, line 4 of log.jsonl: page_exit item/7, ts_ms 5, contents {"n": 2}',
        "  on simulated-low (os android, performance low); also on simulated-high",
        "  Traceback (most recent call last):",
        '    File "tasks/ipv/main.py", line 2, in execute',
        "      return prices[x]",
        '    File "/usr/lib/python3.13/json/decoder.py", line 5, in decode',
        "  KeyError: 'n'",
        "  logged: info: before",
        "  logged: warning: it",
    ]


def test_a_fault_survives_the_journal() -> None:
    fault = SimulatedFault.of(failure(), MANIFEST, LOW, EVENT).in_sources("shop/ipv/v2", SOURCES)
    plain = json.loads(json.dumps({**dataclasses.asdict(fault), "of_another_version": 1}))
    assert SimulatedFault.from_plain(plain) == fault
    assert fault.place == "main.py:2 in execute"


def test_a_version_that_does_not_load_has_neither_device_nor_event() -> None:
    lines = list(SimulatedFault.of(failure("NameError: x"), MANIFEST).in_sources("shop/ipv/v2", {}).lines())
    assert lines[:3] == [
        "failed: NameError: x",
        "  at main.py:2 in execute",
        "  Traceback (most recent call last):",
    ]


def test_faults_are_bounded_and_hostile_texts_are_escaped() -> None:
    faults = FaultCount()
    for line in range(1, 100):
        faults.add(SimulatedFault.of(failure(line=line), MANIFEST, LOW, EVENT))
    assert len(faults.all()) == MAX_FAULTS
    event = {**EVENT, "event_id": "\x1b[2J", "contents": {"blob": b"x", "text": "y" * 10_000}}
    fault = SimulatedFault.of(failure(), MANIFEST, {"id": "\x1b[2J"}, event)
    text = "\n".join(fault.lines())
    assert "\x1b" not in text
    assert len(fault.event["contents"]) == 300
