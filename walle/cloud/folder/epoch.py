"""Epoch of a cloud's folder: devices order serials within it, and a cloud restored from a backup begins a new one.

A restored cloud draws serials again that it had drawn before it was lost. Devices would refuse them as replays. In a
higher epoch, serials begin again.
"""

from pathlib import Path

from walle.base.clock import Clock
from walle.base.durable_file import write_file
from walle.errors import ConfigError

_FILE = "epoch"


def read_epoch(home: Path) -> int:
    """Return the epoch of a cloud's folder, 1 where none was ever raised. Raises ConfigError."""
    path = home / _FILE
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return 1
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 53):
        raise ConfigError(f"{path}: {text[:40]!r} is not an epoch; restore the folder again with walle cloud restore")
    return int(text)


def raise_epoch(home: Path, clock: Clock) -> int:
    """Begin a new epoch in the folder of a cloud that is not running, and return it.

    It is the time in seconds where that is higher than the epoch in the folder plus one: two restores of one backup
    get different epochs.
    """
    epoch = max(read_epoch(home) + 1, int(clock.time()))
    write_file(home / _FILE, f"{epoch}\n")
    return epoch
