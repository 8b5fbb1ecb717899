"""Table of changes between opsets, against ONNX's definitions."""

from collections.abc import Iterator

from onnx import defs

from walle.engine_ext.onnx_import.versions import CHANGED, MOVED, NEWEST_OPSET, OLDEST_OPSET


def older_versions() -> Iterator[tuple[defs.OpSchema, defs.OpSchema]]:
    """Yield every version of an operator in opset 7 or later, with its newest version."""
    for newest in defs.get_all_schemas():
        if newest.domain != "":
            continue
        seen = {newest.since_version}
        for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1):
            try:
                old = defs.get_schema(newest.name, opset, "")
            except defs.SchemaError:
                continue
            if old.since_version not in seen:
                seen.add(old.since_version)
                yield old, newest


def test_the_table_was_checked_against_the_installed_onnx() -> None:
    newer = [one.name for one in defs.get_all_schemas() if one.domain == "" and one.since_version > NEWEST_OPSET]
    assert not newer, "check what changed in these, then raise NEWEST_OPSET"


def lost(old: defs.OpSchema, newest: defs.OpSchema) -> bool:
    """Return whether an attribute was removed or an input moved without an entry in the table."""
    since, attributes = MOVED.get(old.name, (0, ()))
    moved, changed = old.since_version < since, CHANGED.get(old.name)
    if changed is not None and old.since_version < changed[0]:
        return False
    gone = set(old.attributes) - set(newest.attributes) - set(attributes if moved else ())
    before, after = ([value.name.lower() for value in one.inputs] for one in (old, newest))
    kept = moved or len(before) == len(after) == 1 or before == after[: len(before)]
    return bool(gone) or not kept


def test_no_attribute_and_no_input_is_lost() -> None:
    versions = list(older_versions())
    assert len(versions) > 300
    assert not [f"{old.name} {old.since_version}" for old, newest in versions if lost(old, newest)]
