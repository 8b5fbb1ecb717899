"""A model adapted to goals: files, budgets, checkpoints, and going on after an interruption."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

from walle import adapt
from walle.adapt.adaptation import Progress, read_outcomes
from walle.adapt.arrays import read_arrays, write_arrays
from walle.adapt.dataset import load_data
from walle.adapt.masked.trainer import MaskedTrainer
from walle.adapt.report import front
from walle.adapt.source import load_model
from walle.engine_ext.session import load
from walle.errors import ConfigError

NET = """
from tests.adapt.networks import Residual
from walle import nn, np

def make():
    nn.manual_seed(1)
    return Residual()

def data(seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, 64)
    images = random.normal(size=(64, 1, 8, 8)).astype("float32")
    images[:, 0, 0, 0] = labels.astype("float32") * 3.0
    return images, labels
"""
GOALS = """
model = "net.py:make"
data = {train = "net.py:data", test = "net.py:data"}
training = {steps = 8, batch = 16, learning_rate = 0.01}
[algorithm]
name = "morphnet"
iteration_steps = 4
init_reg_strength = 4.0
[goals]
half = {operations = "45k"}
small = {operations = "20k", parameters = "900"}
narrow = {parameters = "500"}
"""


@pytest.fixture
def goals(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    path = tmp_path / "goals.toml"
    path.write_text(GOALS)
    return path


def _limits(goals: Path, out: Path, tables: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the limits of the trainings of two goals, whose own training takes 60 steps."""
    found: list[int] = []
    settle = MaskedTrainer.settle

    def recorded(trainer: MaskedTrainer, most: int) -> int:
        found.append(most)
        return settle(trainer, most)

    text = GOALS.split("[goals]", maxsplit=1)[0].replace("steps = 8", "steps = 60, widen = 1")
    goals.write_text(text.replace("strength = 4.0", "strength = 40.0") + tables)
    with monkeypatch.context() as patch:
        patch.setattr(MaskedTrainer, "settle", recorded)
        (outcome,) = adapt.run(goals, out)
    whole = outcome.whole["operations"]
    assert [round(60 * (1 - min(45e3, whole) / whole)), round(60 * (1 - min(300e3, whole) / whole))].count(
        found[0]
    ) == 1
    return found


