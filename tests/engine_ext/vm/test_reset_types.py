"""Reset of library classes: whatever slot a task assigns to, a later task is unharmed, or gets another interpreter.

CPython keeps slots in C that do not follow a class's dict back: `C.__new__ = f; del C.__new__` leaves one behind.
"""

from pathlib import Path

import pytest
import pytest_asyncio

from tests.sim.poison_tasks import SLOTS, TaskPair
from walle.engine_ext.vm.host import VmHost

_PER_RUN = 24  # classes to whose slots one attack assigns


@pytest_asyncio.fixture
async def pair(tmp_path: Path, host: VmHost) -> TaskPair:
    both = TaskPair(tmp_path, host)
    await both.start()
    return both


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.parametrize("is_deleted", [False, True], ids=["set", "set_and_deleted"])
async def test_no_slot_of_any_class_harms_a_later_task(pair: TaskPair, is_deleted: bool) -> None:
    discarded = [slot for slot in SLOTS if await pair.attack([slot], [], is_deleted=is_deleted)]
    assert "new" in discarded
    assert len(discarded) < len(SLOTS)  # what a reset restores is restored


@pytest.mark.night
@pytest.mark.asyncio
async def test_no_class_harms_a_later_task(pair: TaskPair) -> None:
    names, _ = await pair.run(pair.attacker, "names")
    assert len(names) > 400
    for first in range(0, len(names), _PER_RUN):
        await pair.attack(SLOTS, names[first : first + _PER_RUN], is_deleted=True)
