"""A task in three sizes: variants with a smaller model for devices of performance low and middle.

The cloud's attributes.toml must declare `performance`, a string, before such a version is released.
"""

from collections.abc import Sequence
from pathlib import Path

SIZES = ("low", "middle")  # classes of devices by performance with a model smaller than the version's


def sized(file: str, size: str) -> str:
    """Return the name of a model's smaller file: detector.walle, low -> detector-low.walle."""
    stem, _, suffix = file.rpartition(".")
    return f"{stem}-{size}.{suffix}"


def add_variants(task: Path, file: str, sizes: Sequence[str] = SIZES) -> None:
    """Add to a task's folder the variants in which resources/`file` is replaced by its smaller ones."""
    made = [
        f"[variants.{size}]\nrule = \"performance == '{size}'\"\n"
        f'files = {{"resources/{file}" = "resources/{sized(file, size)}"}}\n'
        for size in sizes
    ]
    config = task / "task.toml"
    config.write_text("\n".join([config.read_text("utf-8"), *made]), "utf-8")
