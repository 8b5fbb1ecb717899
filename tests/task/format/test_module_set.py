"""Sets of shared modules: what a set may hold, and what of it a task's bundle has."""

import hashlib
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.tasks import CONFIG, FILES, tree
from walle.protocol import Manifest, ModuleSetVersion
from walle.task.format.bundle import TaskVersion, UnsignedBundle, build_unsigned
from walle.task.format.bundle_error import BundleError
from walle.task.format.config import MAX_MODULE_SETS, TaskConfig, TaskConfigError
from walle.task.format.module_set import MAX_SET_BYTES, MAX_SET_FILES, ModuleSet, check_module_set
from walle.task.format.tree import TaskTree

USES = CONFIG + b'[modules]\ncommon = "v3"\n'
MODULES = b'[modules]\nname = "common"\n'
LETTERS = "abcdefgh"


def set_tree(files: Mapping[str, bytes], name: str = "common", version: str = "v3", **more: bytes) -> TaskTree:
    head = {"modules.toml": f'[modules]\nname = "{name}"\n'.encode()}
    return TaskTree(scenario="shop", task=name, version=version, commit="d" * 40, files={**head, **files, **more})


def common(files: Mapping[str, bytes], name: str = "common", version: str = "v3") -> ModuleSet:
    return ModuleSet.parse(set_tree(files, name, version))


def built(main: bytes, *sets: ModuleSet, **files: bytes) -> UnsignedBundle:
    config = CONFIG + b"[modules]\n" + b"".join(f'{one.name} = "{one.version}"\n'.encode() for one in sets)
    found = {(one.name, one.version): one for one in sets}
    more = {f"{name}.py": data for name, data in files.items()}
    return build_unsigned(
        TaskVersion.parse(tree({"task.toml": config, "main.py": main, **more}), lambda *key: found[key])
    )


def paths(bundle: UnsignedBundle) -> list[str]:
    return [entry.path for entry in bundle.manifest.files]


def test_a_bundle_has_the_shared_modules_that_its_task_reaches_and_no_others() -> None:
    modules = common({
        "boxes.py": b"import cells\n",
        "cells.py": b"import boxes\nimport math\n",  # a circle
        "labels.py": b"import boxes\n",
        "net/__init__.py": b"",
        "net/layers.py": b"from . import parts\n",
        "net/parts.py": b"import json\n",
    })  # fmt: skip
    assert paths(built(b"import math\n", modules)) == ["main.pyc"]
    assert paths(built(b"import boxes\n", modules)) == ["boxes.pyc", "cells.pyc", "main.pyc"]
    whole_package = ["main.pyc", "net/__init__.pyc", "net/layers.pyc", "net/parts.pyc"]
    assert paths(built(b"from net import layers\n", modules)) == whole_package
    through_own = built(b"import helper\n", modules, helper=b"def f():\n    from labels import x\n")
    assert paths(through_own) == ["boxes.pyc", "cells.pyc", "helper.pyc", "labels.pyc", "main.pyc"]
    unread = b"TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import boxes\n"
    assert paths(built(unread, modules)) == ["main.pyc"]


def test_the_manifest_names_set_version_and_commit() -> None:
    bundle = built(b"import boxes\n", common({"boxes.py": b"A = 1\n"}), common({"z.py": b""}, "more", "v1"))
    assert bundle.manifest.modules == (
        ModuleSetVersion("common", "v3", "d" * 40),
        ModuleSetVersion("more", "v1", "d" * 40),
    )
    assert Manifest.from_bytes(bundle.manifest.to_bytes()) == bundle.manifest


def test_a_module_has_the_same_bytes_in_each_task_and_each_build() -> None:
    modules = common({"boxes.py": b"def f():\n    raise ValueError\n"})
    first, again = built(b"import boxes\n", modules), built(b"import boxes\n", modules)
    assert first.manifest.to_bytes() == again.manifest.to_bytes()
    found = TaskVersion.parse(
        TaskTree(scenario="shop", task="face", version="v7", commit="e" * 40, files={
            "task.toml": USES.replace(b"ipv", b"face"), "main.py": b"from boxes import f\n",
        }),
        lambda *_: modules,
    )  # fmt: skip
    entries = [
        next(entry for entry in one.manifest.files if entry.path == "boxes.pyc")
        for one in (first, build_unsigned(found))
    ]
    assert entries[0] == entries[1]
    assert b"shop/common/v3/boxes.py" in first.blobs[entries[0].sha256]  # tracebacks name the set


