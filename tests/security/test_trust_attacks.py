"""Attacks on what a device may run, after the list of The Update Framework: each drives the real agent with real bytes.

The attacker is between the device and its cloud, or has a stolen key. Installed versions are kept throughout.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.sim.agent_device import FILES, TASK, Device, publish, start
from tests.sim.cloud_files import CloudFiles
from walle.deploy.agent.agent_errors import DirectiveRefusedError
from walle.deploy.agent.fetch import WrongLengthError
from walle.deploy.agent.pull import BundleRejectedError
from walle.deploy.agent.trust import MAX_ROOTS_AT_ONCE, TrustError
from walle.errors import DeployError
from walle.protocol import Directive, OutcomeBatch
from walle.trust.metadata import MAX_ROOT_BYTES, RoleKeys
from walle.trust.signing import Signer

HOUR_S = 3600


class Scene:
    """A cloud whose timestamps last an hour, and a device that has installed v1 of a task."""

    def __init__(self, cloud: CloudFiles, device: Device) -> None:
        self.cloud = cloud
        self.device = device

    @classmethod
    async def begin(cls, folder: Path) -> "Scene":
        cloud = CloudFiles()
        cloud.timestamp_life_s = HOUR_S
        device = await start(folder / "agent", cloud)
        scene = cls(cloud, device)
        assert await scene.answer(publish(cloud, "v1")) == []
        device.take_outcomes()
        return scene

    def stamp(self, **changes: Any) -> str:
        return self.cloud.timestamp(self.device.clock.time(), **changes)

    async def answer(self, *directives: Directive, stamp: str | None = None) -> list[DeployError]:
        """Return the errors of the device on an answer with these directives."""
        return await self.device.agent.handle(directives, self.stamp() if stamp is None else stamp)

    async def refused(self, *directives: Directive, stamp: str | None = None) -> str:
        """Return why the device refuses an answer, which changes nothing."""
        before = self.device.agent.tasks
        errors = await self.answer(*directives, stamp=stamp)
        assert errors
        assert self.device.agent.tasks == before
        return " | ".join(map(str, errors))

    async def restart(self) -> None:
        await self.device.agent.close()
        now_s = self.device.clock.time()
        self.device = Device(self.device.folder, self.cloud)
        await self.device.clock.advance(now_s - self.device.clock.time())
        await self.device.agent.start()

    def alarms(self) -> list[str]:
        """Return the kinds of alarms of the next report, as the cloud reads them."""
        batch = self.device.agent.outcomes.take_batch()
        if batch is None:
            return []
        self.device.agent.outcomes.confirm(batch.batch_id)
        return [alarm.kind for alarm in OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))).alarms]


@pytest.mark.asyncio
async def test_rollback_an_old_directive_is_refused_also_by_a_device_that_saw_nothing_newer(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    candidate = publish(scene.cloud, "v2")  # shown to others, and withdrawn since
    back = publish(scene.cloud, "v1")
    withdrawn = scene.stamp(floors={TASK: back.serial})
    assert "it was withdrawn" in await scene.refused(candidate, stamp=withdrawn)
    await scene.device.clock.advance(1)
    assert "it was withdrawn" in await scene.refused(candidate, stamp=scene.stamp(floor=back.serial))
    third = publish(scene.cloud, "v3")
    await scene.device.clock.advance(1)
    assert await scene.answer(third) == []
    for old in (candidate, back):
        assert "an older one is a replay" in await scene.refused(old)


@pytest.mark.asyncio
async def test_rollback_metadata_and_tables_do_not_go_back(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    old = scene.stamp()
    cloud.make_scenarios(2, cloud.delegations)
    await scene.device.clock.advance(10)
    assert await scene.answer(stamp=scene.stamp(generation=7)) == []
    await scene.restart()
    assert await scene.answer(stamp=old) == [], "a slower gateway's answer is not an attack"
    await scene.device.clock.advance(10)
    assert "generation 7 to 6" in await scene.refused(stamp=scene.stamp(generation=6))
    cloud.scenarios_version = 1
    assert "scenarios version 2 was seen; 1 is a replay" in await scene.refused(stamp=scene.stamp(generation=8))
    cloud.scenarios_version = 2
    assert "root version 1 was seen; 0 is a replay" in await scene.refused(stamp=scene.stamp(root=0, generation=8))
    assert scene.alarms() == ["metadata"]


@pytest.mark.asyncio
async def test_freeze_a_frozen_answer_keeps_what_is_installed_refuses_new_and_raises_an_alarm(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    frozen, new = scene.stamp(), publish(scene.cloud, "v2")
    await scene.device.clock.advance(HOUR_S + 1)
    reason = await scene.refused(new, stamp=frozen)
    assert "expired at" in reason
    assert "answers are frozen, or the clock is ahead" in reason
    await scene.refused(new, stamp=frozen)
    assert scene.alarms() == ["frozen"], "once, and not at each answer"
    assert scene.device.running[TASK] == FILES["v1"]
    assert await scene.answer(new) == [], "a fresh answer ends it"
    await scene.device.clock.advance(HOUR_S + 1)
    assert "expired" in await scene.refused(publish(scene.cloud, "v3"), stamp="")
    assert scene.alarms() == ["frozen"], "also where the timestamp is left out"
    await scene.restart()
    scene.device.agent.watch_freshness()
    assert scene.alarms() == ["frozen"], "and where the whole answer is"


@pytest.mark.asyncio
async def test_freeze_no_timestamp_at_all_installs_nothing(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    (error,) = await device.agent.handle([publish(cloud, "v1")])
    assert "no signed timestamp came with it" in str(error)
    assert device.agent.tasks == {}
    assert Scene(cloud, device).alarms() == ["frozen"]


@pytest.mark.asyncio
async def test_a_clock_that_is_behind_revives_no_old_answer_and_says_so(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud, true_s = scene.cloud, scene.device.clock.time()
    old = dataclasses.replace(publish(cloud, "v2"), expires_s=int(true_s) + 10)
    old = cloud.sign(old)
    await scene.device.clock.advance(20)
    assert await scene.answer() == []
    await scene.restart()
    scene.device.clock._now_s = true_s - 40 * 86_400  # the battery of the clock was taken out
    assert "it expired at" in await scene.refused(old, stamp="")
    assert scene.alarms() == ["clock"]
    assert await scene.answer(publish(cloud, "v3"), stamp=cloud.timestamp(true_s + 30)) == []


@pytest.mark.asyncio
async def test_a_clock_that_is_ahead_keeps_what_is_installed_and_says_so(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    stamp = scene.stamp()
    await scene.device.clock.advance(400 * 86_400)
    assert "the clock is ahead" in await scene.refused(publish(scene.cloud, "v2"), stamp=stamp)
    batch = scene.device.agent.outcomes.take_batch()
    assert batch is not None
    (alarm,) = batch.alarms
    assert (alarm.kind, alarm.time_s) == ("frozen", scene.device.clock.time())


@pytest.mark.asyncio
async def test_mix_and_match_answers_of_another_fleet_epoch_or_metadata_are_refused(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud, other = scene.cloud, CloudFiles()
    # The other fleet has the same online keys and scenarios: only its id differs.
    other.roles, other.trust, other.blobs = cloud.roles, cloud.trust, cloud.blobs
    foreign = dataclasses.replace(other.publish(TASK, "v2", FILES["v2"], signer=cloud.bundle_signer), serial=50)
    assert "not signed by the release role" in await scene.refused(other.sign(foreign, keep_serial=True))
    theirs = other.timestamp(scene.device.clock.time() + 1)
    assert f"it is of fleet '{other.fleet}'" in await scene.refused(stamp=theirs)
    later = dataclasses.replace(publish(cloud, "v2"), epoch=2)
    later = cloud.roles["snapshot"].sign_directive(later, cloud.fleet)
    assert "it is of epoch 2, the cloud is in 1" in await scene.refused(later)
    cloud.trust["2.scenarios.json"] = cloud.trust["1.scenarios.json"]
    await scene.device.clock.advance(1)
    sha256 = "0" * 64
    mixed = scene.stamp(scenarios=2, scenarios_sha256=sha256)
    assert "not the one that the timestamp names" in await scene.refused(stamp=mixed)
    assert await scene.answer(publish(cloud, "v2")) == []


@pytest.mark.asyncio
async def test_wrong_release_a_changed_address_or_release_is_refused(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    new = publish(scene.cloud, "v2")
    for changed in (
        dataclasses.replace(new, url="https://evil.example/cdn"),
        dataclasses.replace(new, release="r-blamed"),
        dataclasses.replace(new, task="shop/other"),
        dataclasses.replace(new, epoch=9),
    ):
        assert "not signed by the release role" in await scene.refused(changed)
    assert scene.device.take_outcomes() == [], "no release is blamed for it"


@pytest.mark.asyncio
async def test_wrong_device_a_version_of_another_scenario_is_refused(tmp_path: Path) -> None:
    """The key of one scenario signs nothing in another: an author reaches the devices of its own tasks alone."""
    scene = await Scene.begin(tmp_path)
    cloud, author = scene.cloud, Signer.generate()
    cloud.make_scenarios(2, {**cloud.delegations, "other": RoleKeys.of([author.public_key])})
    await scene.device.clock.advance(1)
    stolen = cloud.publish(TASK, "v2", FILES["v2"], signer=author)
    assert "0 valid signatures of the 1 that are needed" in await scene.refused(stolen)
    hidden = cloud.publish(TASK, "v2", FILES["v2"], signer=author, change=_of_scenario("other"))
    assert "the manifest is of 'other/ipv'" in await scene.refused(hidden)
    assert await scene.answer(cloud.publish("other/ipv", "v2", FILES["v2"], signer=author)) == []


def _of_scenario(scenario: str):  # type: ignore[no-untyped-def]
    return lambda manifest: dataclasses.replace(manifest, scenario=scenario)


@pytest.mark.asyncio
async def test_endless_data_metadata_are_bounded_and_so_are_the_steps(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    genuine = dict(cloud.trust)
    cloud.trust["2.root.json"] = b" " * (MAX_ROOT_BYTES + 1)
    (error,) = await scene.answer(stamp=scene.stamp(root=1 << 50, time_s=int(scene.device.clock.time()) + 1))
    assert isinstance(error, WrongLengthError)
    cloud.trust = genuine
    for number in range(2, MAX_ROOTS_AT_ONCE + 6):
        cloud.make_root(number, cloud.roles, [cloud.root_signer])
    await scene.device.clock.advance(1)
    assert "cannot be had yet" in await scene.refused()
    assert await scene.answer(publish(cloud, "v2")) == [], "the next answer goes on from there"
    assert isinstance((await scene.answer(stamp="{" * 9000))[0], TrustError)
    assert isinstance((await scene.answer(stamp="[" * 8000))[0], TrustError)


@pytest.mark.asyncio
async def test_key_rotation_devices_walk_to_the_newest_root_and_stay_there(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    root, scenarios, online = (Signer.generate() for _ in range(3))
    cloud.make_root(2, {**cloud.roles, "root": root}, [cloud.root_signer, root])
    cloud.make_root(3, {**cloud.roles, "targets": scenarios}, [root])
    cloud.make_scenarios(2, cloud.delegations)
    before = scene.stamp()
    cloud.make_root(4, {**cloud.roles, "snapshot": online, "timestamp": online}, [root])
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v2")) == []
    await scene.restart()
    assert scene.device.agent.tasks == {TASK: "v2"}
    assert scene.device.agent._trust.root.version == 4
    assert "not signed by the timestamp role" in await scene.refused(stamp=before)


@pytest.mark.asyncio
@pytest.mark.parametrize("signers", ["old alone", "new alone", "stranger"])
async def test_key_rotation_needs_the_old_keys_and_the_new_ones(tmp_path: Path, signers: str) -> None:
    scene = await Scene.begin(tmp_path)
    cloud, new = scene.cloud, Signer.generate()
    by = {"old alone": [cloud.root_signer], "new alone": [new], "stranger": [Signer.generate()]}[signers]
    cloud.make_root(2, {**cloud.roles, "root": new}, by)
    await scene.device.clock.advance(1)
    assert "root metadata: 0 valid signatures of the 1" in await scene.refused(publish(cloud, "v2"))
    assert scene.alarms() == ["metadata"]
    assert scene.device.agent._trust.root.version == 1
    cloud.make_root(2, cloud.roles | {"root": cloud.root_signer}, [cloud.root_signer], fleet="another")
    assert "they are of fleet 'another'" in await scene.refused(publish(cloud, "v2"))
    cloud.trust["2.root.json"] = cloud.trust["1.root.json"]
    assert "version 1; 2 must follow 1" in await scene.refused(publish(cloud, "v2"))


@pytest.mark.asyncio
async def test_a_stolen_online_key_moves_devices_among_signed_versions_and_can_do_no_more(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    thief = cloud.roles["snapshot"]
    signed = publish(cloud, "v2")
    assert await scene.answer(signed) == [], "it can choose among signed versions"
    code = {"main.pyc": b"evil"}
    evil = cloud.publish(TASK, "v9", code, signer=thief)
    assert "0 valid signatures" in await scene.refused(evil)
    cloud.make_scenarios(2, {"shop": RoleKeys.of([thief.public_key])}, signer=thief)
    await scene.device.clock.advance(1)
    assert "scenarios metadata: 0 valid signatures" in await scene.refused(
        cloud.publish(TASK, "v9", code, signer=thief)
    )
    cloud.make_root(2, dict.fromkeys(cloud.roles, thief), [thief])
    assert "root metadata: 0 valid signatures" in await scene.refused(cloud.publish(TASK, "v9", code, signer=thief))
    assert scene.device.running[TASK] == FILES["v2"]


@pytest.mark.asyncio
async def test_a_stolen_scenario_key_signs_until_it_is_revoked_and_nothing_after(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud, stolen, new = scene.cloud, scene.cloud.bundle_signer, Signer.generate()
    assert await scene.answer(publish(cloud, "v2")) == [], "the thief's version, which the cloud released"
    cloud.make_scenarios(2, {**cloud.delegations, "shop": RoleKeys.of([new.public_key])})
    await scene.device.clock.advance(1)
    again = cloud.publish(TASK, "v3", FILES["v3"], signer=stolen)
    error = (await scene.answer(again))[0]
    assert isinstance(error, BundleRejectedError)
    assert "0 valid signatures" in str(error)
    await scene.restart()
    assert scene.device.running[TASK] == FILES["v2"], "what runs is kept until a release takes it back"
    scene.device.take_outcomes()
    first = publish(cloud, "v1")  # a version on the disk, signed by the stolen key
    assert "0 valid signatures" in await scene.refused(first)
    clean = cloud.publish(TASK, "v4", FILES["v3"], signer=new)
    assert await scene.answer(clean) == []
    assert scene.device.running[TASK] == FILES["v3"]
    await scene.restart()
    assert scene.device.agent.tasks == {TASK: "v4"}


@pytest.mark.asyncio
async def test_a_threshold_above_one_needs_several_keys(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud, second = scene.cloud, Signer.generate()
    both = RoleKeys.of([cloud.bundle_signer.public_key, second.public_key], threshold=2)
    cloud.make_scenarios(2, {**cloud.delegations, "shop": both})
    await scene.device.clock.advance(1)
    assert "1 valid signatures of the 2 that are needed" in await scene.refused(publish(cloud, "v2"))
    assert scene.device.running[TASK] == FILES["v1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["serial", "epoch", "time", "generation"])
async def test_fast_forward_is_recovered_from_by_new_online_keys(tmp_path: Path, what: str) -> None:
    """A stolen online key signs the highest numbers there are. A root that replaces it starts them again."""
    scene = await Scene.begin(tmp_path)
    cloud, now_s = scene.cloud, int(scene.device.clock.time())
    high = publish(cloud, "v2")
    changes: dict[str, Any] = {}
    if what == "serial":
        high = cloud.sign(dataclasses.replace(high, serial=(1 << 53) - 1), keep_serial=True)
    elif what == "epoch":
        cloud.epoch = (1 << 53) - 1
        high = cloud.sign(high)
    elif what == "time":
        later_s = now_s + 2 * 365 * 86_400
        changes = {"time_s": later_s, "expires_s": later_s + HOUR_S}
    else:
        changes = {"generation": (1 << 53) - 1}
    assert await scene.answer(high, stamp=cloud.timestamp(now_s + 1, **changes)) == []
    cloud.epoch = 1
    await scene.device.clock.advance(HOUR_S + 2)
    honest = publish(cloud, "v3")
    errors = await scene.answer(honest)
    assert bool(errors) or scene.device.agent.tasks == {TASK: "v2"}, "the thief has locked the owner out"
    assert scene.device.agent.tasks == {TASK: "v2"}
    online = Signer.generate()
    cloud.make_root(2, {**cloud.roles, "snapshot": online, "timestamp": online}, [cloud.root_signer])
    await scene.restart()
    assert await scene.answer(publish(cloud, "v3")) == []
    assert scene.device.agent.tasks == {TASK: "v3"}
    assert scene.device.running[TASK] == FILES["v3"]


@pytest.mark.asyncio
@pytest.mark.parametrize("replaced", [("targets", "snapshot", "timestamp"), ("targets",)])
async def test_fast_forward_of_the_scenarios_is_recovered_from_by_a_new_key(
    tmp_path: Path, replaced: tuple[str, ...]
) -> None:
    """A stolen scenarios key delegates to its thief, at the highest version; a root that replaces it ends both."""
    scene = await Scene.begin(tmp_path)
    cloud, thief, honest = scene.cloud, Signer.generate(), dict(scene.cloud.delegations)
    cloud.make_scenarios((1 << 53) - 1, {"shop": RoleKeys.of([thief.public_key])})
    await scene.device.clock.advance(1)
    assert await scene.answer() == []
    new = {role: Signer.generate() for role in replaced}
    cloud.make_root(2, {**cloud.roles, **new}, [cloud.root_signer])
    cloud.make_scenarios(2, honest)
    await scene.device.clock.advance(1)
    await scene.restart()
    assert scene.device.agent.tasks == {TASK: "v1"}  # the retired key's version keeps running
    assert await scene.answer(publish(cloud, "v2")) == []
    await scene.restart()
    assert scene.device.agent.tasks == {TASK: "v2"}
    assert scene.device.running[TASK] == FILES["v2"]


@pytest.mark.asyncio
async def test_fast_forward_of_the_scenarios_is_recovered_from_by_a_join_file_with_the_new_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await Scene.begin(tmp_path)
    cloud, thief, honest = scene.cloud, Signer.generate(), dict(scene.cloud.delegations)
    cloud.make_scenarios((1 << 53) - 1, {"shop": RoleKeys.of([thief.public_key])})
    await scene.device.clock.advance(1)
    assert await scene.answer() == []
    cloud.make_root(2, {**cloud.roles, "targets": Signer.generate()}, [cloud.root_signer])
    cloud.make_scenarios(2, honest)
    monkeypatch.setattr(CloudFiles, "pinned", property(lambda cloud: json.loads(cloud.trust["2.root.json"])))
    await scene.device.clock.advance(1)
    await scene.restart()
    assert scene.device.agent.tasks == {TASK: "v1"}
    assert await scene.answer(publish(cloud, "v2")) == []
    assert scene.device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_a_new_root_is_not_followed_by_metadata_that_its_predecessor_signed(tmp_path: Path) -> None:
    """A key of the scenarios role that was replaced delegates nothing, also what a device has of it already."""
    scene = await Scene.begin(tmp_path)
    cloud, thief = scene.cloud, Signer.generate()
    cloud.make_scenarios(2, {"shop": RoleKeys.of([thief.public_key])})
    await scene.device.clock.advance(1)
    assert await scene.answer() == []
    cloud.make_root(2, {**cloud.roles, "targets": Signer.generate()}, [cloud.root_signer])
    await scene.device.clock.advance(1)
    assert "scenarios metadata: 0 valid signatures" in await scene.refused(publish(cloud, "v2"))


@pytest.mark.asyncio
async def test_fast_forward_of_the_root_version_is_not_followed(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    cloud.make_root(1 << 52, cloud.roles, [cloud.root_signer])
    cloud.trust["2.root.json"] = cloud.trust.pop(f"{1 << 52}.root.json")
    await scene.device.clock.advance(1)
    assert "2 must follow 1" in await scene.refused(publish(cloud, "v2"))
    cloud.make_root(2, cloud.roles, [cloud.root_signer])
    assert await scene.answer(publish(cloud, "v2")) == []


@pytest.mark.asyncio
async def test_a_cloud_restored_from_a_backup_reaches_its_devices_in_a_new_epoch(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    for _ in range(5):
        publish(cloud, "v2")
    late = publish(cloud, "v3")
    assert await scene.answer(late, stamp=scene.stamp(generation=40)) == []
    cloud._serial = 3  # serial of the backup
    await scene.device.clock.advance(1)
    assert "a cloud restored from a backup needs a new epoch" in await scene.refused(
        publish(cloud, "v2"), stamp=scene.stamp(generation=20)
    )
    cloud.epoch = int(scene.device.clock.time())
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v2"), stamp=scene.stamp(generation=20)) == []
    assert scene.device.agent.tasks == {TASK: "v2"}
    await scene.restart()
    (error,) = await scene.answer(late, stamp=scene.stamp(generation=20))
    assert isinstance(error, DirectiveRefusedError)
    assert f"it is of epoch 1, the cloud is in {cloud.epoch}" in str(error)
    assert scene.device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_trust_survives_a_restart_and_a_damaged_file_begins_again_at_the_pinned_root(tmp_path: Path) -> None:
    scene = await Scene.begin(tmp_path)
    path = scene.device.folder / "trust.json"
    for data in (b"", b"{}", path.read_bytes().replace(b'"era":1', b'"era":2')):
        path.write_bytes(data)
        await scene.restart()
        assert scene.device.agent.tasks == {}, "nothing verifies without the scenarios metadata"
        assert await scene.answer(scene.cloud.sign(publish(scene.cloud, "v1"))) == []
        assert scene.device.agent.tasks == {TASK: "v1"}
