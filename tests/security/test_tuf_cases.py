"""Cases of python-tuf's own client tests, and random chains of roots, on a device's rules (table in ADR 4).

The scenarios are those of its tests of top-level updates, key rotations, the trusted metadata set and delegations; the
code is not.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.test_trust_attacks import HOUR_S, Scene
from tests.security.test_trust_metadata import CLOCK, KEYS, device_accepts, root, tuf_accepts
from tests.sim.agent_device import FILES, TASK, publish
from walle.base.clock import ManualClock
from walle.trust.folder import ROOT_LIFE_S, SCENARIOS_LIFE_S, root_body, scenarios_body, sign_metadata
from walle.trust.metadata import ROLES, SCENARIOS, RoleKeys, Root, Scenarios
from walle.trust.signing import SignatureError, Signer

_NUMBERS = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)


@dataclasses.dataclass(frozen=True)
class Version:
    keys: Sequence[int]
    threshold: int
    by: Sequence[int]
    step: int = 1


@given(
    st.lists(
        st.builds(
            Version,
            keys=_NUMBERS,
            threshold=st.integers(1, 3),
            by=st.lists(st.integers(0, 6), max_size=6, unique=True),
            step=st.sampled_from([1, 1, 1, 1, 0, 2]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_key_rotations_a_device_and_python_tuf_agree_on_random_chains(versions: list[Version]) -> None:
    number, chain = 1 - versions[0].step, []
    for version in versions:
        number += version.step
        threshold = min(version.threshold, len(version.keys))
        chain.append(root(number, list(version.by), root_keys=tuple(version.keys), threshold=threshold))
        assert device_accepts(chain) == tuf_accepts(chain)
        if not device_accepts(chain):
            break


@given(st.lists(_NUMBERS, min_size=2, max_size=5), st.integers(1, 3), st.booleans(), st.data())
def test_key_rotations_a_chain_that_is_signed_enough_is_followed(
    keys: list[list[int]], threshold: int, is_cut: bool, data: st.DataObject
) -> None:
    """Chains of random key sets that each pair of thresholds signed; one signature less ends it."""
    needed = [min(threshold, len(one)) for one in keys]
    chain = []
    for index, (mine, count) in enumerate(zip(keys, needed, strict=True)):
        before = keys[max(index - 1, 0)][: needed[max(index - 1, 0)]]
        by = list(dict.fromkeys([*before, *mine[:count]]))
        if is_cut and index == len(keys) - 1:
            by.remove(data.draw(st.sampled_from(mine[:count])))
            by = [one for one in by if one not in mine[count:]]
        chain.append(root(index + 1, by, root_keys=tuple(mine), threshold=count))
    assert device_accepts(chain) == tuf_accepts(chain) == (not is_cut)


@given(_NUMBERS, st.integers(1, 3), st.lists(st.integers(0, 6), max_size=6, unique=True))
def test_key_rotations_the_scenarios_role_counts_each_of_its_keys_once(
    keys: list[int], threshold: int, by: list[int]
) -> None:
    needed = min(threshold, len(keys))
    roles = {
        **{role: RoleKeys.of([KEYS[0].public_key]) for role in ROLES},
        SCENARIOS: RoleKeys.of([KEYS[number].public_key for number in keys], needed),
    }
    trusted = Root.trusted(sign_metadata(root_body(1, "fleet", roles, CLOCK), [KEYS[0]]))
    data = sign_metadata(scenarios_body(1, {}, CLOCK), [KEYS[number] for number in by])
    if len({*keys} & {*by}) >= needed:
        assert Scenarios.verified(data, trusted).version == 1
    else:
        with pytest.raises(SignatureError, match=f"valid signatures of the {needed}"):
            Scenarios.verified(data, trusted)


@pytest.mark.asyncio
async def test_an_expired_root_is_followed_by_its_successors_and_the_last_must_be_valid(tmp_path: Path) -> None:
    """test_trusted_root_expired, test_intermediate_root_expired, test_final_root_expired."""
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    await scene.device.clock.advance(ROOT_LIFE_S)
    expired, cloud.clock = cloud.clock, ManualClock(scene.device.clock.time())
    cloud.make_scenarios(2, cloud.delegations)
    assert "the root metadata expired at" in await scene.refused(publish(cloud, "v2"))
    fresh, cloud.clock = cloud.clock, expired
    cloud.make_root(2, cloud.roles, [cloud.root_signer])  # expired too: a step on the way
    await scene.device.clock.advance(1)
    assert "the root metadata expired at" in await scene.refused(publish(cloud, "v2"))
    cloud.clock = fresh
    cloud.make_root(3, cloud.roles, [cloud.root_signer])
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v2")) == []
    assert scene.alarms() == ["frozen"]


@pytest.mark.asyncio
async def test_expired_scenarios_metadata_keep_what_is_installed_and_admit_nothing(tmp_path: Path) -> None:
    """test_new_targets_expired, test_expired_metadata."""
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    await scene.device.clock.advance(SCENARIOS_LIFE_S)
    assert "the scenarios metadata expired at" in await scene.refused(publish(cloud, "v2"))
    await scene.restart()
    assert scene.device.running[TASK] == FILES["v1"]
    cloud.clock = ManualClock(scene.device.clock.time())
    cloud.make_scenarios(2, cloud.delegations)
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v2")) == []


@pytest.mark.asyncio
async def test_an_expired_timestamp_still_forbids_going_back(tmp_path: Path) -> None:
    """test_expired_timestamp_version_rollback, test_expired_timestamp_snapshot_rollback."""
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    cloud.make_scenarios(2, cloud.delegations)
    await scene.device.clock.advance(1)
    assert await scene.answer(stamp=scene.stamp(generation=9)) == []
    await scene.restart()
    await scene.device.clock.advance(2 * HOUR_S)
    assert "went back from generation 9 to 8" in await scene.refused(stamp=scene.stamp(generation=8))
    cloud.scenarios_version = 1
    assert "scenarios version 2 was seen; 1 is a replay" in await scene.refused(stamp=scene.stamp(generation=9))
    cloud.scenarios_version = 2
    assert await scene.answer(publish(cloud, "v2"), stamp=scene.stamp(generation=9)) == []


@pytest.mark.asyncio
async def test_metadata_of_another_version_than_announced_or_by_a_stranger_are_refused(tmp_path: Path) -> None:
    """test_new_targets_version_mismatch, test_new_targets_unsigned, test_new_timestamp_unsigned."""
    scene = await Scene.begin(tmp_path)
    cloud, stranger = scene.cloud, Signer.generate()
    cloud.make_scenarios(3, cloud.delegations)
    cloud.trust["2.scenarios.json"] = cloud.trust["3.scenarios.json"]
    cloud.scenarios_version = 2  # the hash is that of version 3
    await scene.device.clock.advance(1)
    assert "scenarios version 3, 2 was announced" in await scene.refused(publish(cloud, "v2"))
    cloud.make_scenarios(2, cloud.delegations, signer=stranger)
    assert "scenarios metadata: 0 valid signatures" in await scene.refused(publish(cloud, "v2"))
    cloud.make_scenarios(2, cloud.delegations)
    forged = cloud.timestamp(scene.device.clock.time(), signer=stranger)
    assert "not signed by the timestamp role" in await scene.refused(publish(cloud, "v2"), stamp=forged)
    assert await scene.answer(publish(cloud, "v2")) == []


@pytest.mark.asyncio
async def test_metadata_are_pulled_once_and_read_from_the_disk_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_not_loading_targets_twice, test_load_metadata_from_cache, test_timestamp_eq_versions_check."""
    scene = await Scene.begin(tmp_path)
    cloud = scene.cloud
    pulled: list[str] = []
    fetch_small = cloud.fetch_small

    async def counted(url: str, *, max_bytes: int) -> bytes:
        pulled.append(url)
        return await fetch_small(url, max_bytes=max_bytes)

    monkeypatch.setattr(cloud, "fetch_small", counted)
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v2"), stamp=scene.stamp(generation=2)) == []
    assert await scene.answer(stamp=scene.stamp(generation=2)) == [], "the same again"
    await scene.restart()
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v3"), stamp=scene.stamp(generation=3)) == []
    assert scene.device.running[TASK] == FILES["v3"]
    assert pulled == []
    cloud.make_scenarios(2, cloud.delegations)
    await scene.device.clock.advance(1)
    assert await scene.answer(stamp=scene.stamp(generation=4)) == []
    assert pulled == ["/trust/2.scenarios.json"]