def test_a_manifest_without_sets_is_as_before_and_unknown_fields_are_ignored() -> None:
    plain = build_unsigned(TaskVersion.parse(tree())).manifest
    assert b"modules" not in plain.to_bytes()
    with_set = built(b"import boxes\n", common({"boxes.py": b""})).manifest
    value = json.loads(with_set.to_bytes())
    assert value["format"] == Manifest.FORMAT  # a device that does not know `modules` runs the version: files are whole
    value["later"] = [{"unknown": 1}]
    assert Manifest.from_bytes(json.dumps(value).encode()) == with_set
    del value["modules"]
    assert Manifest.from_bytes(json.dumps(value).encode()).files == with_set.files


@pytest.mark.parametrize("modules", [{}, [1], [{"name": "a"}], [{"name": 1, "version": "v1", "commit": "c"}], "common"])
def test_a_manifest_with_wrong_sets_is_refused(modules: object) -> None:
    value = json.loads(build_unsigned(TaskVersion.parse(tree())).manifest.to_bytes())
    with pytest.raises(ValueError, match=r"manifest\.modules"):
        Manifest.from_bytes(json.dumps(value | {"modules": modules}).encode())


@pytest.mark.parametrize(
    ("files", "own", "message"),
    [
        ({"boxes.py": b""}, "boxes.py", "has a module boxes, and so has the task"),
        ({"boxes.py": b""}, "boxes/__init__.py", "has a module boxes, and so has the task"),
        ({"net/a.py": b""}, "net.py", "has a module net, and so has the task"),
    ],
)
def test_a_name_of_the_task_and_of_a_set_is_refused(files: dict[str, bytes], own: str, message: str) -> None:
    with pytest.raises(TaskConfigError, match=message) as caught:
        TaskVersion.parse(tree({"task.toml": USES, own: b""}), lambda *_: common(files))
    assert str(caught.value).startswith("task.toml:6: [modules] common = 'v3'")


def test_a_name_of_two_sets_is_refused() -> None:
    config = CONFIG + b'[modules]\nfirst = "v1"\nsecond = "v2"\n'
    with pytest.raises(
        TaskConfigError, match=r"task.toml:7: \[modules\] second = 'v2' has a module a, .* set first/v1"
    ):
        TaskVersion.parse(tree({"task.toml": config}), lambda *key: common({"a.py": b""}, *key))


