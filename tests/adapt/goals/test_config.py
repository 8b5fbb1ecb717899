"""Files of goals: TOML, the paper's JSON, quantities with units."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt.costs.hardware import Hardware
from walle.adapt.goals.config import Adaptation, parse_config, read_config
from walle.adapt.goals.quantity import quantity
from walle.errors import ConfigError

FIGURE_3 = [
    {
        "id": "1",
        "model": "net.py:resnet",
        "dataset": {"train": "/path/to/train", "test": "/path/to/test"},
        "algorithm": {"name": "Morphnet", "config": {"threshold": 0.1, "init_reg_strength": 1e-9}},
        "adaptation_goal": {"latency": "30ms", "accuracy": "0.80", "FLOP": "5G", "num_of_params": "20M"},
        "hardware": {"compute": "6 GFLOP/s", "bandwidth": "8.5 GB/s"},
    },
    {
        "id": "9",
        "model": "net.py:efficientnet",
        "dataset": {"train": "/path/to/train", "test": "/path/to/test"},
        "algorithm": {"name": "Chamnet", "config": {"init_population": 10, "crossover_rate": 0.7, "mutation": 0.08}},
        "adaptation_goal": {"accuracy": "0.80", "FLOP": "5G", "num_of_params": "20M"},
    },
    {
        "id": "10",
        "model": "net.py:efficientnet",
        "dataset": {"train": "/path/to/train", "test": "/path/to/test"},
        "algorithm": {"name": "Chamnet", "config": {"init_population": 10, "crossover_rate": 0.7, "mutation": 0.08}},
        "adaptation_goal": {"FLOP": "2G"},
    },
]
TEXT = """
model = "net.py:make"
data = {train = "train.npz", test = "test.npz"}
[algorithm]
name = "morphnet"
threshold = 0.4
[hardware]
compute = "6 GFLOP/s"
bandwidth = "8.5 GB/s"
[training]
steps = 50
[goals.small]
operations = "2M"
latency = "5ms"
accuracy = 0.8
group = "device.arch == 'armv7'"
[goals.scale]
parameters = {from = "1K", to = "1M", steps = 4}
"""


def parse(text: str) -> Adaptation:
    (found,) = parse_config(text, Path("folder"), "goals.toml", is_json=False)
    return found


def test_the_papers_configuration_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "goals.json"
    path.write_text(json.dumps(FIGURE_3))
    first, second = read_config(path)
    assert (first.model, first.algorithm, dict(first.settings)) == (
        "net.py:resnet", "morphnet", {"threshold": 0.1, "init_reg_strength": 1e-9},
    )  # fmt: skip
    (goal,) = first.goals
    assert (goal.name, goal.accuracy) == ("1", 0.8)
    assert goal.budgets == {"operations": 5e9, "parameters": 20e6, "latency": 0.03}
    assert first.hardware == Hardware(6e9, 8.5e9)
    assert [one.name for one in second.goals] == ["9", "10"]
    assert second.folder == tmp_path


def test_a_table_of_goals_may_have_ranges() -> None:
    job = parse(TEXT)
    assert [one.name for one in job.goals] == ["small", "scale-1", "scale-2", "scale-3", "scale-4"]
    assert [one.budgets["parameters"] for one in job.goals[1:]] == pytest.approx([1e3, 1e4, 1e5, 1e6])
    small = job.goals[0]
    assert small.describe() == "operations ≤ 2e+06 FLOP, latency ≤ 0.005 s, accuracy ≥ 0.8"
    assert (small.group, job.training.steps, dict(job.settings)) == ("device.arch == 'armv7'", 50, {"threshold": 0.4})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('operations = "2M"', 'operations = "2X"', "goals.small.*operations is '2X'; give a number of FLOP"),
        ('operations = "2M"', "operations = -1", "operations is -1; it must be above 0"),
        ('operations = "2M"', "speed = 3", "goals.small.*'speed', which is not known; it takes accuracy, group"),
        ("accuracy = 0.8", "accuracy = 80", "accuracy is 80; it is a share, from 0 to 1"),
        ("steps = 4", "steps = 1", "steps is 1; give a whole number, at least 2"),
        ("steps = 4}", 'steps = 4}\nmemory = {from = "1K", to = "2K", steps = 3}', "ranges of 3 and 4 steps"),
        ("[hardware]", "[hardwear]", "'hardwear', which is not known"),
        ('compute = "6 GFLOP/s"\n', "", "compute is None"),
        ('model = "net.py:make"', "", "model is None; give a text"),
        (r"[goals.scale]", "[goals.small-1]\noperations = 3\n[goals.scale]\ngroup = 3", "group is 3; give a condition"),
        ("[hardware]", "[training]\nsteps = 1\n[hardware]", "Cannot declare"),
        ("[goals.small]", '[goals."a/b"]', "a goal 'a/b'; its name is that of a file"),
        ("[goals.small]", '[goals."../x"]', "its name is that of a file"),
        ("[goals.small]", '[goals.""]', "its name is that of a file"),
        ("[goals.small]", f"[goals.{'a' * 201}]", "up to 200 bytes"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(TEXT.replace(old, new))


def test_a_latency_needs_a_hardware() -> None:
    with pytest.raises(ConfigError, match=r"goals of latency and no \[hardware\]"):
        parse(TEXT.replace('[hardware]\ncompute = "6 GFLOP/s"\nbandwidth = "8.5 GB/s"\n', ""))


def test_a_file_without_goals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no goals"):
        parse(TEXT[: TEXT.index("[goals.small]")])
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="is not a list of configurations"):
        parse_config("{}", tmp_path, "goals.json", is_json=True)
    with pytest.raises(ConfigError, match="two goals of the name '1'"):
        parse_config(json.dumps([FIGURE_3[0], FIGURE_3[0]]), tmp_path, "goals.json", is_json=True)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [("30ms", "s", 0.03), ("5G", "FLOP", 5e9), ("20M", "", 2e7), ("8.5 GB/s", "B", 8.5e9), ("1.5e3", "B", 1500.0),
     ("2s", "s", 2.0), ("7us", "s", 7e-6), ("3 GFLOP", "FLOP", 3e9), ("0.80", "", 0.8), (12, "B", 12.0)],
)  # fmt: skip
def test_quantities(text: object, unit: str, expected: float) -> None:
    assert quantity(text, unit, "it") == pytest.approx(expected)


@given(text=st.one_of(st.text(max_size=8), st.floats(), st.booleans(), st.none()))
def test_any_text_is_a_positive_number_or_refused(text: object) -> None:
    try:
        found = quantity(text, "B", "it")
    except ConfigError:
        return
    assert 0 < found < float("inf")
