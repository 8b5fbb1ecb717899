"""The tasks palm and article in real VMs, where their models are; and which tasks run with which models."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
from apps.livestream.evaluate import PATIENT
from apps.livestream.make_palm_detector import write_palm_detector
from apps.livestream.media import Frame, Item
from apps.livestream.own_models import OwnModels
from apps.livestream.player import Player
from apps.livestream.studio import Studio
from apps.livestream.task_files import (
    SETTINGS_WITH_ARTICLES,
    TASKS,
    TaskFilesError,
    choose_models,
    settings_of,
    tasks_of,
    write_task,
)
from tests.apps.livestream import reference
from tests.apps.livestream.conftest import running
from tests.apps.livestream.test_player import Script
from walle.errors import WalleError
from walle.model_files import ModelFolder

BASE = ("item", "face", "voice", "highlight")

type Folders = Callable[..., Path]


def module(task: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{task}_{name}", TASKS / task / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


MAP = module("article", "article_map")


class TestMap:
    @settings(max_examples=50, deadline=None)
    @given(st.integers(3, 20), st.integers(0, 1000))
    def test_the_means_are_those_of_the_middle_and_the_edge(self, side: int, seed: int) -> None:
        cells = np.random.default_rng(seed).random((side, side))
        margin, edge = side * 2 // 7, max(1, side // 7)
        rim = np.ones((side, side), bool)
        rim[edge : side - edge, edge : side - edge] = False
        expected = cells[margin : side - margin, margin : side - margin].mean(), cells[rim].mean()
        np.testing.assert_allclose(MAP.centre_and_border(cells.tolist()), expected, atol=1e-9)

    def test_an_article_everywhere_is_in_both(self) -> None:
        assert MAP.centre_and_border([[1.0] * 14] * 14) == (1.0, 1.0)


# --- which tasks run --------------------------------------------------------------------------------------------------


def test_without_the_two_models_the_app_runs_as_before_and_says_what_that_costs(models: ModelFolder) -> None:
    assert tasks_of(models) == tasks_of(OwnModels()) == BASE
    assert set(settings_of("highlight", models)["device"]["weights"]) == {"held", "closeup", "kept"}
    for asked in (None, "public"):
        why = choose_models(asked, models).why
        assert "without palm_mediapipe and article_efficientnet" in why
        assert "F1 0.50 instead of 0.85" in why
        assert "walle model get" in why


def test_with_both_models_two_more_tasks_run_and_their_evidence_decides(article_models: ModelFolder) -> None:
    assert tasks_of(article_models) == (*BASE, "palm", "article")
    found = settings_of("highlight", article_models)
    assert found["device"] == json.loads(SETTINGS_WITH_ARTICLES.read_text())["highlight"]["device"]
    assert set(found["device"]["weights"]) == {"handled", "shown"}
    assert "without" not in choose_models("public", article_models).why


def test_one_of_the_two_models_alone_is_not_used(article_models: ModelFolder, tmp_path: Path) -> None:
    for path in article_models.path.iterdir():
        if path.suffix != ".pth":
            (tmp_path / path.name).symlink_to(path)
    assert tasks_of(ModelFolder(tmp_path)) == BASE
    assert "without article_efficientnet" in choose_models("public", ModelFolder(tmp_path)).why


def test_the_own_models_have_neither_palm_nor_article(tmp_path: Path) -> None:
    with pytest.raises(TaskFilesError, match="has no model among the app's own"):
        write_task("article", tmp_path, OwnModels())


# --- with the models --------------------------------------------------------------------------------------------------


def test_the_palm_detector_is_the_published_one(article_models: ModelFolder, tmp_path: Path) -> None:
    """The numbers are of LiteRT 2.1 (ai-edge-litert), XNNPACK, for an image that a formula makes."""
    session = walle.Session(
        write_palm_detector(article_models.path / "palm_detection_full.tflite", tmp_path / "palm.walle")
    )
    row, column, channel = np.meshgrid(np.arange(192), np.arange(192), np.arange(3), indexing="ij")
    image = ((row * row // 24 + column * (5 - channel) + 17 * channel) % 256 / 255).astype(np.float32)
    found = session.run({"image": np.ascontiguousarray(image.transpose(2, 0, 1))[None]})
    scores, boxes = np.asarray(found["scores"])[0, :, 0], np.asarray(found["boxes"])[0]
    assert (scores.shape, boxes.shape) == ((2016,), (2016, 18))
    assert np.argsort(-scores)[:3].tolist() == [442, 394, 396]
    np.testing.assert_allclose(scores[[442, 394, 396]], [-1.450603, -1.727455, -1.841258], atol=1e-4)
    np.testing.assert_allclose(boxes[442, :4], [-1.9925, -1.7434, 14.1804, 14.1805], atol=1e-3)
    np.testing.assert_allclose([scores.mean(), boxes.mean()], [-9.616733, 5.274998], atol=1e-4)


def test_a_damaged_palm_detector_is_read_or_refused(article_models: ModelFolder, tmp_path: Path) -> None:
    """Only what is not weights is changed: the tables of the file."""
    data = (article_models.path / "palm_detection_full.tflite").read_bytes()
    ends = (0, 64), (len(data) - 60_000, len(data))
    rng = np.random.default_rng(3)
    path, outcomes = tmp_path / "damaged.tflite", [0, 0]
    for number in range(60):
        broken = bytearray(data)
        start, end = ends[number % 2]
        for place in rng.integers(start, end, 4):
            broken[place] = rng.integers(256)
        path.write_bytes(broken)
        try:
            walle.Session(write_palm_detector(path, tmp_path / "palm.walle"))
            outcomes[0] += 1
        except WalleError:
            outcomes[1] += 1
    assert all(outcomes)


@pytest.mark.asyncio
async def test_palms_are_in_pixels_of_the_frame_and_move_with_it(task_folder: Folders, images: Path) -> None:
    """A man who holds a toy, and the same photograph at the top right of a larger frame."""
    picture = reference.picture(images / "face_with_toy.jpg")
    height, width = picture.shape[:2]
    large = cv2.copyMakeBorder(picture, 0, height // 2, width // 2, 0, cv2.BORDER_CONSTANT)
    async with running(task_folder("palm"), "palm") as task:
        found = await task.run(image=picture, second=3, pts_ms=3250)
        moved = (await task.run(image=large))["palms"]
    assert (found["second"], found["pts_ms"]) == (3, 3250)
    assert len(found["palms"]) == len(moved) == 2
    for palm, again in zip(found["palms"], moved, strict=True):
        left, top, across, down = palm["box"]
        assert 0.3 < palm["score"] <= 1
        np.testing.assert_allclose(again["box"], [left + width // 2, top, across, down], atol=20)
    left, top, across, down = found["palms"][0]["box"]
    assert left < 432 < left + across  # the fingers around the toy, by eye
    assert top < 228 < top + down


@pytest.mark.asyncio
async def test_the_article_task_gives_the_models_map(
    task_folder: Folders, article_models: ModelFolder, images: Path
) -> None:
    session = walle.Session(task_folder("article") / "resources/map.walle")
    async with running(task_folder("article"), "article") as task:
        for name in ("coffee.png", "chelsea.png"):
            picture = reference.picture(images / name)
            output = await task.run(image=picture, second=1)
            cells = np.asarray(session.run({"image": reference.squeezed(picture, 448)})["articles"])[0, 0]
            centre, border = MAP.centre_and_border(cells.tolist())
            assert output["second"] == 1
            assert output["article"]["centre"] == pytest.approx(centre, abs=0.01), name
            assert output["article"]["border"] == pytest.approx(border, abs=0.01), name


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["palm", "article"])
async def test_noise_and_thin_frames_are_analysed(task_folder: Folders, name: str) -> None:
    rng = np.random.default_rng(5)
    async with running(task_folder(name), name) as task:
        for shape in ((720, 1280, 3), (1, 2000, 3), (2000, 1, 3)):
            output = await task.run(image=rng.integers(0, 256, shape, dtype=np.uint8))
            assert name in ("article",) or len(output["palms"]) <= 6


@pytest.mark.system
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_the_app_decides_by_palms_and_articles_and_equally_each_time(
    article_models: ModelFolder, images: Path, tmp_path: Path
) -> None:
    """Six tasks on a device, released by a cloud: a photograph of a cup, shown alone, and then a cat."""
    pictures = [cv2.resize(reference.picture(images / name), (640, 426)) for name in ("coffee.png", "chelsea.png")]
    frames: list[Item] = [Frame(pts_ms, pictures[pts_ms // 3000]) for pts_ms in range(0, 6000, 500)]
    async with Studio(tmp_path / "studio", article_models, settings={"highlight": PATIENT}) as studio:
        [device] = studio.devices
        runs = []
        for _ in range(2):
            player = Player(device, Script(frames), paced=False)  # type: ignore[arg-type]
            runs.append([each.output async for each in player.decisions()])
    assert runs[0] == runs[1]
    assert player.chooser.cpu_s.keys() == {"item", "face", "palm", "article", "highlight"}  # what a budget counts
    assert player.builder.counts.answered["article"] == player.builder.counts.answered["item"]
    found = [output for output in runs[0] if output is not None]
    assert [output["highlight"] for output in found[:3]] == [True] * 3
    assert not found[-1]["highlight"]
    shown = [output["evidence"]["shown"] for output in found]
    assert min(shown[:3]) > 0.25
    assert shown[3] == pytest.approx(2 / 3 * shown[2], abs=0.02)  # the cat's first second, by the mean of three
