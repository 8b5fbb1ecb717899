import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.audience import share
from walle.deploy.cloud.policy import Policy, PolicyError
from walle.protocol import Profile


def _profile(app_version: str) -> Profile:
    return Profile("d1", app_version)


@pytest.mark.parametrize(
    ("rule", "app_version", "expected"),
    [
        ("", "anything at all", True),
        ("", "", True),
        (">=10,<11", "10.0", True),
        (">=10,<11", "10.9.3", True),
        (">=10,<11", "11.0", False),
        (">=10,<11", "9.99", False),
        (">=10,<11", "10.1rc1", True),
        (">=10,<11", "not a version", False),
        (">=10,<11", "", False),
        ("==10.2.*", "10.2.7", True),
        ("!=10.2", "10.2", False),
    ],
)
def test_a_policy_takes_the_app_versions_of_its_range(rule: str, app_version: str, expected: bool) -> None:
    assert Policy(rule).matches(_profile(app_version)) is expected


def test_a_rule_that_cannot_be_read_is_named() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy("newest")
    assert caught.value.rule == "app_version"
    assert caught.value.text == "newest"
    assert "policy.app_version: 'newest'" in str(caught.value)


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_share_is_in_range_and_sticky(release_id: str, device_id: str) -> None:
    place = share(release_id, device_id)
    assert 0 <= place < 1
    assert share(release_id, device_id) == place


def test_shares_are_even_and_differ_between_releases() -> None:
    devices = [f"device-{number}" for number in range(20_000)]
    first = {device for device in devices if share("r-1", device) < 0.25}
    other = {device for device in devices if share("r-2", device) < 0.25}
    assert abs(len(first) - 5000) < 5 * (20_000 * 0.25 * 0.75) ** 0.5
    assert abs(len(first & other) - 1250) < 5 * (20_000 / 16 * 15 / 16) ** 0.5


def test_nobody_leaves_when_the_share_grows() -> None:
    devices = [f"device-{number}" for number in range(2000)]
    covered = [{device for device in devices if share("r", device) < step} for step in (0.1, 0.25, 0.5, 1.0)]
    assert covered[0] < covered[1] < covered[2] < covered[3] == set(devices)


def test_a_share_is_the_same_on_every_machine() -> None:
    assert share("ipv-v1-1", "device-7") == 0.8561342499840083
