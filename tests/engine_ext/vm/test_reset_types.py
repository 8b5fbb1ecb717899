"""Reset of library classes: whatever slot a task assigns to, a later task is unharmed, or gets another interpreter.

CPython keeps slots in C that do not follow a class's dict back: `C.__new__ = f; del C.__new__` leaves one behind.
"""

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.poison_tasks import SLOTS, write_attacker, write_victim
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError

_PER_RUN = 24  # classes to whose slots one attack assigns


async def run(folder: Path, host: VmHost, function: str, *args: Any) -> tuple[Any, str]:
    """Return the result of a call in a VM of its own, and why the interpreter was discarded afterwards."""
    vm = VM(folder, host=host, grace_s=5.0)
    try:
        result = await vm.call(function, *args, deadline=60.0)
    except VMError as error:
        result = error
    vm.close()
    assert await vm.wait_closed(60)
    return result, vm.reset_failure


class Tenants:
    """An attacker and a victim that follow one another in the interpreters of one host."""

    def __init__(self, folder: Path, host: VmHost, actions: str = "") -> None:
        self.attacker = write_attacker(folder / "attacker", actions)
        self.victim = write_victim(folder / "victim")
        self.host = host
        self.unharmed: dict[str, str] = {}

    async def start(self) -> None:
        """Note what the victim finds where no attack was before."""
        await self.look()  # which loads all libraries
        self.unharmed = await self.look()

    async def look(self) -> dict[str, str]:
        found, reset_failure = await run(self.victim, self.host, "look")
        assert reset_failure == ""  # an honest task costs no interpreter
        assert isinstance(found, dict), found
        return found

    async def attack(self, function: str, *args: Any) -> str:
        """Return why the interpreter was discarded after the attack; check the victim where it was not."""
        _, reset_failure = await run(self.attacker, self.host, function, *args)
        if not reset_failure:
            found = await self.look()
            changed = {key: (self.unharmed[key], found.get(key)) for key in self.unharmed}
            assert {key: pair for key, pair in changed.items() if pair[0] != pair[1]} == {}, (function, args)
        return reset_failure


@pytest_asyncio.fixture
async def tenants(tmp_path: Path, host: VmHost) -> Tenants:
    both = Tenants(tmp_path, host)
    await both.start()
    return both


@pytest.mark.asyncio
@pytest.mark.parametrize("is_deleted", [False, True], ids=["set", "set_and_deleted"])
async def test_no_slot_of_any_class_harms_a_later_task(tenants: Tenants, is_deleted: bool) -> None:
    discarded = [slot for slot in SLOTS if await tenants.attack("assign", [slot], [], is_deleted)]
    assert "new" in discarded


@pytest.mark.asyncio
async def test_no_class_harms_a_later_task(tenants: Tenants) -> None:
    names, _ = await run(tenants.attacker, tenants.host, "names")
    assert len(names) > 400
    for first in range(0, len(names), _PER_RUN):
        await tenants.attack("assign", SLOTS, names[first : first + _PER_RUN], True)
