"""Options of the gate: one declaration, from which values are parsed and refused by name."""

from typing import Any

import pytest

from walle.deploy.gate.gate import GATE_OPTIONS, Gate
from walle.deploy.gate.option import GateError, parse_options


def test_every_field_of_a_gate_is_an_option_with_help() -> None:
    gate = Gate()
    assert list(GATE_OPTIONS) == list(vars(gate))
    for key, one in GATE_OPTIONS.items():
        assert one.value(getattr(gate, key)) == one.default == getattr(Gate, key)
        assert one.meaning[0].islower(), key
        assert not one.meaning.endswith("."), key
    assert GATE_OPTIONS["hold_s"].help == (
        "least duration of each step; a number of seconds from 0 to 2592000, default 0"
    )


def test_texts_become_values_and_those_of_a_list_are_collected() -> None:
    texts = ["p_bad=0.2", "trial_runs = 100", "guards=latency_ms < 1.2x", "guards=a > 0.5"]
    values = parse_options(GATE_OPTIONS, texts)
    assert values == {"p_bad": 0.2, "trial_runs": 100, "guards": ("latency_ms < 1.2x", "a > 0.5")}
    assert Gate.from_plain(values) == Gate(p_bad=0.2, trial_runs=100, guards=("latency_ms < 1.2x", "a > 0.5"))
    assert parse_options(GATE_OPTIONS, ()) == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("p_goood=0.1", "gate.p_goood: is not an option of the gate; did you mean p_good?"),
        ("min-devices=3", "did you mean min_devices"),
        ("x=1", "the options are p_good, p_bad, alpha,"),
        ("=1", "the options are p_good,"),
        ("\x1b[2J=1", "the options are p_good,"),
        ("p_bad=2", "gate.p_bad: 2 is not a number above 0 and below 1"),
        ("p_bad=many", "gate.p_bad: 'many' is not a number above 0 and below 1"),
        ("p_bad=nan", "gate.p_bad: nan is not a number above 0 and below 1"),
        ("settle_s=0", "gate.settle_s: 0 is not a number of seconds from 1 to 2592000"),
        ("device_runs=1.5", "gate.device_runs: 1.5 is not a whole number from 1 to 100"),
        ("device_runs=1e999", "gate.device_runs: inf is not a whole number from 1 to 100"),
        ("hold_s", "gate.hold_s: write hold_s=VALUE, where VALUE is a number of seconds"),
    ],
)
def test_a_wrong_text_is_refused_with_its_key_and_what_is_allowed(text: str, what: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_options(GATE_OPTIONS, [text])
    assert what in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_key_is_given_once_unless_it_is_a_list_which_is_bounded() -> None:
    with pytest.raises(GateError, match=r"gate\.alpha: is given twice"):
        parse_options(GATE_OPTIONS, ["alpha=0.1", "alpha=0.2"])
    with pytest.raises(GateError, match=r"gate\.guards: .* is not a list of up to 4 bounds"):
        parse_options(GATE_OPTIONS, [f"guards=m{number} < 2x" for number in range(5)])


@pytest.mark.parametrize(
    ("key", "value"),
    [("min_devices", True), ("p_good", "0.1"), ("guards", "a < 2"), ("guards", [1]), ("trial_runs", None)],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(GateError, match=rf"gate\.{key}: "):
        Gate.from_plain({key: value})
