"""Losses of uploads: their counts by cause, and their texts."""

import pytest

from walle.pipeline.features.losses import Loss, LossCause, open_by_cause, uploads_by_cause

_CLOSED = Loss("e", 3, 12, LossCause.DAMAGED)
_OPEN = Loss("f", 20, None, LossCause.DAMAGED)
_OTHER = Loss("e", 30, None, LossCause.DEVICE_RESTORED)


def test_an_open_loss_counts_as_one_upload_and_as_open() -> None:
    losses = [_CLOSED, _OPEN, _OTHER]
    assert uploads_by_cause(losses) == {"cloud-restored": 0, "device-restored": 1, "damaged": 11, "refused": 0}
    assert open_by_cause(losses) == {"cloud-restored": 0, "device-restored": 1, "damaged": 1, "refused": 0}


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (_CLOSED, "uploads 3 to 12 of epoch e (damaged)"),
        (_OPEN, "uploads from 20 on of epoch f (damaged): at least 1, the end is unknown yet"),
    ],
)
def test_the_text_says_where_the_number_is_a_lower_bound(loss: Loss, text: str) -> None:
    assert str(loss) == text
    assert Loss.decode(loss.encode()) == loss
