"""Configuration of a cloud: resources of Ray as texts."""

import pytest

from walle.cloud.folder.config import parse_resources
from walle.errors import ConfigError


def test_resources_are_names_with_amounts() -> None:
    assert parse_resources(()) == {}
    assert parse_resources(["CPU=2", "GPU=0.5", "slots=1e3", "CPU=4"]) == {"CPU": 4, "GPU": 0.5, "slots": 1000}


@pytest.mark.parametrize("text", ["", "CPU", "CPU=", "=1", "CPU=0", "CPU=-1", "CPU=nan", "CPU=inf", "CPU=1.5", "CPU=x"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be NAME=AMOUNT") as error:
        parse_resources([text])
    assert repr(text) in str(error.value)
