"""The index of policies against the policies themselves, one after another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from walle.base.version_range import cuts_of, in_range, plain_numbers
from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import RuleError, compile_rule, unparse
from walle.deploy.policies.rule_index import PolicyIndex
from walle.protocol import Profile

SCHEMA = {
    "os": ColumnType.STRING,
    "os_version": ColumnType.STRING,
    "memory_mb": ColumnType.INT,
    "battery": ColumnType.DOUBLE,
    "is_member": ColumnType.BOOL,
}
OS = ["android", "ios", 'an"d\\roid', "ö𝄞"]
VERSIONS = [
    "9",
    "10",
    "10.0",
    "10.0.1",
    "10.4",
    "10.4.2",
    "10.5",
    "11",
    "0",
    "11rc1",
    "10.post1",
    "1!2",
    "x",
    "",
    "10.4+a",
]
RANGES = [
    ">=10",
    ">=10,<11",
    "==10.*",
    "~=10.4",
    "!=10.4",
    ">10.4",
    "<=10.0",
    "<11",
    "===10.4",
    "==10.0",
    ">=11rc1",
    ">0",
]


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _any_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, min_size=1, max_size=3).map(lambda some: f"[{', '.join(some)}]")


_texts = st.sampled_from(OS).map(_quoted)
_ints = st.integers(-3, 3).map(str)
_doubles = st.sampled_from(["-1.5", "0.0", "0.25", "2.0"])
_order = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
_leaves = st.one_of(
    st.builds("os {} {}".format, st.sampled_from(["==", "!="]), _texts),
    st.builds("{} == os".format, _texts),
    st.builds("os in {}".format, _any_of(_texts)),
    st.builds("memory_mb {} {}".format, _order, _ints),
    st.builds("{} {} memory_mb".format, _ints, _order),
    st.builds("memory_mb in {}".format, _any_of(_ints)),
    st.builds("battery {} {}".format, _order, _doubles),
    st.builds("version_in({}, '{}')".format, st.sampled_from(["app_version", "os_version"]), st.sampled_from(RANGES)),
    st.sampled_from(["is_member", "!is_member", "is_member == false", "is_member != true", "is_member < true"]),
    st.sampled_from(
        [
            "memory_mb + 1 > 2",
            "os.startsWith('a')",
            "os.matches('^[ai]')",
            "os.size() == 3",
            "true",
            "1 / memory_mb > 0",
        ]
    ),
)
_rules = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=5,
)
_strange = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.25, -1.5, 1e300, float("nan"), 2**70, "\ud800"])
)
_values = st.fixed_dictionaries(
    {},
    optional={
        "os": st.one_of(st.sampled_from(OS), _strange),
        "os_version": st.one_of(st.sampled_from(VERSIONS), _strange),
        "memory_mb": st.one_of(st.integers(-4, 4), _strange, st.just("3")),
        "battery": st.one_of(st.sampled_from([-1.5, 0.0, 0.25, 1.0, 2.0, -0.0]), _strange, st.just("3")),
        "is_member": st.one_of(st.booleans(), _strange, st.just("true")),
    },
)
_profiles = st.builds(Profile, st.sampled_from(["d1", "d2", "d3"]), st.sampled_from(VERSIONS), _values)
_policies = st.builds(
    lambda rule, app_version, devices: Policy(app_version, rule, (), devices).typed(SCHEMA),
    st.one_of(st.just(""), _rules),
    st.sampled_from(["", "", *RANGES]),
    st.sampled_from([(), (), (), ("d1",), ("d1", "d3")]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_policies, max_size=6), st.lists(_profiles, min_size=1, max_size=4))
def test_the_index_takes_the_devices_that_the_policies_take(policies: list[Policy], profiles: list[Profile]) -> None:
    index = PolicyIndex(policies)
    for profile in profiles:
        expected = sum(1 << number for number, policy in enumerate(policies) if policy.matches(profile))
        assert index.matching(profile) == expected


_evaluated = st.builds(
    "{} {} {}".format,
    st.sampled_from(["memory_mb + 1", "memory_mb * 2", "10 / memory_mb", "memory_mb % 3 + memory_mb"]),
    _order,
    _ints,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(_evaluated, _leaves, _rules), min_size=5, max_size=80, unique=True),
    st.lists(_profiles, min_size=1, max_size=6),
)
def test_rules_that_are_evaluated_together_are_what_they_are_alone(rules: list[str], profiles: list[Profile]) -> None:
    policies = [Policy(rule=rule).typed(SCHEMA) for rule in rules]
    index = PolicyIndex(policies)
    for profile in [*profiles, *profiles]:
        expected = sum(1 << number for number, policy in enumerate(policies) if policy.matches(profile))
        assert index.matching(profile) == expected


@settings(max_examples=200, deadline=None)
@given(_rules, _profiles)
def test_the_terms_of_a_rule_are_the_rule(text: str, profile: Profile) -> None:
    """Each term as text, alone, and all of them together, are what the rule is."""
    policy = Policy(rule=text).typed(SCHEMA)
    rule = policy.compiled()
    terms = [compile_rule(unparse(term), rule.columns) for term in rule.terms]
    assert all(term.matches(profile) for term in terms) == rule.matches(profile)


_clauses = st.builds(
    "{}{}".format,
    st.sampled_from([">=", "<=", ">", "<", "==", "!=", "~="]),
    st.sampled_from(["9.1", "10.0", "10.4", "10.4.2", "10.0rc1", "10.4.post1", "0.0", "1!3.0"]),
)
_plain = st.lists(st.integers(0, 11), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))


@settings(max_examples=300, deadline=None)
@given(st.lists(_clauses, min_size=1, max_size=3).map(",".join), _plain)
def test_the_order_of_plain_versions_is_that_of_pep_440(text: str, version: str) -> None:
    expected = SpecifierSet(text).contains(Version(version), prereleases=True)
    assert in_range(version, text) == expected
    found = cuts_of(text)
    assert found is not None
    numbers = plain_numbers(version)
    assert numbers is not None
    starts_in, cuts = found
    is_flipped = sum(cut <= (numbers, 0) for cut in cuts) % 2 == 1
    assert (starts_in != is_flipped) == expected


def test_rules_that_give_a_column_two_types_each_use_their_type() -> None:
    """The declared type of an attribute was changed between two releases."""
    first = Policy(rule="model.size() > 0 && model + 'x' == 'ax'").typed({"model": ColumnType.STRING})
    second = Policy(rule="model + 1 == 3").typed({"model": ColumnType.INT})
    index = PolicyIndex([first, second])
    assert index.matching(Profile("d", "1", {"model": "a"})) == 0b01
    assert index.matching(Profile("d", "1", {"model": 2})) == 0b10
    assert index.matching(Profile("d", "1", {"model": 2.0})) == 0


@pytest.mark.parametrize("depth", [1, 10, *range(22, 40)])
def test_a_rule_that_is_taken_can_be_evaluated_however_it_is_nested(depth: int) -> None:
    """The library refuses deep texts, and a gateway writes a rule's terms with more brackets than the rule has."""
    rule = f"memory_mb{'+1' * depth} > 0 && os == 'ios' && (is_member || {'(' * depth}battery > 0.0{')' * depth})"
    if depth > 29:
        with pytest.raises(RuleError, match="nested too deeply"):
            Policy(rule=rule).typed(SCHEMA)
        return
    policy = Policy(rule=rule).typed(SCHEMA)
    assert PolicyIndex([policy]).matching(Profile("d", "1", {"os": "ios", "memory_mb": 1, "is_member": True})) == 1
