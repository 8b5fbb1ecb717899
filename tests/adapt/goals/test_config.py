"""Files of goals: TOML, the paper's JSON, quantities with units."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt.algorithms.chamnet import ChamNet
from walle.adapt.costs.hardware import Hardware
from walle.adapt.goals.config import Adaptation, parse_config, read_config
from walle.adapt.goals.quantity import quantity
from walle.engine_ext import rates
from walle.errors import ConfigError

FIGURE_3 = """
[ // start of all configurations
{
  "id": "1",
  "model": "Resnet",
  "dataset": {
    "train": "/path/to/train",
    "test": "/path/to/test"
  },
  "algorithm": {
    "name": "Morphnet",
    "config": {
      "threshold": 0.1,
      "init_reg_strength": 1e-9
    }
  },
  "adaptation_goal": {
    "latency": "30ms",
    "accuracy": "0.80",
    "FLOP": "5G",
    "num_of_params": "20M"
  }
},
// ... more configurations,
{
  "id": "9",
  "model": "Efficientnet",
  "dataset": {
    "train": "/path/to/train",
    "test": "/path/to/test"
  },
  "algorithm": {
    "name": "Chamnet",
    "config": {
      "init_population": 10,
      "crossover_rate": 0.7,
      "mutation": 0.08
    }
  },
  "adaptation_goal": {
    "latency": "30ms",
    "accuracy": "0.80",
    "FLOP": "5G",
    "num_of_params": "20M"
  }
},
// more configurations ...
] // end of all configurations
"""
HARDWARE = '"hardware": {"compute": "6 GFLOP/s", "bandwidth": "8.5 GB/s"},\n  "algorithm"'
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
[goals.scale]
parameters = {from = "1K", to = "1M", steps = 4}
"""


def parse(text: str) -> Adaptation:
    (found,) = parse_config(text, Path("folder"), "goals.toml", is_json=False)
    return found


def test_the_papers_configuration_is_read_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "goals.json"
    path.write_text(FIGURE_3)
    with pytest.raises(ConfigError, match="goals of latency and no"):  # §4.1 asks for a profile, which Fig. 3 omits
        read_config(path)
    path.write_text(FIGURE_3.replace('"algorithm"', HARDWARE))
    first, second = read_config(path)
    assert (first.model, first.algorithm, dict(first.settings)) == (
        "Resnet", "morphnet", {"threshold": 0.1, "init_reg_strength": 1e-9},
    )  # fmt: skip
    (goal,) = first.goals
    assert (goal.name, goal.accuracy) == ("1", 0.8)
    assert goal.budgets == {"operations": 5e9, "parameters": 20e6, "latency": 0.03}
    assert first.hardware == Hardware(3e9, 8.5e9)  # multiply-adds, of two FLOP
    assert [one.name for one in second.goals] == ["9"]
    assert dict(second.settings) == {"population": 10, "crossover_rate": 0.7, "mutation": 0.08}
    assert set(second.settings) <= set(ChamNet.options)
    assert second.folder == tmp_path


def configuration(**changes: object) -> dict[str, object]:
    dataset = {"train": "train.npz", "test": "test.npz"}
    return {"id": "1", "model": "net.onnx", "dataset": dataset, "adaptation_goal": {"FLOP": "5G"}} | changes


def parse_json(*configurations: object) -> list[Adaptation]:
    return parse_config(json.dumps(configurations), Path(), "goals.json", is_json=True)


def test_configurations_of_one_model_and_algorithm_are_one_adaptation() -> None:
    one, other = parse_json(configuration(), configuration(id="2"), configuration(id="3", model="a//b,]"))
    assert [goal.name for goal in one.goals] == ["1", "2"]
    assert other.model == "a//b,]"  # a text has neither comments nor last commas


def test_wrong_json_is_named() -> None:
    with pytest.raises(ConfigError, match="algorithm, config is not a table"):
        parse_json(configuration(algorithm={"name": "morphnet", "config": 5}))
    with pytest.raises(ConfigError, match=r"goals\.json: .*recursion"):
        parse_config("[" * 200_000, Path(), "goals.json", is_json=True)
    with pytest.raises(ConfigError, match="two goals of the name '1'"):
        parse_json(configuration(), configuration())


