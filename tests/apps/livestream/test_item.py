"""The item task in a real VM: known items, ONNX Runtime and NumPy as the reference, reuse of answers, the gallery."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import walle
from apps.livestream.make_embedder import write_embedder
from apps.livestream.make_gallery import GalleryError, item_image, make_gallery
from apps.livestream.task_files import TASKS, TaskFilesError, write_task
from tests.apps.livestream import reference
from tests.apps.livestream.conftest import running
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.tflite_import.read import read_tflite
from walle.model_files import ModelFileError, ModelFolder
from walle.vm import TaskError

LABELS = {
    "astronaut.png": {"person"}, "grace_hopper.bmp": {"person", "tie"}, "face_with_toy.jpg": {"person"},
    "chelsea.png": {"cat"}, "cat_720p.jpg": {"cat"}, "coffee.png": {"cup", "dining table"},
}  # fmt: skip
PICTURES = (*LABELS, "hot_dog.jpg", "shoes_1.jpg")
SETTINGS = json.loads((TASKS / "item/resources/settings.json").read_text())

type Folders = Callable[..., Path]


@pytest.mark.asyncio
@pytest.mark.parametrize("score", [SETTINGS["score"], 0.2])
async def test_it_agrees_with_onnx_runtime_and_numpy(
    task_folder: Folders, models: ModelFolder, images: Path, score: float
) -> None:
    made = reference.session(models.path / "det_nanodet_m_320.onnx")
    async with running(task_folder("item", settings={"score": score}), "item") as task:
        for picture in PICTURES:
            image = reference.picture(images / picture)
            items = (await task.run(image=image))["items"]
            expected = reference.nanodet(made, image, score, SETTINGS["overlap"])
            assert len(items) == len(expected.scores), picture
            if items:
                boxes = reference.clipped(expected.boxes, image)
                np.testing.assert_allclose([item["box"] for item in items], boxes, atol=0.3)
                np.testing.assert_allclose([item["score"] for item in items], expected.scores, atol=2e-4)


@pytest.mark.asyncio
async def test_it_names_known_items(task_folder: Folders, images: Path) -> None:
    async with running(task_folder("item"), "item") as task:
        for picture, labels in LABELS.items():
            output = await task.run(image=reference.picture(images / picture), second=2, pts_ms=2500)
            found = {item["label"] for item in output["items"]}
            assert labels & found, picture
            assert (output["second"], output["pts_ms"], output["match"]) == (2, 2500, None)
            assert [item["score"] for item in output["items"]] == sorted(
                (item["score"] for item in output["items"]), reverse=True
            )


@pytest.mark.asyncio
async def test_the_best_item_is_matched_to_the_gallery(models: ModelFolder, images: Path, tmp_path: Path) -> None:
    chelsea, cat, cup = (str(images / name) for name in ("chelsea.png", "cat_720p.jpg", "coffee.png"))
    made = make_gallery([f"chelsea={chelsea}", f"the-cup={cup}@170,18,250,297", f"other-cat={cat}"], models)
    (tmp_path / "gallery.json").write_text(json.dumps(made))
    folder = write_task("item", tmp_path / "task", models, gallery=tmp_path / "gallery.json")
    async with running(folder, "item") as task:
        for path, name in ((chelsea, "chelsea"), (cat, "other-cat"), (cup, "the-cup")):
            match = (await task.run(image=reference.picture(Path(path))))["match"]
            assert match["name"] == name
            assert match["likeness"] > 0.8
            assert 0 < match["margin"] <= match["likeness"]
            assert match["label"] in {"cat", "cup"}
        nobody = await task.run(image=reference.picture(images / "astronaut.png"))
        assert {item["label"] for item in nobody["items"]} == {"person"}
        assert nobody["match"] is None  # persons are ignored


@pytest.mark.asyncio
async def test_the_gallery_has_the_tasks_own_embedding(models: ModelFolder, images: Path, tmp_path: Path) -> None:
    path = images / "coffee.png"
    (tmp_path / "gallery.json").write_text(json.dumps(make_gallery([f"cup={path}"], models)))
    folder = write_task("item", tmp_path / "task", models, gallery=tmp_path / "gallery.json")
    async with running(folder, "item") as task:
        left, top, width, height = (await task.run(image=reference.picture(path)))["match"]["box"]
    left, right, top, bottom = int(left), round(left + width), int(top), round(top + height)  # pixels of the crop
    made = make_gallery([f"cup={path}@{left},{top},{right - left},{bottom - top}"], models)
    (tmp_path / "gallery.json").write_text(json.dumps(made))
    async with running(write_task("item", tmp_path / "own", models, gallery=tmp_path / "gallery.json"), "item") as task:
        match = (await task.run(image=reference.picture(path)))["match"]
    assert match["likeness"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("chelsea.png", "is not of the form"),
        ("cat=none.png", "cannot be read: No such file"),
        ("cat=chelsea.png@400,0,100,10", "the box is not in the image, which has 451 x 300"),
        ("cat=chelsea.png@0,0,0,10", "the box is not in the image"),
        ("cat=text.png", "is not a JPEG or PNG image"),
    ],
)
def test_an_image_that_is_not_usable_is_refused(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, message: str
) -> None:
    (tmp_path / "chelsea.png").symlink_to(images / "chelsea.png")
    (tmp_path / "text.png").write_text("not an image")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GalleryError, match=message):
        item_image(argument)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], 'must be {"items"'),
        ({"cup": [[1.0, 2.0]]}, "'cup': an embedding must be 256 numbers"),
        ({"cup": [[0.0] * 256]}, "not all 0"),
        ({"cup": [[float("nan")] * 256]}, "not all 0"),
    ],
)
async def test_a_damaged_gallery_fails_the_run_with_its_reason(
    models: ModelFolder, images: Path, tmp_path: Path, items: Any, message: str
) -> None:
    made = {**make_gallery([f"cat={images / 'chelsea.png'}"], models), "items": items}
    (tmp_path / "gallery.json").write_text(json.dumps(made))
    folder = write_task("item", tmp_path / "task", models, gallery=tmp_path / "gallery.json")
    async with running(folder, "item") as task:
        with pytest.raises(TaskError, match=message):
            await task.run(image=reference.picture(images / "chelsea.png"))


@pytest.mark.asyncio
async def test_the_devices_own_gallery_replaces_the_versions(models: ModelFolder, images: Path, tmp_path: Path) -> None:
    """It comes and goes as an exclusive file, without a new version; one that is not usable is logged once."""
    picture = images / "chelsea.png"
    own, shared = (make_gallery([f"{name}={picture}"], models) for name in ("mine", "everyones"))
    (tmp_path / "gallery.json").write_text(json.dumps(shared))
    folder = write_task("item", tmp_path / "task", models, gallery=tmp_path / "gallery.json")
    image = reference.picture(picture)
    async with running(folder, "item") as task:
        assert (await task.run(image=image))["match"]["name"] == "everyones"
        task.exclusive["gallery.json"] = json.dumps(own).encode()
        assert (await task.run(image=image))["match"]["name"] == "mine"
        for unusable, why in ((json.dumps({**own, "sha256": "00"}), "another embedder"), ("{", "is not used: ")):
            task.exclusive["gallery.json"] = unusable.encode()
            assert (await task.run(image=image))["match"]["name"] == "everyones"
            assert why in task.log[0][1]
            await task.run(image=image)
            assert task.log == []
        task.exclusive["gallery.json"] = json.dumps(own).encode()
        assert (await task.run(image=image))["match"]["name"] == "mine"
        task.exclusive.clear()
        assert (await task.run(image=image))["match"]["name"] == "everyones"


def test_a_gallery_of_another_model_is_not_pushed(models: ModelFolder, tmp_path: Path) -> None:
    for text in ('{"sha256": "00", "items": {}}', "no json", "[]"):
        (tmp_path / "gallery.json").write_text(text)
        with pytest.raises(TaskFilesError, match="make_gallery"):
            write_task("item", tmp_path / "task", models, gallery=tmp_path / "gallery.json")


def test_settings_and_models_that_are_absent_are_named(models: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(TaskFilesError, match="unknown setting treshold; known are: detector, score"):
        write_task("item", tmp_path / "task", models, settings={"treshold": 1})
    with pytest.raises(TaskFilesError, match="detector is 'haar', must be one of yunet, ultraface"):
        write_task("face", tmp_path / "task", models, settings={"detector": "haar"})
    with pytest.raises(TaskFilesError, match="detector is 'own', must be one of silero"):
        write_task("voice", tmp_path / "voice", models, settings={"detector": "own"})
    with pytest.raises(ModelFileError, match="walle model get voice_silero"):
        write_task("voice", tmp_path / "voice", ModelFolder(tmp_path))


@pytest.mark.asyncio
async def test_noise_is_analysed_in_bounded_time(task_folder: Folders) -> None:
    rng = np.random.default_rng(5)
    async with running(task_folder("item", settings={"score": 0.0, "candidates": 100}), "item") as task:
        output = await task.run(image=rng.integers(0, 256, (1080, 1920, 3), dtype=np.uint8))
    assert 0 < len(output["items"]) <= 100


# --- the embedder


def test_the_embedder_is_the_published_classifier(models: ModelFolder, tmp_path: Path) -> None:
    embedder = walle.Session(write_embedder(models.path / "cls_mobilenet_v1_0.25_128.tflite", tmp_path / "e.walle"))
    same = onnx.load(models.path / "cls_mobilenet_v1_0.25_128.onnx")  # converted from the same file by others
    (pool,) = [node.output[0] for node in same.graph.node if node.op_type == "AveragePool"]
    same.graph.output.append(onnx.helper.make_tensor_value_info(pool, onnx.TensorProto.FLOAT, None))
    peer = onnxruntime.InferenceSession(same.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    for _ in range(3):
        image = rng.uniform(-1, 1, (1, 128, 128, 3)).astype(np.float32)
        probabilities, pooled = peer.run(["output", pool], {"input": image})
        found = embedder.run({"image": np.ascontiguousarray(image.transpose(0, 3, 1, 2))})
        np.testing.assert_allclose(np.asarray(found["embedding"]), pooled.reshape(1, 256), atol=1e-4)
        np.testing.assert_allclose(np.asarray(found["probabilities"]), probabilities, atol=1e-5)


def test_damaged_tflite_files_are_refused(models: ModelFolder) -> None:
    data = (models.path / "cls_mobilenet_v1_0.25_128.tflite").read_bytes()
    assert len(read_tflite(data).operators) == 31
    quantised = (models.path / "cls_mobilenet_v1_0.25_128_uint8.tflite").read_bytes()
    with pytest.raises(UnsupportedError, match="must be float32"):
        read_tflite(quantised)
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(300):
        broken = bytearray(data[: int(rng.integers(0, len(data)))] if rng.random() < 0.5 else data)
        for place in rng.integers(0, max(1, min(len(broken), 4096)), 20):
            if broken:
                broken[place % len(broken)] = int(rng.integers(0, 256))
        try:
            read_tflite(bytes(broken))
        except (ModelError, UnsupportedError):
            refused += 1
    assert refused > 200
