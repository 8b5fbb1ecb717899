"""The item detector in three sizes: the network that is adapted, the measure, and the task with variants."""

import sys
from pathlib import Path

import numpy as np
import pytest

import walle
from apps.livestream import adapt_detector
from apps.livestream.adapt_detector import Detector, Frames, agreement, drawn, labelled, labels_of, make, save
from apps.livestream.drawn_clip import PARTS, Stage
from apps.livestream.own_models import SIDE, OwnModels, weights
from apps.livestream.task_files import TaskFilesError, write_task
from apps.sizes import SIZES
from walle import cv, nn
from walle.adapt.costs.formula import CostFormula
from walle.adapt.structure.cut import cut
from walle.adapt.structure.network import find_structure
from walle.model_files import ModelFolder
from walle.task.format.config import TaskConfig

KEPT = {"low": 2, "middle": 4}  # eighths of all channels, here not trained


def _sizes(folder: Path) -> dict[str, nn.Module]:
    """Write smaller detectors into a folder, and return them."""
    folder.mkdir()
    model, frame = make(), drawn(1, 3)
    structure = find_structure(model, [np.concatenate([frame, frame])])
    found = {}
    for name, eighths in KEPT.items():
        found[name] = cut(model, structure, [list(range(width * eighths // 8)) for width in structure.widths])
        nn.to_walle(found[name], folder / "cut.walle", frame)
        save(folder / "cut.walle", folder / f"item-{name}.npz")
    return found


def test_the_network_that_is_adapted_is_the_apps_detector(tmp_path: Path) -> None:
    frames, labels = labelled(3, 5)
    session = walle.Session(OwnModels().write("item", tmp_path / "model.walle"))
    for frame, label in zip(frames, labels, strict=True):
        np.testing.assert_allclose(
            np.asarray(session.run({"image": frame[None]})["scores"])[0], label[:, :6], atol=1e-5
        )
    assert np.array_equal(drawn(3, 5), frames)
    assert not np.array_equal(drawn(3, 6), frames)


def test_agreement_is_of_classes_and_boxes() -> None:
    _, labels = labelled(6, 7)
    logits = np.log(labels[:, :, :6] / np.maximum(1 - labels[:, :, :6], 1e-7))
    reach = labels[:, :, 6:]
    seen = (labels[:, :, 1:6].max((1, 2)) >= 0.4).mean()
    assert 0.5 <= seen <= 1
    assert agreement((logits, reach), labels) == 1
    other = np.concatenate([logits[:, :, :1], np.roll(logits[:, :, 1:], 1, axis=2)], axis=2)
    assert agreement((other, reach), labels) == pytest.approx(1 - seen)
    assert agreement((logits, reach - 1), labels) == pytest.approx(1 - seen)  # boxes of an eighth of the area
    assert agreement((np.full_like(logits, -9), reach), labels) == pytest.approx(1 - seen)


def test_the_item_task_has_three_sizes(tmp_path: Path) -> None:
    models, frame = _sizes(tmp_path / "sizes"), drawn(1, 3)
    task = write_task("item", tmp_path / "item", OwnModels(), sizes=tmp_path / "sizes")
    variants = TaskConfig.parse((task / "task.toml").read_bytes(), "task.toml").variants
    assert tuple(one.name for one in variants) == SIZES
    files, operations = {}, {}
    for one in variants:
        assert one.rule == f"performance == '{one.name}'"
        files[one.name] = task / one.files["resources/detector.walle"]
        scores = np.asarray(walle.Session(files[one.name]).run({"image": frame})["scores"])
        logits, _ = models[one.name](frame)
        np.testing.assert_allclose(scores, 1 / (1 + np.exp(-np.asarray(logits))), atol=2e-3)  # weights of float16
        structure = find_structure(Detector(weights(f"item-{one.name}", tmp_path / "sizes")), [np.repeat(frame, 2, 0)])
        operations[one.name] = CostFormula(structure, None).whole()["operations"]
    assert operations["low"] < operations["middle"] / 2 < 176e6 / 4
    sizes = [files["low"].stat().st_size, files["middle"].stat().st_size]
    assert sorted(sizes) == sizes
    assert sizes[1] < (task / "resources" / "detector.walle").stat().st_size / 2


def test_sizes_of_other_tasks_and_missing_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFilesError, match=r"has no item-low.npz; apps.livestream.adapt_detector makes it"):
        write_task("item", tmp_path / "item", OwnModels(), sizes=tmp_path)
    with pytest.raises(TaskFilesError, match="only the app's own item detector is made in three"):
        write_task("face", tmp_path / "face", OwnModels(), sizes=tmp_path)
    with pytest.raises(TaskFilesError, match="only the app's own item detector is made in three"):
        write_task("item", tmp_path / "public", ModelFolder(tmp_path), sizes=tmp_path)


def _outputs(size: str, folder: Path, frames: Frames) -> tuple[Frames, ...]:
    model = Detector(weights(f"item-{size}", folder))
    return tuple(np.asarray(part) for part in model(frames))


def _clip() -> Frames:
    """Return two frames a second of the drawn clip, as the item task prepares them."""
    stage, start, found = Stage(), 0, []
    for part in PARTS:
        for half in range(2 * part.seconds):
            frame = stage.frame(part, start + half / 2, half / 2)
            padded = np.zeros((SIDE, SIDE, 3), np.uint8)
            padded[: SIDE * 9 // 16] = cv.resize(frame, (SIDE, SIDE * 9 // 16))
            found.append(padded.transpose(2, 0, 1) / 127.5 - 1)
        start += part.seconds
    return np.asarray(found, np.float32)


@pytest.mark.night
@pytest.mark.timeout(600)
def test_adapted_detectors_see_most_of_what_the_given_one_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["adapt_detector", str(tmp_path / "sizes")])
    adapt_detector.main()
    printed = capsys.readouterr().out
    task = write_task("item", tmp_path / "item", OwnModels(), sizes=tmp_path / "sizes")
    frames, labels = labelled(48, 8)
    agree = {}
    for size in SIZES:
        agree[size] = agreement(_outputs(size, tmp_path / "sizes", frames), labels)
        assert (task / "resources" / f"detector-{size}.walle").is_file()
    nothing = agreement((np.full_like(labels[:, :, :6], -9), labels[:, :, 6:]), labels)
    assert agree["low"] > max(0.45, nothing + 0.1), printed
    assert agree["middle"] > max(0.6, nothing + 0.2), printed
    clip = _clip()
    wanted = labels_of(clip)
    in_clip = {size: agreement(_outputs(size, tmp_path / "sizes", clip), wanted) for size in SIZES}
    assert min(in_clip.values()) > 0.8, in_clip
