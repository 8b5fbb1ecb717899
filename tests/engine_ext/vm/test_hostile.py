"""Hostile tasks: they harm neither the device nor each other."""

from pathlib import Path

import pytest

from tests.sim import containment
from tests.sim.hostile import storm
from tests.sim.hostile_tasks import ATTACKS, ESCAPES, PATHS, UNSTOPPABLE
from walle.vm import VmHost


@pytest.mark.night
@pytest.mark.asyncio
async def test_honest_calls_come_back_among_hostile_ones(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = await storm(tmp_path, 0.5, seed=1)
    assert set(found["outcomes"]) == set(ATTACKS)
    assert all(found["outcomes"].values())
    assert found["honest_calls"] > 0
    for name in ("leaves by SystemExit", "leaves by sys.exit"):
        assert set(found["outcomes"][name]) <= {"TaskError SystemExit", "DeadlineExceeded deadline_ms"}
    assert set(found["outcomes"]["searches for os._exit"]) <= {"ok", "DeadlineExceeded deadline_ms"}
    assert "Fatal" not in capfd.readouterr().err


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_vm_host_contains_what_one_process_does_not(tmp_path: Path) -> None:
    host = VmHost()
    host.wait_ready()
    layers = host.report().layers
    found = await storm(tmp_path, 0.5, seed=1, host=host)
    host.close()
    outcomes = found["outcomes"]
    assert set(outcomes) == {*ATTACKS, *UNSTOPPABLE, *ESCAPES}
    assert found["honest_calls"] > 0
    assert found["host_restarts"] > 0
    # What lies beyond the empty stack decides: mostly a crash, else any error.
    ends = {"HostCrashed", "HostLost", "TaskQuarantined", "TaskError"}
    assert {outcome.split()[0] for outcome in outcomes["crashes by bytecode"]} <= ends
    if layers["landlock"] and layers["seccomp"]:
        for name in PATHS:
            assert set(outcomes[name]) <= {"TaskError PermissionError", "HostLost", "DeadlineExceeded deadline_ms"}, (
                name
            )


@pytest.mark.vm_host
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("any(itertools.repeat(0))", {"VM host: restart"}),
        ("range(1 << 62).count(0.5)", {"VM host: restart"}),
        ("crashes by bytecode", {"VM host: crash", "VM: error of the call", "VM: names"}),
        ("writes to its descriptors", {"VM: reset"}),
        ("closes its descriptors", {"VM: reset"}),
        ("reads from its descriptors", {"VM: limit"}),
        ("allocates giants", {"VM: limit"}),
        ("changes builtins", {"VM: reset", "VM: error of the call"}),
    ],
)
async def test_the_table_names_the_layer_that_contains_a_task(tmp_path: Path, name: str, layers: set[str]) -> None:
    (row,) = await containment.table(tmp_path, name)
    assert (row.task, row.layer in layers) == (name, True), row
    assert row.restarts <= (0 if "descriptors" in name else 1)
    assert row.honest_runs > 0
    assert row.honest_failures == 0
    lines = list(containment.lines_of([row]))
    assert f"| {row.layer} | {row.restarts} |" in lines[2]


def test_sixteen_loops_in_c_are_among_the_hostile_tasks() -> None:
    assert len(UNSTOPPABLE) == 16