@pytest.mark.asyncio
async def test_delegations_are_one_level_and_each_scenario_has_separate_signatures(tmp_path: Path) -> None:
    """test_shared_delegation_signature_check, test_invalid_metadata, test_safely_encoded_rolenames."""
    scene = await Scene.begin(tmp_path)
    cloud, shared = scene.cloud, Signer.generate()
    # One key in two delegations with different thresholds: each is counted for itself.
    other = Signer.generate()
    cloud.make_scenarios(
        2,
        {
            **cloud.delegations,
            "shop": RoleKeys.of([shared.public_key, other.public_key], 2),
            "other": RoleKeys.of([shared.public_key]),
        },
    )
    await scene.device.clock.advance(1)
    alone = cloud.publish("other/ipv", "v2", FILES["v2"], signer=shared)
    assert await scene.answer(alone) == []
    short = cloud.publish(TASK, "v2", FILES["v2"], signer=shared)
    assert "1 valid signatures of the 2 that are needed" in await scene.refused(short)
    # A scenario's key delegates to nobody: what it signs are manifests alone.
    cloud.make_scenarios(3, {"shop": RoleKeys.of([other.public_key])}, signer=shared)
    await scene.device.clock.advance(1)
    assert "scenarios metadata: 0 valid signatures" in await scene.refused(publish(cloud, "v3"))
    odd = {name: RoleKeys.of([other.public_key]) for name in ("..", ".", "a b", "%2F", "x" * 200)}
    cloud.make_scenarios(3, {**cloud.delegations, "shop": RoleKeys.of([cloud.bundle_signer.public_key]), **odd})
    await scene.device.clock.advance(1)
    assert await scene.answer(publish(cloud, "v3")) == []
    folder = scene.device.folder
    assert {path.name.partition("%2F")[0] for path in folder.iterdir() if path.is_dir()} == {"shop", "other"}


def test_the_keys_of_these_cases_are_different() -> None:
    assert len({key.key_id for key in KEYS}) == 7
