"""[variants] of task.toml: files that replace others of the version on the devices for which a rule is true."""

import dataclasses
from collections.abc import Mapping

from walle.errors import DeployError
from walle.protocol import MAX_VARIANT_RULE_CHARS, MAX_VARIANTS, VARIANT_NAME_RULE, is_variant_name

_KEYS = ("rule", "files")


class VariantError(DeployError):
    """A table [variants.NAME] that is wrong. `key` is NAME, or NAME.KEY."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key} {what}".strip())
        self.key = key
        self.what = what


@dataclasses.dataclass(frozen=True)
class Variant:
    """A table [variants.NAME]: `files` has, by the path of a file of the version, the file of the tree in its place.

    The cloud checks the rule when the version is released: it knows the attributes that devices have.
    """

    name: str
    rule: str
    files: Mapping[str, str]


def parse_variants(tables: Mapping[str, object], routes: Mapping[str, str], dictionary: str) -> tuple[Variant, ...]:
    """Return the variants in the order of the file; `routes` is [files], `dictionary` that of [tunnel].

    Raises:
        VariantError: a table is wrong, or replaces what is not a shared file of the version.
    """
    if len(tables) > MAX_VARIANTS:
        raise VariantError(list(tables)[MAX_VARIANTS], f"is one of {len(tables)} variants, more than {MAX_VARIANTS}")
    return tuple(_variant(name, table, routes, dictionary) for name, table in tables.items())


def _variant(name: str, table: object, routes: Mapping[str, str], dictionary: str) -> Variant:
    if not is_variant_name(name):
        raise VariantError(name[:80], f"is not the name of a variant: {VARIANT_NAME_RULE}")
    if not isinstance(table, dict):
        raise VariantError(name, f"must be a table with {' and '.join(_KEYS)}: write [variants.{name}]")
    for key in table:
        if key not in _KEYS:
            raise VariantError(name, f"has an unknown key {key[:80]!r}; there are {', '.join(_KEYS)}")
    rule, files = table.get("rule"), table.get("files")
    if not isinstance(rule, str) or not rule.strip() or len(rule) > MAX_VARIANT_RULE_CHARS:
        what = f'must be a rule of at most {MAX_VARIANT_RULE_CHARS} characters, such as "ram_mb < 512"'
        raise VariantError(f"{name}.rule", what)
    if not isinstance(files, dict) or not files:
        example = '{"resources/model.walle" = "resources/model-small.walle"}'
        raise VariantError(f"{name}.files", f"must be a table of files and what replaces them, such as {example}")
    for path, other in files.items():
        if routes.get(path) != "shared":
            raise VariantError(f"{name}.files", f"replaces {path[:200]!r}, which [files] does not list as shared")
        if path == dictionary:
            raise VariantError(f"{name}.files", f"replaces {path!r}, which all devices share: it is in [tunnel]")
        if not isinstance(other, str) or not other:
            raise VariantError(f"{name}.files", f"{path!r} must be the path of a file, is {str(other)[:80]!r}")
        if routes.get(other) == "cloud":
            raise VariantError(f"{name}.files", f"{other!r} is a file of the cloud, which no device gets")
    return Variant(name, rule.strip(), dict(files))
