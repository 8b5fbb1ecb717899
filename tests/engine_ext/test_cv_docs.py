"""The reference page of walle.cv: it has the names, and says which are in another place in OpenCV."""

from scripts import cv_page
from walle import cv


def test_the_page_has_the_names() -> None:
    page = cv_page.page()
    assert [name for name in dir(cv) if callable(getattr(cv, name)) and name not in page] == []


def test_every_name_is_opencvs_or_is_named_as_another() -> None:
    assert "in OpenCV, NMSBoxes, blobFromImage, blobFromImages, imagesFromBlob are" in cv_page.page()
