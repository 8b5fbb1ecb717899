"""The app's own models: the engine against PyTorch's outputs, and the tasks on the drawn clip with nothing fetched."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import walle
from apps.livestream import drawing
from apps.livestream.drawn_clip import PARTS, Stage, shown_seconds, sound
from apps.livestream.make_gallery import make_gallery
from apps.livestream.own_models import CONTEXT, FOLDER, WINDOW, OwnModels, weights
from apps.livestream.task_files import TaskFilesError, choose_models, manifest, public_models, settings_of, write_task
from apps.livestream.train.install import install
from apps.livestream.train.make_data import ITEM_SETTINGS
from apps.livestream.train.reference_inputs import EVERY, image, samples
from tests.apps.livestream.conftest import running
from walle import cv
from walle.model_files import ModelFileError, ModelFolder

EXPECTED = Path(__file__).with_name("own_models.npz")  # outputs made by apps.livestream.train.reference
MAX_BYTES = 1_500_000  # limit of all models in the repository
RATE = 16_000
stage = functools.cache(Stage)


def frame(number: int, at_s: float) -> NDArray[np.uint8]:
    """Return the drawn clip's frame at a time of a part."""
    return stage().frame(PARTS[number], sum(part.seconds for part in PARTS[:number]) + at_s, at_s)


def test_the_models_are_small_and_all_numbers_are_finite() -> None:
    files = sorted(FOLDER.glob("*.npz"))
    assert [file.stem for file in files] == ["face", "item", "voice"]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    for file in files:
        with np.load(file) as pack:
            assert all(pack[key].dtype == np.float16 and np.isfinite(pack[key]).all() for key in pack.files)


@pytest.mark.parametrize("name", ["item", "face"])
def test_a_detector_gives_pytorchs_outputs(name: str, tmp_path: Path) -> None:
    found = walle.Session(OwnModels().write(name, tmp_path / "model.walle")).run({"image": image()})
    expected = np.load(EXPECTED)
    np.testing.assert_allclose(np.asarray(found["scores"])[0, ::EVERY], expected[f"{name}/scores"], atol=1e-5)
    np.testing.assert_allclose(np.asarray(found["distances"])[0, ::EVERY], expected[f"{name}/distances"], rtol=1e-4)


def test_the_voice_detector_gives_pytorchs_outputs_step_by_step(tmp_path: Path) -> None:
    session = walle.Session(OwnModels().write("voice", tmp_path / "model.walle"))
    expected = np.load(EXPECTED)
    heard = np.concatenate([np.zeros(CONTEXT, np.float32), samples()])
    state, found = np.zeros((1, 1, len(expected["voice/state"])), np.float32), []
    for start in range(0, len(heard) - CONTEXT, WINDOW):
        outputs = session.run({"input": heard[start : start + CONTEXT + WINDOW][None], "state": state})
        state = np.asarray(outputs["stateN"])
        found.append(float(outputs["output"][0, 0]))
    np.testing.assert_allclose(found, expected["voice/probability"], atol=1e-5)
    np.testing.assert_allclose(state[0, 0], expected["voice/state"], atol=1e-5)


@pytest.mark.asyncio
async def test_the_drawn_article_and_hand_are_found_and_nothing_in_the_empty_room(tmp_path: Path) -> None:
    async with running(write_task("item", tmp_path, OwnModels()), "item") as task:
        assert (await task.run(image=frame(0, 1.0)))["items"] == []
        found = (await task.run(image=frame(2, 2.0)))["items"]
        bottle = next(one for one in found if one["label"] == "bottle")
        left, top, width, height = bottle["box"]
        assert 380 < left < left + width < 500  # the bottle is drawn at 440 +- 20, 190 +- 6, with a height of 180
        assert 90 < top < 120
        assert 140 < height < 230
        presenter = next(one for one in found if one["label"] == "person")
        assert presenter["box"][2] * presenter["box"][3] > 200 * 200
        assert all(one["label"] == "person" for one in (await task.run(image=frame(1, 2.0)))["items"])


@pytest.mark.asyncio
async def test_the_presenters_face_is_found(tmp_path: Path) -> None:
    async with running(write_task("face", tmp_path, OwnModels()), "face") as task:
        assert (await task.run(image=frame(0, 1.0)))["faces"] == []
        (face,) = (await task.run(image=frame(1, 2.0)))["faces"]
        assert face["points"] == []
        left, top, width, height = face["box"]
        assert 170 < left < 240 < left + width < 310
        assert 50 < top < 130 < top + height < 200


