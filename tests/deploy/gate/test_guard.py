import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.gate.gate import Gate
from walle.deploy.gate.guard import Guard, GuardError, parse_guards
from walle.deploy.gate.option import GateError

numbers = st.floats(min_value=-1e50, max_value=1e50)


@pytest.mark.parametrize(
    ("text", "shown", "worse", "before", "better"),
    [
        ("latency_ms<1.2x", "latency_ms < 1.2x", 12.1, 10.0, 11.9),
        (" confidence  >  0.95 x ", "confidence > 0.95x", 0.94, 1.0, 0.96),
        ("score > 0.9x", "score > 0.9x", -11.1, -10.0, -10.9),
        ("latency_ms < 200", "latency_ms < 200", 201.0, 0.0, 200.0),
        ("drift > -1e-3", "drift > -0.001", -0.002, 0.0, 0.0),
    ],
)
def test_a_guard_says_what_is_worse(text: str, shown: str, worse: float, before: float, better: float) -> None:
    guard = Guard.parse(text)
    assert str(guard) == shown
    assert Guard.parse(shown) == guard
    assert guard.is_worse(worse, before)
    assert not guard.is_worse(better, before)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("latency_ms", "is not a guard"),
        ("latency_ms <= 3", "is not a guard"),
        ("latency_ms < ", "is not a guard"),
        ("latency_ms < nan", "finite"),
        ("latency_ms < 1e999x", "finite"),
        ("Latency < 2x", "not a metric's name"),
        ("latency_ms < 1x", "equal version"),
        ("latency_ms < 0.8x", "equal version"),
        ("confidence > 1x", "equal version"),
        ("confidence > -0.5x", "equal version"),
        ("a < 1.2y", "is not a number"),
        ("a" * 200 + " < 2", "is not a guard"),
    ],
)
def test_a_guard_that_cannot_be_used_is_refused_with_the_reason(text: str, what: str) -> None:
    with pytest.raises(GuardError, match=what):
        Guard.parse(text)
    with pytest.raises(GateError, match=r"gate\.guards: guard '.*'"):
        Gate(guards=(text,))


def test_a_release_has_a_few_guards_and_one_of_a_kind_for_a_metric() -> None:
    guards = parse_guards(("a < 2x", "a < 7", "a > 1", "b < 3"))
    assert [str(one) for one in guards] == ["a < 2x", "a < 7", "a > 1", "b < 3"]
    with pytest.raises(GuardError, match="second bound"):
        parse_guards(("a < 2x", "a < 3x"))
    with pytest.raises(GuardError, match="one too many"):
        parse_guards(tuple(f"m{number} < 2x" for number in range(5)))


@given(before=numbers, bound=st.floats(min_value=1.001, max_value=1e6))
def test_an_equal_value_is_within_each_relative_guard(before: float, bound: float) -> None:
    for guard in (Guard("a", False, bound, True), Guard("a", True, 1 / bound, True)):
        assert not guard.is_worse(before, before)
        assert not guard.is_worse(before, before, part=0.5)


@given(value=numbers, before=numbers, bound=st.floats(min_value=1.001, max_value=1e6))
def test_a_value_outside_of_a_guard_is_beyond_half_of_the_way_to_it(value: float, before: float, bound: float) -> None:
    for guard in (Guard("a", False, bound, True), Guard("a", True, 1 / bound, True)):
        if guard.is_worse(value, before):
            assert guard.is_worse(value, before, part=0.5)
