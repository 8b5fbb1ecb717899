"""Sizes in bytes as operators write them: 500MB, 20GB, 1.5TB."""

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_size(text: str) -> int:
    """Return the number of bytes. Raises ValueError if the text is not a number and a unit."""
    unit = text.lstrip("0123456789.")
    try:
        return int(float(text.removesuffix(unit)) * UNITS[unit])
    except (KeyError, OverflowError) as error:
        raise ValueError(text) from error
