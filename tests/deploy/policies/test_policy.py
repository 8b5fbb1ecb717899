import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.policies.attribute_schema import ColumnType, SchemaError, parse_schema, read_schema
from walle.deploy.policies.policy import Policy, PolicyError, Tier
from walle.deploy.policies.rule import RuleError
from walle.deploy.policies.rule_index import PolicyIndex
from walle.protocol import Attribute, Profile
from walle.trust.audience import share


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


def test_no_device_leaves_when_the_share_grows() -> None:
    devices = [f"device-{number}" for number in range(2000)]
    covered = [{device for device in devices if share("r", device) < step} for step in (0.1, 0.25, 0.5, 1.0)]
    assert covered[0] < covered[1] < covered[2] < covered[3] == set(devices)


def test_a_share_is_the_same_on_every_machine() -> None:
    assert share("ipv-v1-1", "device-7") == 0.8561342499840083


SCHEMA = parse_schema('[attributes]\nos = "string"\nmemory_mb = "int"\nbattery = "double"\nis_member = "bool"\n')
PHONE: Mapping[str, Attribute] = {"os": "android", "memory_mb": 4096, "battery": 0.5, "is_member": True}


def _takes(rule: str, attributes: Mapping[str, Attribute], app_version: str = "10.2") -> bool:
    return Policy(rule=rule).typed(SCHEMA).matches(Profile("d1", app_version, attributes))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("os == 'android'", True),
        ("os in ['ios', 'android'] && memory_mb >= 4096", True),
        ("memory_mb > 4096 || battery < 0.6", True),
        ("is_member && !(os == 'ios')", True),
        ("version_in(app_version, '>=10,<11')", True),
        ("version_in(app_version, '>=11')", False),
        ("os.startsWith('and') && os.matches('^a.*d$') && os.size() == 7", True),
        ("memory_mb / 1024 == 4", True),
        ("is_member ? battery > 0.4 : battery > 0.9", True),
        ("!version_in(app_version, '>=11') && (version_in(app_version, '>=99') || memory_mb / 2 > 3)", True),
        ("battery + 1.0 > 9.0 || version_in(app_version, '>=11') || is_member == false", False),
        ("true", True),
    ],
)
def test_a_rule_takes_devices_by_their_attributes(rule: str, expected: bool) -> None:
    assert _takes(rule, PHONE) is expected


@pytest.mark.parametrize("rule", ["os == 'ios'", "os != 'ios'", "!(os == 'ios')", "os == 'ios' || os != 'ios'"])
def test_a_rule_matches_no_device_without_its_attributes(rule: str) -> None:
    assert not _takes(rule, {})
    assert not _takes(rule, {"os": 7})  # a value of another type counts as none
    assert not _takes(rule, {"os": "\ud800"})


def test_what_a_rule_does_not_need_may_be_missing() -> None:
    assert _takes("version_in(os, '>=17') || is_member", {"is_member": True})
    assert not _takes("!version_in(os, '>=17')", {"is_member": True})
    assert _takes("!version_in(os, '>=17')", {"os": "linux"})  # a text that is not a version is in no range
    assert not _takes("version_in(os, '>=17') == is_member", {"is_member": False})
    assert _takes("is_member || os == 'ios'", {"is_member": True})
    assert not _takes("is_member && os == 'ios'", {"is_member": False})
    assert _takes("battery > 1.5", {"battery": 2})  # a whole number is a number
    assert not _takes("memory_mb > 1", {"memory_mb": 2.0})
    assert not _takes("memory_mb > 1", {"memory_mb": 1 << 63})
    assert not _takes("battery > 1.5 || battery < 2.0", {"battery": float("nan")})


