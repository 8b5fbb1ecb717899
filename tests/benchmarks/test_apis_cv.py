"""docs/api-cv.md: its names and intended differences are those of walle.cv as it is."""

from pathlib import Path

import cv2

from benchmarks.apis_cv import head

PAGE = Path(__file__).parents[2] / "docs/api-cv.md"


def test_the_page_has_the_names() -> None:
    page = PAGE.read_text()
    wanted = head("OpenCV 5").splitlines()[4:]
    assert page.splitlines()[4 : 4 + len(wanted)] == wanted, "write it again: python -m benchmarks.apis_cv"


def test_every_name_is_opencvs_or_is_named_as_another() -> None:
    assert "in OpenCV, NMSBoxes, blobFromImage, blobFromImages, imagesFromBlob are" in head("OpenCV 5")
    assert hasattr(cv2, "matchTemplate")