@pytest.mark.asyncio
async def test_the_voice_model_separates_voice_from_music_and_silence(tmp_path: Path) -> None:
    heard = sound()
    async with running(write_task("voice", tmp_path, OwnModels()), "voice") as task:
        whole = await task.run(samples=heard, pts_ms=0)
        means = {one["second"]: one["mean"] for one in whole["seconds"]}
        start = 0
        for part in PARTS:
            inner = [means[second] for second in range(start + 1, start + part.seconds)]
            assert (np.mean(inner) > 0.6) if part.talks else (np.mean(inner) < 0.2), part
            start += part.seconds
        task.state = {}
        chunks = [await task.run(samples=heard[at : at + 1600], pts_ms=at // 16) for at in range(0, 5 * RATE, 1600)]
        assert [p for chunk in chunks for p in chunk["windows"]] == whole["windows"][: 5 * RATE // WINDOW]


def test_frames_to_learn_from_are_labelled_with_settings_that_the_item_task_has() -> None:
    assert ITEM_SETTINGS.keys() <= settings_of("item", OwnModels()).keys()


def test_models_of_different_runs_are_installed_beside_each_other(tmp_path: Path) -> None:
    install(FOLDER, tmp_path, names=["voice"])
    assert [path.name for path in tmp_path.iterdir()] == ["voice.npz"]
    install(FOLDER, tmp_path, names=["item", "face"])
    for name in ("item", "face", "voice"):
        made, stored = weights(name, tmp_path), weights(name)
        assert made.keys() == stored.keys()
        assert all(np.array_equal(made[key], stored[key]) for key in made)


def test_shown_seconds_are_those_of_the_parts_with_an_article() -> None:
    assert shown_seconds() == [7, 8, 9, 10, 11, 15, 16, 17, 18]


def test_without_a_wish_the_public_models_are_taken_only_if_all_are_there(tmp_path: Path) -> None:
    choice = choose_models(None, ModelFolder(tmp_path / "nothing"))
    assert isinstance(choice.models, OwnModels)
    assert "(det_nanodet, face_yunet, recognition_mobilenet, voice_silero)" in choice.why
    assert public_models() == ["det_nanodet", "face_yunet", "recognition_mobilenet", "voice_silero"]
    (tmp_path / manifest().entries["det_nanodet"].file).write_bytes(b"another file")
    with pytest.raises(ModelFileError, match="remove the file"):  # the smaller models do not silently replace it
        choose_models(None, ModelFolder(tmp_path))
    assert isinstance(choose_models("own", ModelFolder(tmp_path)).models, OwnModels)


def test_public_models_that_were_asked_for_are_not_replaced(tmp_path: Path) -> None:
    choice = choose_models("public", ModelFolder(tmp_path))
    with pytest.raises(ModelFileError, match="walle model get voice_silero"):
        write_task("voice", tmp_path / "voice", choice.models)


def test_the_public_models_are_taken_where_they_are(models: ModelFolder) -> None:
    choice = choose_models(None, models)
    assert choice.models is models
    assert "public models" in choice.why


@pytest.mark.asyncio
async def test_a_gallery_of_the_own_embedder_names_an_item_and_is_refused_by_the_other(tmp_path: Path) -> None:
    bottle, other = frame(2, 2.0)[90:290, 390:500], drawing.cup(190, np.random.default_rng(1)).image[..., :3]
    for name, picture in (("bottle", bottle), ("cup", other)):
        (tmp_path / f"{name}.png").write_bytes(memoryview(cv.imencode(".png", picture)[1]).tobytes())
    path = tmp_path / "gallery.json"
    made = make_gallery([f"{name}={tmp_path / name}.png" for name in ("bottle", "cup")], OwnModels())
    path.write_text(json.dumps(made))
    async with running(write_task("item", tmp_path / "task", OwnModels(), gallery=path), "item") as task:
        assert (await task.run(image=frame(2, 3.0)))["match"]["name"] == "bottle"
    with pytest.raises(TaskFilesError, match="was not made with recognition_mobilenet"):
        write_task("item", tmp_path / "other", ModelFolder(tmp_path), gallery=path)