def test_a_set_that_is_not_found_is_an_error_at_its_line() -> None:
    with pytest.raises(
        TaskConfigError, match=r"^task.toml:6: \[modules\] common = 'v3' cannot be used: .*no repository"
    ):
        TaskVersion.parse(tree({"task.toml": USES}))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('"../x" = "v1"', "is not the name of a set"),
        ('"Common" = "v1"', "is not the name of a set"),
        ('ipv = "v1"', "is the task itself"),
        ('common = "1.0"', 'must be a version, such as "v3"'),
        ('common = "v0"', "must be a version"),
        ('common = "v1/../v2"', "must be a version"),
        ("common = 3", "must be a non-empty string"),
        ('common = { version = "v1" }', "must be a non-empty string"),
        ("".join(f'a{number} = "v1"\n' for number in range(MAX_MODULE_SETS + 1)), "names 9 sets"),
    ],
)
def test_a_wrong_table_of_sets_is_refused(table: str, message: str) -> None:
    with pytest.raises(TaskConfigError, match=message) as caught:
        TaskConfig.parse(CONFIG + f"[modules]\n{table}\n".encode(), "task.toml")
    assert caught.value.line >= 5


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.md": b""}, r"^notes.md: is not a module: a set has modules.toml and .py files only"),
        ({"task.toml": CONFIG}, "^task.toml: is not a module"),
        ({"main.py": b""}, "main is a name at the root of a task"),
        ({"resources/a.py": b""}, "resources is a name at the root of a task"),
        ({"walle/np.py": b""}, "walle is a name"),
        ({"__init__.py": b""}, "__init__ is a name"),
        ({"a-b.py": b""}, "cannot be imported by this name"),
        ({"ﬁle.py": b""}, "cannot be imported by this name"),
        ({f"a{number}.py": b"" for number in range(MAX_SET_FILES + 1)}, f"more than {MAX_SET_FILES} modules"),
        ({"a.py": b"#" * (MAX_SET_BYTES + 1)}, f"or {MAX_SET_BYTES} bytes"),
        ({"modules.toml": b'[modules]\nname = "other"\n'}, 'must be .modules. with name = "common" alone'),
        ({"modules.toml": MODULES + b'more = "v1"\n'}, "alone"),
        ({"modules.toml": b"[modules"}, "is not TOML"),
    ],
)
def test_a_tree_that_is_not_a_set_is_refused(files: dict[str, bytes], message: str) -> None:
    with pytest.raises((BundleError, TaskConfigError), match=message):
        ModuleSet.parse(set_tree(files))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"json.py": b""}, "^json.py: hides the module json, which every task may import"),
        ({"collections/abc.py": b""}, "^collections/abc.py: hides the module collections"),
        ({"a.py": b"x = 1\nimport os\n"}, "^a.py:2: imports os, which a task may not"),
        ({"a.py": b"import helper\n"}, "^a.py:1: imports helper, which a task may not"),  # a task's module
        ({"a.py": b"import net.part\n", "net/other.py": b""}, "imports net.part, which the set does not have"),
        ({"a.py": b"def\n"}, "^a.py:1: does not compile"),
    ],
)
def test_code_of_a_set_is_checked_when_it_is_pushed(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        check_module_set(common(files))
    check_module_set(common({"a.py": b"import b\nimport walle.np as np\nimport json\n", "b.py": b"import a\n"}))


def test_a_task_is_not_a_set_and_a_set_is_not_a_task() -> None:
    with pytest.raises(BundleError, match="ipv is not a set of shared modules"):
        ModuleSet.parse(tree())
    with pytest.raises(BundleError, match="common is a set of shared modules, not a task"):
        TaskVersion.parse(set_tree({"a.py": b""}))


def test_a_shared_module_reads_topics_under_the_rules_of_the_task() -> None:
    modules = common({"far.py": b'def f(ctx):\n    return ctx.store.query("a", task="b")\n'})
    check_module_set(modules)
    with pytest.raises(BundleError, match=r"^common/v3/far.py:2: reads topic 'b/a' of another task; add it to topics"):
        built(b"import far\n", modules)
    assert paths(built(b"", modules)) == ["main.pyc"]  # what is not reached needs no topic


def test_an_import_that_neither_task_nor_set_has_is_refused() -> None:
    modules = common({"boxes.py": b"", "net/a.py": b""})
    with pytest.raises(BundleError, match=r"^main.py:1: imports net.b, which the task does not have; did you mean net"):
        built(b"import net.b\n", modules)


@given(st.dictionaries(st.sampled_from(LETTERS), st.sets(st.sampled_from(LETTERS)), min_size=1), st.data())
def test_reached_modules_are_the_closure_of_the_imports(edges: dict[str, set[str]], data: st.DataObject) -> None:
    first = data.draw(st.sets(st.sampled_from(sorted(edges))))
    files = {
        f"{name}.py": "".join(f"import {other}\n" for other in sorted(others & edges.keys())).encode()
        for name, others in edges.items()
    }
    wanted, waiting = set[str](), list(first)
    while waiting:
        if (name := waiting.pop()) not in wanted:
            wanted.add(name)
            waiting += edges[name] & edges.keys()
    bundle = built("".join(f"import {name}\n" for name in sorted(first)).encode(), common(files))
    assert set(paths(bundle)) == {"main.pyc", *(f"{name}.pyc" for name in wanted)}
    assert all(hashlib.sha256(blob).hexdigest() == sha256 for sha256, blob in bundle.blobs.items())


def test_the_small_task_still_builds_without_sets() -> None:
    assert paths(build_unsigned(TaskVersion.parse(tree(FILES)))) == ["main.pyc"]
