"""The face task in a real VM: known faces, ONNX Runtime and OpenCV as references, hostile frames."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.apps.livestream import reference
from tests.apps.livestream.conftest import running
from walle.model_files import ModelFolder
from walle.vm import TaskError

PICTURES = (
    "astronaut.png", "grace_hopper.bmp", "face_with_toy.jpg", "chelsea.png", "cat_720p.jpg", "coffee.png",
    "hot_dog.jpg", "shoes_1.jpg",
)  # fmt: skip
PORTRAITS = PICTURES[:3]
MODELS = {"yunet": "face_yunet_n_320.onnx", "ultraface": "face_rfb320.onnx"}

type Folders = Callable[..., Path]


def inside(point: list[float], box: list[float]) -> bool:
    return box[0] <= point[0] <= box[0] + box[2] and box[1] <= point[1] <= box[1] + box[3]


@pytest.mark.asyncio
@pytest.mark.parametrize("detector", MODELS)
async def test_it_agrees_with_onnx_runtime_and_numpy(
    task_folder: Folders, models: ModelFolder, images: Path, detector: str
) -> None:
    made = reference.session(models.path / MODELS[detector])
    score, overlap = {"yunet": (0.6, 0.45), "ultraface": (0.7, 0.3)}[detector]
    found = 0
    async with running(task_folder("face", settings={"detector": detector}), "face") as task:
        for picture in PICTURES:
            image = reference.picture(images / picture)
            faces = (await task.run(image=image, second=3, pts_ms=3000))["faces"]
            expected = getattr(reference, detector)(made, image, score, overlap)
            assert len(faces) == len(expected.scores), picture
            found += len(faces)
            if faces:
                boxes = reference.clipped(expected.boxes, image)
                np.testing.assert_allclose([face["box"] for face in faces], boxes, atol=0.2)
                np.testing.assert_allclose([face["score"] for face in faces], expected.scores, atol=2e-4)
                points = np.reshape([face["points"] for face in faces], expected.points.shape)
                np.testing.assert_allclose(points, expected.points, atol=0.2)
    assert found >= len(PORTRAITS)


@pytest.mark.asyncio
async def test_yunet_finds_the_face_of_each_portrait_and_none_elsewhere(task_folder: Folders, images: Path) -> None:
    async with running(task_folder("face"), "face") as task:
        for picture in PICTURES:
            output = await task.run(image=reference.picture(images / picture), second=1, pts_ms=1500)
            assert (output["second"], output["pts_ms"]) == (1, 1500)
            assert len(output["faces"]) == (picture in PORTRAITS), picture
            for face in output["faces"]:
                right_eye, left_eye, nose, right_mouth, left_mouth = face["points"]
                assert all(inside(point, face["box"]) for point in face["points"])
                assert right_eye[0] < nose[0] < left_eye[0]
                assert right_mouth[0] < left_mouth[0]
                assert max(right_eye[1], left_eye[1]) < nose[1] < min(right_mouth[1], left_mouth[1])


@pytest.mark.asyncio
async def test_yunet_agrees_with_opencvs_own(task_folder: Folders, models: ModelFolder, images: Path) -> None:
    peer = cv2.FaceDetectorYN.create(str(models.path / MODELS["yunet"]), "", (320, 320), 0.6, 0.45, 200)
    async with running(task_folder("face"), "face") as task:
        for picture in PORTRAITS:
            image = reference.picture(images / picture)
            (face,) = (await task.run(image=image))["faces"]
            canvas, scale = reference.letterboxed(image)
            ((*box_and_points, score),) = peer.detect(canvas.astype(np.uint8))[1]
            mine = [*face["box"], *np.ravel(face["points"])]
            np.testing.assert_allclose(mine, np.array(box_and_points) / scale, atol=2.0)  # decodes whole pixels
            assert face["score"] == pytest.approx(score, abs=2e-3)


@pytest.mark.asyncio
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 4000, 3), (2000, 3, 3), (321, 320, 3), (320, 320, 3), (37, 53, 3)])
async def test_frames_of_any_size_are_taken(task_folder: Folders, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for detector in MODELS:
        async with running(task_folder("face", settings={"detector": detector}), "face") as task:
            output = await task.run(image=rng.integers(0, 256, shape, dtype=np.uint8))
            for face in output["faces"]:
                assert 0 <= face["box"][0] <= face["box"][0] + face["box"][2] <= shape[1] + 0.1


@pytest.mark.asyncio
async def test_frames_that_are_not_images_are_refused(task_folder: Folders) -> None:
    async with running(task_folder("face"), "face") as task:
        for contents, message in (
            ({}, "need `image`"),
            ({"image": [[1, 2]]}, "need `image`"),
            ({"image": np.zeros((10, 10), np.uint8)}, r"must be uint8 \[height, width, 3\], is uint8 \[10, 10\]"),
            ({"image": np.zeros((10, 10, 3), np.float32)}, "is float32"),
            ({"image": np.zeros((0, 10, 3), np.uint8)}, "1 to 8192 pixels, are 10 x 0"),
            ({"image": np.zeros((1, 8193, 3), np.uint8)}, "are 8193 x 1"),
        ):
            with pytest.raises(TaskError, match=message):
                await task.run(**contents)
        assert (await task.run(image=np.zeros((10, 10, 3), np.uint8)))["faces"] == []