def test_a_goal_after_another_is_trained_longer_the_more_it_cuts(
    goals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = '[goals]\nlarge = {operations = "45k"}\n'
    _, near = _limits(goals, tmp_path / "near", large + 'small = {operations = "30k"}\n', monkeypatch)
    _, far = _limits(goals, tmp_path / "far", large + 'small = {operations = "12k"}\n', monkeypatch)
    assert 6 < near < far / 1.5


def test_a_goal_after_an_untrained_one_is_trained_as_the_first(
    goals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = 'small = {operations = "30k"}\n'
    loose, after_it = _limits(
        goals, tmp_path / "loose", f'[goals]\nloose = {{operations = "300k"}}\n{small}', monkeypatch
    )
    whole = read_outcomes(tmp_path / "loose")[0].whole["operations"]
    assert (loose, after_it) == (0, round(60 * (1 - 30e3 / whole)))


def test_states_without_the_loss_of_the_last_training_are_read(goals: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    adapt.run(goals, out)
    for path in out.glob("state-*.npz"):
        state = dict(read_arrays(path))
        del state["settled loss"]
        write_arrays(path, state)
    goals.write_text(goals.read_text() + 'least = {parameters = "300"}\n')
    (outcome,) = adapt.run(goals, out, resume=True)
    assert [one.goal for one in outcome.fitted] == ["half", "small", "narrow", "least"]


@pytest.mark.parametrize("method", ["chains", "tree", "alone"])
def test_each_goal_gets_a_smaller_model(goals: Path, tmp_path: Path, method: str) -> None:
    seen: list[Progress] = []
    (outcome,) = adapt.run(goals, tmp_path / "out", method=method, on_progress=seen.append)
    budgets: dict[str, dict[str, float]] = {
        "half": {"operations": 45e3},
        "small": {"operations": 20e3, "parameters": 900},
        "narrow": {"parameters": 500},
    }
    assert [one.goal for one in outcome.fitted] == list(budgets)
    for one in outcome.fitted:
        assert one.meets_budgets
        assert all(one.costs[name] <= budget for name, budget in budgets[one.goal].items())
        session: Any = load((tmp_path / "out" / one.file).read_bytes())
        (output,) = session.run({session.inputs[0].name: numpy.ones((3, 1, 8, 8), "float32")}).values()
        assert output.shape == (3, 4)
    assert seen[-1].goals == 3
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert all(f"<td>{goal}<" in page for goal in budgets)
    assert set(front(outcome, "operations")) <= set(budgets)
    assert read_outcomes(tmp_path / "out") == [outcome]
    assert [one.model for one in outcome.latencies] == ["(the model)", *budgets]
    assert all(0 < one.measured_s < 1 for one in outcome.latencies)


def test_an_interrupted_run_continues(goals: Path, tmp_path: Path) -> None:
    (whole,) = adapt.run(goals, tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt.run(goals, tmp_path / "part", on_progress=stop)
    with pytest.raises(ConfigError, match=r"has no report\.json"):
        read_outcomes(tmp_path / "part")
    (resumed,) = adapt.run(goals, tmp_path / "part", resume=True)
    assert [(one.goal, one.costs) for one in resumed.fitted] == [(one.goal, one.costs) for one in whole.fitted]


def test_goals_that_came_later_are_adapted_and_the_others_stay(goals: Path, tmp_path: Path) -> None:
    (before,) = adapt.run(goals, tmp_path / "out", method="tree")
    goals.write_text(GOALS.replace("500", "480") + 'tiny = {operations = "15k", parameters = "800"}\n')
    seen: list[Progress] = []
    (after,) = adapt.run(goals, tmp_path / "out", method="tree", resume=True, on_progress=seen.append)
    assert {one.goal for one in seen} == {"narrow", "tiny"}
    assert seen[-1].costs["operations"] <= 20_000 or seen[0].costs["operations"] <= 20_000  # the start: `small`
    kept = {one.goal: one for one in before.fitted}
    assert [one for one in after.fitted if one == kept.get(one.goal)] == [kept["half"], kept["small"]]
    assert all(one.meets_budgets for one in after.fitted)


@pytest.mark.parametrize(
    "options", ['name = "slimmable"\nshared_steps = 70\nslice = 0.4', 'name = "chamnet"\nsamples = 24']
)
def test_shared_training_does_not_end_a_goal_early(
    goals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr("walle.adapt.adaptation._MAX_ITERATIONS", 6)
    table = GOALS[GOALS.index('name = "morphnet"') : GOALS.index("[goals]")]
    goals.write_text(GOALS[: GOALS.index("small =")].replace(table, options + "\n"))
    (outcome,) = adapt.run(goals, tmp_path / "out")
    assert [one.meets_budgets for one in outcome.fitted] == [True]


def test_only_the_same_model_data_and_method_are_resumed(goals: Path, tmp_path: Path) -> None:
    goals.write_text(GOALS[: GOALS.index("small =")])
    adapt.run(goals, tmp_path / "out")
    with pytest.raises(ConfigError, match="is of other settings, data or another model"):
        adapt.run(goals, tmp_path / "out", method="alone", resume=True)
    for old, new in (("manual_seed(1)", "manual_seed(2)"), ("data(seed=0)", "data(seed=1)"), ("Residual()", "Other()")):
        text = NET.replace(old, new).replace("def make", "class Other(Residual):\n    pass\n\ndef make")
        (tmp_path / "net.py").write_text(text)
        with pytest.raises(ConfigError, match="is of other settings, data or another model"):
            adapt.run(goals, tmp_path / "out", resume=True)


def test_a_new_run_removes_the_record_of_the_last(goals: Path, tmp_path: Path) -> None:
    goals.write_text(GOALS[: GOALS.index("small =")])
    adapt.run(goals, tmp_path / "out")

    def stop(_progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt.run(goals, tmp_path / "out", on_progress=stop)
    with pytest.raises(ConfigError, match=r"has no report\.json"):
        read_outcomes(tmp_path / "out")
    seen: list[Progress] = []
    adapt.run(goals, tmp_path / "out", on_progress=seen.append, resume=True)
    assert seen[0].done == 0


_LOOSE = """[goals]
loose = {operations = "200k"}
looser = {operations = "300k"}
own = {operations = "90k"}
"""


@pytest.mark.parametrize("options", ['name = "morphnet"', 'name = "slimmable"\nshared_steps = 4'])
def test_a_looser_goal_gets_a_wider_model(goals: Path, tmp_path: Path, options: str) -> None:
    goals.write_text(GOALS[: GOALS.index("[algorithm]")] + f"[algorithm]\n{options}\n{_LOOSE}")
    (outcome,) = adapt.run(goals, tmp_path / "out")
    loose, looser, own = (one.costs["operations"] for one in outcome.fitted)
    assert all(one.meets_budgets for one in outcome.fitted)
    assert outcome.whole["operations"] < 0.5 * loose < 100e3
    assert loose < looser <= 300e3
    assert looser > 240e3
    assert 70e3 < own <= 90e3


def test_a_looser_goal_keeps_the_model_where_it_is_not_widened(goals: Path, tmp_path: Path) -> None:
    text = GOALS[: GOALS.index("[algorithm]")].replace("steps = 8", "widen = 1, steps = 8")
    goals.write_text(text + '[algorithm]\nname = "morphnet"\n' + _LOOSE)
    (outcome,) = adapt.run(goals, tmp_path / "out")
    for one in outcome.fitted:
        assert one.steps == 0
        assert one.costs["operations"] == outcome.whole["operations"]
        assert one.costs["accuracy"] == pytest.approx(outcome.whole["accuracy"], abs=0.05)


def test_a_wider_model_is_resumed(goals: Path, tmp_path: Path) -> None:
    text = GOALS[: GOALS.index("narrow =")].replace('"45k"', '"200k"').replace('"20k", parameters = "900"', '"100k"')
    goals.write_text(text)
    (whole,) = adapt.run(goals, tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt.run(goals, tmp_path / "part", on_progress=stop)
    (resumed,) = adapt.run(goals, tmp_path / "part", resume=True)
    assert [(one.goal, one.costs) for one in resumed.fitted] == [(one.goal, one.costs) for one in whole.fitted]
    assert resumed.fitted[0].costs["operations"] > 1.5 * resumed.whole["operations"]
    goals.write_text(text.replace("steps = 8", "widen = 1.5, steps = 8"))
    with pytest.raises(ConfigError, match="is of other settings, data or another model"):
        adapt.run(goals, tmp_path / "part", resume=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("45k", "1", "goal 'half': operations 1 is below"),
        ('"45k"', '"900k", accuracy = 0.999', "goal 'half': accuracy 0.999 is above that of the whole model"),
        ("steps = 8", "widen = 0.5, steps = 8", "widen is 0.5; give a number from 1"),
        ("net.py:make", "net.py:missing", "has no function 'missing'"),
        ("net.py:make", "net.py:data", "returns tuple; it takes a walle.nn.Module"),
        ("net.py:make", "net.onnx", "does not exist"),
        ("net.py:make", "net", r"give FILE.py:FUNCTION, a .onnx or a .walle file"),
        ('"morphnet"', '"other"', "no algorithm 'other'; there are morphnet"),
        ("iteration_steps", "iterations", "MorphNet has no option 'iterations'; it takes threshold"),
        ("steps = 8,", 'steps = 8, loss = "nothing",', "walle.nn.functional has no loss 'nothing'"),
    ],
)
def test_what_is_wrong_is_named_before_training(goals: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    goals.write_text(GOALS.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        adapt.run(goals, tmp_path / "out", on_progress=lambda _: pytest.fail("it trains"))


def test_goals_of_all_adaptations_are_looked_at_before_training(goals: Path, tmp_path: Path) -> None:
    shared = {"model": "net.py:make", "dataset": {"train": "net.py:data", "test": "net.py:data"}}
    first = {"id": "a", **shared, "adaptation_goal": {"FLOP": "45k"}}
    second = {"id": "b", **shared, "adaptation_goal": {"FLOP": 1}, "algorithm": {"name": "slimmable"}}
    path = goals.with_suffix(".json")
    path.write_text(json.dumps([first, second]))
    with pytest.raises(ConfigError, match="goal 'b': operations 1 is below"):
        adapt.run(path, tmp_path / "out", on_progress=lambda _: pytest.fail("it trains"))
    assert not (tmp_path / "out").exists()


def test_a_model_without_channels_is_refused(goals: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        NET.replace("return Residual()", "return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))")
    )
    with pytest.raises(
        ConfigError, match=r"nothing can be removed from Sequential: axis 0 of 1\.bias: an output of the network"
    ):
        adapt.run(goals, tmp_path / "out")


def test_files_of_arrays_are_numpys(tmp_path: Path) -> None:
    arrays = {
        "x": numpy.arange(6, dtype="float32").reshape(2, 3), "y": numpy.array([1, 0]), "z/w": numpy.array(2.5),
        "mask": numpy.array([True, False]), "empty": numpy.zeros((0, 3), "uint8"),
    }  # fmt: skip
    write_arrays(tmp_path / "own.npz", arrays)
    with numpy.load(tmp_path / "own.npz") as found:
        assert {name: found[name].tolist() for name in arrays} == {name: one.tolist() for name, one in arrays.items()}
    numpy.savez(tmp_path / "numpy.npz", x=arrays["x"], y=arrays["y"])
    assert read_arrays(tmp_path / "numpy.npz")["x"].tolist() == arrays["x"].tolist()
    data = load_data("numpy.npz", tmp_path)
    assert (len(data), data.labels.tolist()) == (2, [1, 0])
    numpy.savez(tmp_path / "objects.npz", x=numpy.array([{}], dtype=object), y=arrays["y"])
    with pytest.raises(ConfigError, match=r"objects\.npz, x\.npy"):
        read_arrays(tmp_path / "objects.npz")
    (tmp_path / "none.npz").write_text("no")
    with pytest.raises(ConfigError, match=r"none\.npz"):
        read_arrays(tmp_path / "none.npz")


def test_arrays_that_are_damaged_or_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    numpy.savez_compressed(path, x=numpy.random.default_rng(0).normal(size=100))
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("x.npy").header_offset + 60
    data = bytearray(path.read_bytes())
    data[first : first + 20] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"x\.npz: Error -3"):
        read_arrays(path)
    numpy.savez_compressed(path, x=numpy.zeros(1 << 20, "uint8"), y=numpy.zeros(8, "uint8"))
    assert path.stat().st_size < 1 << 16
    monkeypatch.setattr("walle.adapt.arrays._MAX_BYTES", 1 << 20)
    monkeypatch.setattr("zipfile.ZipFile.read", lambda *_: pytest.fail("it is decompressed"))
    with pytest.raises(ConfigError, match="has 1048840 bytes of arrays; at most 1048576 are read"):
        read_arrays(path)


def test_folders_of_images_are_data(tmp_path: Path) -> None:
    from walle import cv

    for name, shade in (("cat", 10), ("dog", 200)):
        (tmp_path / "images" / name).mkdir(parents=True)
        _, encoded = cv.imencode(".png", numpy.full((4, 6, 3), shade, "uint8"))
        (tmp_path / "images" / name / "1.png").write_bytes(bytes(encoded))
    data = load_data("images", tmp_path)
    assert (data.inputs[0].shape, data.labels.tolist()) == ((2, 3, 4, 6), [0, 1])
    assert float(data.inputs[0][1, 0, 0, 0]) == pytest.approx(200 / 255)
    (tmp_path / "images" / "cat" / "2.png").write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"2\.png cannot be read as an image"):
        load_data("images", tmp_path)
    with pytest.raises(ConfigError, match=r"has no folder of images"):
        load_data(".", tmp_path / "images" / "dog")


def test_folders_of_test_images_have_the_labels_of_the_training_data(tmp_path: Path) -> None:
    from walle import cv

    for folder, names in (("train", "cat dog emu"), ("test", "cat emu"), ("other", "cat fox")):
        for name in names.split():
            (tmp_path / folder / name).mkdir(parents=True)
            _, encoded = cv.imencode(".png", numpy.zeros((4, 6, 3), "uint8"))
            (tmp_path / folder / name / "1.png").write_bytes(bytes(encoded))
    train = load_data("train", tmp_path)
    assert (train.labels.tolist(), train.classes) == ([0, 1, 2], ("cat", "dog", "emu"))
    assert load_data("test", tmp_path, train.classes).labels.tolist() == [0, 2]
    with pytest.raises(ConfigError, match="other has images of 'fox'; the training data has cat, dog, emu"):
        load_data("other", tmp_path, train.classes)


def test_a_model_of_a_file_is_adapted(goals: Path, tmp_path: Path) -> None:
    from tests.adapt.networks import images, network
    from walle import nn

    made, _ = network("residual")
    nn.to_walle(made, str(tmp_path / "net.walle"), images(1))
    model = load_model("net.walle", tmp_path)
    assert numpy.allclose(model(images()), made(images()), rtol=1e-4, atol=1e-5)
    goals.write_text(GOALS.replace("net.py:make", "net.walle"))
    (outcome,) = adapt.run(goals, tmp_path / "out")
    assert all(one.meets_budgets for one in outcome.fitted)


def test_a_report_that_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"fitted": [{}]}))
    with pytest.raises(ConfigError, match=r"report\.json cannot be read"):
        read_outcomes(tmp_path)
