"""Variants of a task version: files that replace others of the version on some devices, such as a smaller model.

The cloud finds the first variant whose rule admits a device, and names it in the envelope of the manifest that it sends
there (`walle.protocol.manifests.Envelope`): the directive's hash covers it. Without one a device has the version's own
files. A device says which it has: `v4@small` is the variant `small` of v4 in its profile.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walle.protocol.manifests import FileEntry

MAX_VARIANTS = 8
MAX_VARIANT_RULE_CHARS = 2000
VARIANT_NAME_RULE = "lower-case letters, digits, - and _, at most 32, the first a letter or digit"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
_MARK = "@"


@dataclasses.dataclass(frozen=True)
class FileVariant:
    """A variant as a manifest has it: `files` replace those of the same paths where the cloud's `rule` is true."""

    name: str
    rule: str
    files: "tuple[FileEntry, ...]"

    def to_json(self) -> Mapping[str, Any]:
        return {"name": self.name, "rule": self.rule, "files": [dataclasses.asdict(entry) for entry in self.files]}


def is_variant_name(text: str) -> bool:
    """Return whether `text` may name a variant."""
    return _NAME.fullmatch(text) is not None


def installed_name(version: str, variant: str) -> str:
    """Return the version with its variant, if it is one, as a device reports it."""
    return f"{version}{_MARK}{variant}" if variant else version


def version_of(installed: str) -> str:
    """Return the version without the variant."""
    return installed.partition(_MARK)[0]
