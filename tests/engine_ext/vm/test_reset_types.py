"""Reset of library classes: whatever slot a task assigns to, a later task is unharmed, or gets another interpreter.

CPython keeps slots in C that do not follow a class's dict back: `C.__new__ = f; del C.__new__` leaves one behind.
"""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from tests.sim.poison_tasks import SLOTS, write_attacker, write_victim
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError

_PER_RUN = 24  # classes to whose slots one attack assigns


class Tenants:
    """An attacker and a victim that follow one another in the interpreters of one host."""

    unharmed: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path, host: VmHost, actions: str = "") -> None:
        self.attacker = write_attacker(folder / "attacker", actions)
        self.victim = write_victim(folder / "victim")
        self.host = host

    async def start(self) -> None:
        """Record once what the victim finds where no attack was before."""
        if not self.unharmed:
            await self.look()  # which loads all libraries
            self.unharmed.update(await self.look())

    async def run(self, folder: Path, function: str, *args: Any) -> tuple[Any, str]:
        """Return the result or error of a call in a VM of its own, and why its interpreter was discarded afterwards."""
        vm = VM(folder, host=self.host, grace_s=5.0)
        try:
            result = await vm.call(function, *args, deadline=60.0)
        except VMError as error:
            result = error
        vm.close()
        assert await vm.wait_closed(60)
        return result, vm.reset_failure

    async def look(self) -> dict[str, str]:
        found, reset_failure = await self.run(self.victim, "look")
        assert isinstance(found, dict), found
        assert reset_failure == ""  # an honest task costs no interpreter
        return found

    async def check_victim(self, attack: object) -> None:
        """Fail where the victim finds another library than before the attack."""
        found = await self.look()
        changed = {key: (self.unharmed[key], found.get(key)) for key in self.unharmed}
        assert {key: pair for key, pair in changed.items() if pair[0] != pair[1]} == {}, attack

    async def attack(self, slots: list[str], names: list[str], *, is_deleted: bool) -> str:
        """Return why the interpreter was discarded after assignments to slots; check the victim where it was not."""
        _, reset_failure = await self.run(self.attacker, "assign", slots, names, is_deleted)
        if not reset_failure:
            await self.check_victim((slots, names))
        return reset_failure


@pytest_asyncio.fixture
async def tenants(tmp_path: Path, host: VmHost) -> Tenants:
    both = Tenants(tmp_path, host)
    await both.start()
    return both


@pytest.mark.asyncio
@pytest.mark.parametrize("is_deleted", [False, True], ids=["set", "set_and_deleted"])
async def test_no_slot_of_any_class_harms_a_later_task(tenants: Tenants, is_deleted: bool) -> None:
    discarded = [slot for slot in SLOTS if await tenants.attack([slot], [], is_deleted=is_deleted)]
    assert "new" in discarded
    assert len(discarded) < len(SLOTS)  # what a reset restores is restored


@pytest.mark.asyncio
async def test_no_class_harms_a_later_task(tenants: Tenants) -> None:
    names, _ = await tenants.run(tenants.attacker, "names")
    assert len(names) > 400
    for first in range(0, len(names), _PER_RUN):
        await tenants.attack(SLOTS, names[first : first + _PER_RUN], is_deleted=True)
