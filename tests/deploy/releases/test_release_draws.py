"""Draws of the native core against what devices compute, and decisions by them against each row's own rule."""

import hashlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.releases.draws import MAX_IN_GROUP, ReleaseDraws, group_of
from walle.deploy.releases.release import Admission
from walle.engine_ext import _core
from walle.protocol import Audience
from walle.trust.audience import share

# A block of BLAKE2b has 128 bytes: lengths around one and two of them, with the NUL between release and device.
_names = st.one_of(
    st.text(max_size=12),
    st.integers(100, 130).map(lambda size: "x" * size),
    st.integers(240, 260).map(lambda size: "ö" * (size // 2)),
    st.sampled_from(["", "\ud800", "a\0b"]),
)
_ids = st.sampled_from(["d1", "d2", "", "ö𝄞", "\udfff", "e" * 150])
_admissions = st.builds(
    Admission,
    share=st.sampled_from([0.0, 1e-17, 0.01, 0.1, 0.33, 0.5, 1 - 2**-53, 1.0]),
    devices=st.sets(_ids, max_size=2).map(frozenset),
    open=st.booleans(),
)


@settings(deadline=None)
@given(st.lists(st.tuples(_names, _admissions), min_size=1, max_size=23), _ids, st.data())
def test_all_draws_at_once_are_the_draws_one_by_one(
    admissions: list[tuple[str, Admission]], device_id: str, data: st.DataObject
) -> None:
    draws = ReleaseDraws(admissions)
    numbers = st.lists(st.integers(0, len(admissions) - 1), min_size=1, max_size=5)
    groups = data.draw(st.lists(numbers, max_size=9))
    found = draws.first(device_id, b"".join(map(group_of, groups)))
    for group, at in zip(groups, found, strict=True):
        covered = [
            device_id in admissions[number][1].devices
            or share(admissions[number][0], device_id) < admissions[number][1].share
            for number in group
        ]
        assert at == (covered.index(True) if any(covered) else len(group))
    assert found == draws.first_one_by_one(device_id, b"".join(map(group_of, groups)))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=9), st.binary(max_size=300))
def test_the_digest_is_that_of_hashlib(releases: list[bytes], device_id: bytes) -> None:
    places = [
        int.from_bytes(hashlib.blake2b(release + b"\0" + device_id, digest_size=8).digest()) >> 11
        for release in releases
    ]
    every = b"".join(group_of([number]) for number in range(len(releases)))
    assert set(_core.Places(releases, places).first(device_id, every)) == {1}
    assert set(_core.Places(releases, [place + 1 for place in places]).first(device_id, every)) == {0}


def test_a_share_in_places_is_the_share() -> None:
    """A share is a float below which places are: as the count that the draws compare with, it is exact."""
    for covered in (0.01, 0.1, 1 / 3, 0.5, 1 - 2**-53):
        below = math.ceil(covered * Audience.PLACES)
        assert (below - 1) / Audience.PLACES < covered <= below / Audience.PLACES


@pytest.mark.parametrize(
    ("releases", "below", "error"),
    [
        ([b"r"], [], ValueError),
        (["r"], [1], ValueError),
        ([b"r"], [2**53 + 1], ValueError),
        ([b"r"], [-1], OverflowError),
    ],
)
def test_draws_that_are_none_are_refused(releases: list[bytes], below: list[int], error: type[Exception]) -> None:
    with pytest.raises(error):
        _core.Places(releases, below)


@pytest.mark.parametrize(
    ("groups", "error"),
    [
        (b"abc", TypeError),
        (group_of([1]), IndexError),
        (group_of([0])[:0] + b"\0\0\0\0", ValueError),
        (b"\0\0\0\0" * (MAX_IN_GROUP + 1), IndexError),
        ("", TypeError),
    ],
)
def test_groups_that_are_none_are_refused(groups: bytes, error: type[Exception]) -> None:
    places = _core.Places([b"r"], [7])
    assert len(places) == 1
    with pytest.raises(error):
        places.first(b"d", groups)
    with pytest.raises(TypeError):
        places.first(b"d")  # type: ignore[call-arg]