def test_a_table_of_goals_may_have_ranges() -> None:
    job = parse(TEXT)
    assert [one.name for one in job.goals] == ["small", "scale-1", "scale-2", "scale-3", "scale-4"]
    assert [one.budgets["parameters"] for one in job.goals[1:]] == pytest.approx([1e3, 1e4, 1e5, 1e6])
    small = job.goals[0]
    assert small.describe() == "operations ≤ 2e+06 FLOP, latency ≤ 0.005 s, accuracy ≥ 0.8"
    assert (job.training.steps, dict(job.settings)) == (50, {"threshold": 0.4})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('operations = "2M"', 'operations = "2X"', "goals.small.*operations is '2X'; give a number of FLOP"),
        ('operations = "2M"', "operations = -1", "operations is -1; it must be above 0"),
        ('operations = "2M"', "speed = 3", "goals.small.*'speed', which is not known; it takes accuracy, latency"),
        ('operations = "2M"', 'operations = "2M"\ngroup = "arm"', "goals.small.*'group', which is not known"),
        ('operations = "2M"', f"operations = {'9' * 400}", "operations is 9+; it must be above 0, and finite"),
        ('operations = "2M"', 'operations = "."', "operations is '.'; give a number of FLOP"),
        ("8.5 GB/s", "800mb/s", "bandwidth is '800mb/s'; give a number of B"),
        ("8.5 GB/s", "800Mb/s", "bandwidth is '800Mb/s'; give a number of B"),
        ("steps = 50", f"steps = {'9' * 400}", "steps is 9+; give a whole number"),
        ("accuracy = 0.8", "accuracy = 80", "accuracy is 80; it is a share, from 0 to 1"),
        ("steps = 4", "steps = 1", "steps is 1; give a whole number, at least 2"),
        ("steps = 4}", 'steps = 4}\nmemory = {from = "1K", to = "2K", steps = 3}', "ranges of 3 and 4 steps"),
        ("[hardware]", "[hardwear]", "'hardwear', which is not known"),
        ('compute = "6 GFLOP/s"\n', "", "compute is None"),
        ('model = "net.py:make"', "", "model is None; give a text"),
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


def test_a_class_and_its_rates_are_the_same_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {"panel": 6e3, "pairs": 6e3, "lanes": 1e3, "streamed": 8.5e3, "moved": 8.5e3}  # a microsecond
    rates.save({"scalar": found}, rates.cache_path())
    of_class = TEXT.replace('compute = "6 GFLOP/s"\nbandwidth = "8.5 GB/s"', 'class = "this machine"')
    assert parse(of_class).hardware == parse(TEXT).hardware


def test_a_file_without_goals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no goals"):
        parse(TEXT[: TEXT.index("[goals.small]")])
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="is not a list of configurations"):
        parse_config("{}", tmp_path, "goals.json", is_json=True)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [("30ms", "s", 0.03), ("5G", "FLOP", 5e9), ("20M", "", 2e7), ("8.5 GB/s", "B", 8.5e9), ("1.5e3", "B", 1500.0),
     ("2s", "s", 2.0), ("7us", "s", 7e-6), ("3 GFLOP", "FLOP", 3e9), ("0.80", "", 0.8), (12, "B", 12.0)],
)  # fmt: skip
def test_quantities(text: object, unit: str, expected: float) -> None:
    assert quantity(text, unit, "it") == pytest.approx(expected)


@given(
    text=st.one_of(
        st.text(max_size=8),
        st.text("0.eE+kKmMuGB/s ", max_size=8),
        st.integers(),
        st.floats(),
        st.booleans(),
        st.none(),
    )
)
def test_any_text_is_a_positive_number_or_refused(text: object) -> None:
    try:
        found = quantity(text, "B", "it")
    except ConfigError:
        return
    assert 0 < found < float("inf")