@pytest.mark.parametrize(
    ("rule", "column", "what"),
    [
        ("os == 3", 4, "'==' does not accept (string, int)"),
        ("memory_mb > 1.5", 11, "'>' does not accept (int, double)"),
        (
            "os == 'a' && oss == 'b'",
            14,
            "'oss' is not a declared attribute; declared are: app_version, battery, is_member",
        ),
        ("os ==", 6, "Syntax error"),
        ("memory_mb + 1", 1, "is of type int; a rule is true or false"),
        ("app_version >= '10'", 13, "texts have no order in rules"),
        ("version_in(app_version, 'ten')", 25, "is not a version range"),
        ("version_in(app_version, os)", 25, "a range of versions is a literal"),
        ("version_in(os + '1', '>=1')", 15, "version_in takes an attribute"),
        ("os.matches('[')", 12, "invalid regular expression"),
        ("os.matches(app_version)", 12, "a pattern is a literal"),
        ("os in ['a', 3]", 7, "the list has values of another type than os"),
        ("memory_mb in [memory_mb]", 14, "'in' needs a list of literals"),
        ("[1, 2].exists(x, x > memory_mb)", 14, "macros, fields, maps"),
        ("{'a': 1}['a'] == memory_mb", 9, "is not supported in rules"),
        ("dyn(os) == 3", 4, "the function 'dyn' is not supported in rules"),
        ("timestamp('2026-01-01T00:00:00Z') > timestamp(os)", 10, "is not supported in rules"),
        ("string == type(os)", 1, "'string' is not a value"),
        ("(" * 300 + "true" + ")" * 300, 1, "nested too deeply"),
        ("1" + "+1" * 1900 + " > 0", 1, "nested too deeply"),
        ("'" + "é" * 100 + "' == oss", 107, "'oss' is not a declared attribute"),
        ("true && " * 600 + "true", 4001, "at most 4000 characters"),
        ("os == '\ud800'", 1, "a character that no text has"),
    ],
)
def test_a_rule_that_is_refused_shows_the_place(rule: str, column: int, what: str) -> None:
    with pytest.raises(RuleError) as caught:
        Policy(rule=rule).typed(SCHEMA)
    assert caught.value.offset == column - 1
    message, line, caret = str(caught.value).split("\n")
    assert message.startswith(f"rule, line 1, column {column}: ")
    assert what in message
    if column <= len(rule):
        shown = line[len(caret) - 1]
        assert shown == rule[column - 1] or not rule[column - 1].isprintable()


def test_the_place_of_an_error_may_be_in_a_later_line() -> None:
    with pytest.raises(RuleError, match=r"line 2, column 4: 'oss' is not(.|\n)*\n  && oss == 'b'\n     \^") as caught:
        Policy(rule="os == 'a'\n&& oss == 'b'").typed(SCHEMA)
    assert caught.value.rule[caught.value.offset :].startswith("oss")


def test_a_policy_keeps_the_types_that_it_was_made_with() -> None:
    policy = Policy(">=10", "os == 'android'", (), ("d1", "d2")).typed(SCHEMA)
    assert policy.columns == (("os", ColumnType.STRING),)
    assert Policy.from_plain(json.loads(json.dumps(policy.to_plain()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert Policy.from_plain({"app_version": ">=10"}) == Policy(">=10")  # an older journal has it


def test_the_most_specific_policy_has_the_highest_tier() -> None:
    assert Policy().tier == Policy(">=10").tier == Tier.UNIFORM
    assert Policy(">=10", "os == 'a'").tier == Tier.CUSTOMISED
    assert Policy("", "os == 'a'", (), ("d1",)).tier == Tier.DEVICE_SPECIFIC


def test_a_device_specific_policy_takes_its_devices() -> None:
    policy = Policy(devices=("d1", "d3"))
    assert [policy.matches(Profile(name, "1")) for name in ("d1", "d2", "d3")] == [True, False, True]
    with pytest.raises(PolicyError, match="too many; 1000 is the limit"):
        Policy(devices=tuple(map(str, range(1001))))
    with pytest.raises(PolicyError, match="not the id of a device"):
        Policy(devices=("",))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("os = 'string'", "has 'os'; attributes are declared in the section"),
        ("[attributes]\nos = 'text'", "os is of type 'text'; the types are"),
        ("[attributes]\n'o s' = 'string'", "'o s' is not a name"),
        ("[attributes]\n__os = 'string'", "'__os' is not a name"),
        ("[attributes]\nin = 'string'", "'in' is not a name"),
        ("[attributes]\napp_version = 'string'", "app_version is declared always"),
        ("[attributes", "is not TOML"),
        ("attributes = 3", "must be a section"),
        ("[attributes]\n" + "\n".join(f"a{n} = 'int'" for n in range(201)), "declares 201 attributes; 200"),
    ],
)
def test_a_file_of_attributes_that_cannot_be_used_is_refused(text: str, what: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(what)):
        parse_schema(text)


def test_the_file_of_attributes_is_read_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "attributes.toml"
    assert read_schema(path) == {}
    path.write_text('[attributes]\nos = "string"\n')
    assert read_schema(path) == {"os": ColumnType.STRING}
    path.write_bytes(b"\xff")
    with pytest.raises(SchemaError, match="not UTF-8"):
        read_schema(path)
    path.write_bytes(b"#" * 70_000)
    with pytest.raises(SchemaError, match="70000 bytes"):
        read_schema(path)


def test_an_app_version_of_thousands_of_digits_is_none() -> None:
    """Python refuses to read such a number, and the answer to the profile failed for that."""
    assert not Policy(">=10").matches(_profile("9" * 5000))
    assert PolicyIndex([Policy(">=10"), Policy()]).matching(_profile("9" * 5000)) == 0b10
