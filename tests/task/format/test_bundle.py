import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.tasks import CONFIG, FILES, task_version
from walle.engine_ext.vm.bytecode import compile_source
from walle.protocol import (
    DICTIONARY_MARK,
    MAX_SMOKE_BYTES,
    MAX_SMOKE_FILE_BYTES,
    SMOKE_EVENTS,
    SMOKE_FILE,
    SMOKE_FOLDER,
    Manifest,
    ProtocolError,
    QueuePolicy,
    TriggerCondition,
)
from walle.task.format import bundle as bundle_module
from walle.task.format.bundle import TaskVersion, build_bundle, unpack
from walle.task.format.bundle_error import BundleError
from walle.task.format.config import TaskConfigError
from walle.task.format.tree import TaskTree
from walle.trust.metadata import RoleKeys, verify_manifest
from walle.trust.signing import Signer

SIGNER = Signer.generate()
WITH_MODEL = {
    "task.toml": CONFIG + b'[files]\n"resources/a.walle" = "shared"\n[limits]\nmemory_mb = 8\n',
    "main.py": b"import helper\nfrom pkg import part\n\ndef execute(ctx, x):\n    return helper.f(x)\n",
    "helper.py": b"def f(x):\n    return 1 / x\n",
    "pkg/__init__.py": b"",
    "pkg/part.py": b"from . import other\nfrom .other import g\n",
    "pkg/other.py": b"def g(): ...\n",
    "resources/a.walle": b"model",
    "simulation/events.jsonl": b"{}\n",
    "simulation/make.py": b"import os\n",
    "README.md": b"how",
}


def test_the_manifest_names_a_tasks_dictionary_and_older_ones_have_none() -> None:
    config = CONFIG + b'[files]\n"resources/f.dict" = "shared"\n[tunnel]\ndictionary = "resources/f.dict"\n'
    data = DICTIONARY_MARK + bytes(100)
    bundle = build_bundle(task_version(FILES | {"task.toml": config, "resources/f.dict": data}), SIGNER)
    assert bundle.manifest.dictionary == "resources/f.dict"
    assert Manifest.from_bytes(bundle.manifest.to_bytes()) == bundle.manifest
    assert b"dictionary" not in build_bundle(task_version(FILES), SIGNER).manifest.to_bytes()
    broken = bundle.manifest.to_bytes().replace(b'"dictionary":"resources/f.dict"', b'"dictionary":"elsewhere"')
    with pytest.raises(ProtocolError, match="not one of the files"):
        Manifest.from_bytes(broken)
    for wrong, message in ((b"no", "not a zstd dictionary"), (DICTIONARY_MARK + bytes(200_000), "200004 bytes")):
        with pytest.raises(BundleError, match=message):
            build_bundle(task_version(FILES | {"task.toml": config, "resources/f.dict": wrong}), SIGNER)


def test_a_signed_manifest_says_what_a_task_reads_of_others() -> None:
    config = CONFIG + b'[reads]\ntopics = ["rank", "browse/clicks"]\n'
    main = b"""\
def execute(ctx, x):
    query = ctx.store.query
    return [ctx.store.query("clicks", task="browse"), ctx.store.query(task="rank"), ctx.store.query("mine"),
            ctx.store.query(topic="clicks", task=x), ctx.other.query("a", task="b"), query("a", task="b")]
"""
    bundle = build_bundle(task_version(FILES | {"task.toml": config, "main.py": main}), SIGNER)
    manifest = verify_manifest(bundle.envelope, lambda _: RoleKeys.of([SIGNER.public_key]))
    assert manifest.reads == ("browse/clicks", "rank")
    assert manifest.readable_topics == {"shop/browse/clicks", "shop/rank"}
    assert b"reads" not in build_bundle(task_version(FILES), SIGNER).manifest.to_bytes()
    broken = manifest.to_bytes().replace(b'"browse/clicks"', b'"home/browse/clicks"')
    with pytest.raises(ProtocolError, match=r"manifest\.reads"):
        Manifest.from_bytes(broken)


def listing(path: str, route: str = "shared") -> bytes:
    return CONFIG + f'[files]\n"{path}" = "{route}"\n'.encode()


def test_bundle_holds_what_travels_and_nothing_else() -> None:
    bundle = build_bundle(task_version(WITH_MODEL), SIGNER)
    manifest = verify_manifest(bundle.envelope, lambda _: RoleKeys.of([SIGNER.public_key]))
    assert manifest == bundle.manifest
    assert [entry.path for entry in manifest.files] == [
        "helper.pyc",
        "main.pyc",
        "pkg/__init__.pyc",
        "pkg/other.pyc",
        "pkg/part.pyc",
        "resources/a.walle",
    ]
    assert set(bundle.blobs) == {entry.sha256 for entry in manifest.files}
    assert all(len(bundle.blobs[entry.sha256]) == entry.size_bytes for entry in manifest.files)
    assert (manifest.name, manifest.version, manifest.commit) == ("shop/ipv", "v1", "c" * 40)
    rest = {"log_kb": 64, "output_kb": 1024, "recursion": 1000, "queue": 16}
    assert manifest.trigger == TriggerCondition(("page_exit",))
    assert manifest.limits == {"deadline_ms": 500, "memory_mb": 8} | rest
    assert manifest.queue_policy == QueuePolicy()
    assert manifest.bytecode == (sys.implementation.cache_tag,)
    assert not any(b"return 1 / x" in blob for blob in bundle.blobs.values())


def test_an_unpacked_bundle_runs_from_bytecode_and_its_traceback_names_the_source(tmp_path: Path) -> None:
    bundle = build_bundle(task_version(WITH_MODEL), SIGNER)
    unpack(bundle.manifest, bundle.blobs, tmp_path / "task")
    laid_out = {str(path.relative_to(tmp_path / "task")) for path in (tmp_path / "task").rglob("*") if path.is_file()}
    assert laid_out == {entry.path for entry in bundle.manifest.files}
    code = "import main; print(main.execute(None, 4)); main.execute(None, 0)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "task", capture_output=True, text=True, check=False
    )
    assert run.stdout == "0.25\n"
    assert 'File "shop/ipv/v1/main.py", line 5, in execute' in run.stderr
    assert 'File "shop/ipv/v1/helper.py", line 2, in f' in run.stderr
    assert not list((tmp_path / "task").rglob("*.py"))


def test_same_tree_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    source = Path(json.__file__).parent.joinpath("decoder.py").read_bytes()  # a file with sets, nested code, docstrings
    source += (
        b"\nKINDS = {'a', 'b', 'ccc', 1.5, None}\nBIG = 10 ** 30\ndef f(x): return x in {'page', 'item', 3, 'x y'}\n"
    )
    (tmp_path / "source").write_bytes(source)
    program = (
        "import sys; extra = [sys.intern(f'{w}') for w in ('scan_once', 'parse_float', 'KINDS', 'x y')]\n"
        "from walle.engine_ext.vm.bytecode import compile_source\n"
        "for _ in range(3): compile('a = {1, 2}', 'warm', 'exec')\n"
        "data = compile_source(open(sys.argv[1], 'rb').read(), 's/t/v1/main.py')\n"
        "import hashlib; print(hashlib.sha256(data).hexdigest())"
    )
    digests = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONOPTIMIZE": "2" if seed == "77" else ""}
        command = [
            sys.executable,
            "-c",
            program if seed != "1" else program.partition("\n")[2],
            str(tmp_path / "source"),
        ]
        command[2] = "import sys\n" + command[2]
        run = subprocess.run(
            command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
        )
        digests.add(run.stdout)
    assert len(digests) == 1
    first, again = build_bundle(task_version(WITH_MODEL), SIGNER), build_bundle(task_version(WITH_MODEL), SIGNER)
    assert (first.envelope, first.blobs, first.sha256) == (again.envelope, again.blobs, again.sha256)
    other = build_bundle(task_version({**WITH_MODEL, "helper.py": b"def f(x):\n    return 2 / x\n"}), SIGNER)
    assert other.sha256 != first.sha256


@pytest.mark.parametrize(
    ("files", "path", "line", "message"),
    [
        ({"main.py": b"x = 1\ndef f(:\n"}, "main.py", 2, "does not compile: invalid syntax"),
        ({"lib/a.py": b"\xff"}, "lib/a.py", 1, "does not compile: "),
        ({"main.py": b"x = '\0'"}, "main.py", 0, "null bytes"),
        ({"main.py": b"x = " + b"(" * 300 + b")" * 300}, "main.py", 1, "does not compile: too many nested parentheses"),
        ({"main.py": b"x = " + b"-" * 200_000 + b"1"}, "main.py", 0, "does not compile: "),
        ({"main.py": b"#" * (1 << 20) + b"\n"}, "main.py", 0, "more than 1048576 for a source file"),
        ({"main.py": b"\nimport os.path\n"}, "main.py", 2, "imports os.path, which a task may not"),
        ({"main.py": b"def f():\n    from subprocess import run\n"}, "main.py", 2, "imports subprocess"),
        ({"main.py": b"import walle\n"}, "main.py", 1, "imports walle,"),
        ({"main.py": b"from walle import deploy, np\n"}, "main.py", 1, "imports walle.deploy"),
        ({"main.py": b"import jsonx\n"}, "main.py", 1, "imports jsonx"),
        (
            {"main.py": b"def execute(ctx, x):\n    return ctx.store.query('clicks', task='browse')\n"},
            "main.py",
            2,
            "reads topic 'browse/clicks' of another task; add it to topics under [reads]",
        ),
        ({"main.py": b"def execute(ctx, x):\n    return ctx.store.query(task='rank')\n"}, "main.py", 2, "topic 'rank'"),
        ({"resources/b": b""}, "task.toml", 0, 'resources/b is not in [files]; add "resources/b" = "shared"'),
        ({"task.toml": listing("a")}, "task.toml", 0, "[files] 'a' is not in the tree"),
        ({"task.toml": listing("main.py")}, "task.toml", 0, "code travels as the cloud compiles it"),
        ({"task.toml": listing("a.pyc"), "a.pyc": b""}, "task.toml", 0, "code travels as the cloud compiles it"),
        ({"task.toml": listing("simulation/a"), "simulation/a": b""}, "task.toml", 0, "simulation/ stays on the cloud"),
        ({"task.toml": listing("smoke.jsonl"), "smoke.jsonl": b""}, "task.toml", 0, "the cloud makes it of the events"),
        ({"task.toml": listing("smoke-events/a"), "smoke-events/a": b""}, "task.toml", 0, "the cloud makes it of the"),
        ({"task.toml": listing("main.pyc/a"), "main.pyc/a": b""}, "task.toml", 0, "a folder has the name 'main.pyc'"),
        ({"task.toml": CONFIG + b'[simulation]\nevents = "e"'}, "task.toml", 0, "events: file 'e' does not exist"),
        ({"task.toml": CONFIG.replace(b"ipv", b"cart")}, "task.toml", 0, "is 'cart', but the version is one of 'ipv'"),
    ],
)
def test_a_tree_that_cannot_be_a_bundle_is_refused(files: dict[str, bytes], path: str, line: int, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        build_bundle(task_version(files), SIGNER)
    assert message in str(caught.value)
    assert (caught.value.path, caught.value.line) == (path, line)


@pytest.mark.parametrize("missing", ["task.toml", "main.py"])
def test_files_that_every_task_has(missing: str) -> None:
    left = {path: data for path, data in FILES.items() if path != missing}
    with pytest.raises(BundleError, match=f"{missing}: is missing"):
        build_bundle(
            TaskVersion.parse(TaskTree(scenario="shop", task="ipv", version="v1", commit="c" * 40, files=left)), SIGNER
        )


def test_a_wrong_config_raises_a_config_error() -> None:
    with pytest.raises(TaskConfigError, match=r"task\.toml: \[trigger\] is missing"):
        build_bundle(task_version({"task.toml": b'[task]\nname = "ipv"\n'}), SIGNER)


@pytest.mark.parametrize(
    "source",
    [
        b"import json, math\nimport collections.abc\nfrom collections.abc import Mapping\n",
        b"from walle import np\nimport walle.cv\nfrom walle.np import array\nfrom __future__ import annotations\n",
        b"import helper\nfrom helper import x\nimport deep.er\n",
    ],
)
def test_a_bundle_with_allowed_imports_is_built(source: bytes) -> None:
    build_bundle(
        task_version({"helper.py": source.replace(b"from __future__ import annotations\n", b""), "deep/er.py": b""}),
        SIGNER,
    )


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_FILE_BYTES", 4)
    with pytest.raises(BundleError, match=r"resources/a\.walle: has 5 bytes, more than 4"):
        build_bundle(task_version(WITH_MODEL), SIGNER)
    monkeypatch.undo()
    monkeypatch.setattr(bundle_module, "MAX_BUNDLE_BYTES", 100)
    with pytest.raises(BundleError, match=r"the bundle has [0-9]+ bytes, more than 100"):
        build_bundle(task_version(WITH_MODEL), SIGNER)


def test_unpack_refuses_wrong_blobs_and_leaves_nothing(tmp_path: Path) -> None:
    bundle = build_bundle(task_version(), SIGNER)
    name = bundle.manifest.files[0].sha256
    with pytest.raises(BundleError, match=r"main\.pyc: its blob [0-9a-f]+ is missing"):
        unpack(bundle.manifest, {}, tmp_path / "task")
    with pytest.raises(BundleError, match=r"main\.pyc: its blob does not have the sha256"):
        unpack(bundle.manifest, {name: b"other"}, tmp_path / "task")
    assert list(tmp_path.iterdir()) == []
    unpack(bundle.manifest, bundle.blobs, tmp_path / "task")
    with pytest.raises(BundleError, match="exists already"):
        unpack(bundle.manifest, bundle.blobs, tmp_path / "task")
    assert list(tmp_path.iterdir()) == [tmp_path / "task"]


def test_bytecode_is_never_checked_against_a_source() -> None:
    data = compile_source(b"x = 1\n", "s/t/v1/main.py")
    assert data[4:8] == b"\1\0\0\0"  # PEP 552: hash-based, unchecked


def test_a_file_of_the_cloud_is_listed_apart_and_unpacked_on_the_cloud_only(tmp_path: Path) -> None:
    config = (
        CONFIG + b'[files]\n"resources/a.walle" = "shared"\n"resources/big.walle" = "cloud"\n[cloud]\nmax_batch = 4\n'
    )
    files = {"task.toml": config, "resources/a.walle": b"small", "resources/big.walle": b"large" * 100}
    bundle = build_bundle(task_version(FILES | files), SIGNER)
    manifest = verify_manifest(bundle.envelope, lambda _: RoleKeys.of([SIGNER.public_key]))
    assert manifest == bundle.manifest
    (entry,) = manifest.cloud_files
    assert (entry.path, entry.size_bytes, entry.route) == ("resources/big.walle", 500, "cloud")
    assert manifest.cloud.max_batch == 4
    assert [one.path for one in manifest.files] == ["main.pyc", "resources/a.walle"]
    assert list(bundle.cloud_blobs) == [entry.sha256]
    assert entry.sha256 not in bundle.blobs
    unpack(manifest, bundle.blobs, tmp_path / "device")
    unpack(manifest, {**bundle.blobs, **bundle.cloud_blobs}, tmp_path / "cloud", on_cloud=True)
    assert [path.name for path in (tmp_path / "device/resources").iterdir()] == ["a.walle"]
    assert (tmp_path / "cloud/resources/big.walle").read_bytes() == b"large" * 100
    plain = build_bundle(task_version(FILES), SIGNER).manifest.to_bytes()
    assert b"cloud" not in plain  # older devices and manifests are as before
    for old, new, message in (
        (b'"route":"cloud"', b'"route":"shared"', r"manifest.cloud_files\[0\].route: 'shared' is not cloud"),
        (b"resources/big.walle", b"resources/a.walle", "a path is listed twice"),
        (b"resources/big.walle", b"../big.walle", "is not a plain relative path"),
        (b'"max_batch":4', b'"max_batch":0', "manifest.cloud.max_batch: must be a whole number from 1 to 256"),
    ):
        with pytest.raises(ProtocolError, match=message):
            Manifest.from_bytes(manifest.to_bytes().replace(old, new))


def test_a_file_of_the_cloud_has_no_size_limit_of_devices_and_must_be_a_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundle_module, "MAX_FILE_BYTES", 50)
    monkeypatch.setattr(bundle_module, "MAX_BUNDLE_BYTES", 2000)
    tree = {"resources/big.walle": bytes(5000)}
    config = CONFIG + b'[files]\n"resources/big.walle" = "cloud"\n'
    assert build_bundle(task_version(FILES | tree | {"task.toml": config}), SIGNER).cloud_blobs
    with pytest.raises(BundleError, match="5000 bytes, more than 50 for a file in git; keep it in Git LFS"):
        build_bundle(task_version(FILES | tree | {"task.toml": config.replace(b'"cloud"', b'"shared"')}), SIGNER)
    config = config.replace(b"resources/big.walle", b"big.walle")
    with pytest.raises(BundleError, match="is a file of the cloud, which must be in resources/"):
        build_bundle(task_version(FILES | {"big.walle": b"", "task.toml": config}), SIGNER)


EVENTS = b"".join(b'{"event_id":"page_enter","page_id":"page/%d","ts_ms":1,"contents":{}}\n' % n for n in range(400))


@pytest.mark.parametrize(
    ("events", "says", "lines"),
    [
        (EVENTS[: EVENTS.index(b"\n") + 1], b"", 1),
        (EVENTS, b"", 32),
        (EVENTS, b"smoke_events = 5\n", 5),
        (EVENTS, b"smoke_events = 0\n", 0),
        (EVENTS, b"smoke_events = 256\n", MAX_SMOKE_BYTES // 70 + 1),
        (b"\n\n" + EVENTS.replace(b"\n", b"\r\n"), b"smoke_events = 5\n", 5),
        (b'{"contents":"' + bytes(MAX_SMOKE_BYTES) + b'"}\n', b"", 0),
        (b'{"contents":{"frame":{"$image":"a.jpg"}}}\n', b"", 0),
        (EVENTS + b'{"contents":{"frame":{"$npy":"a.npy"}}}\n', b"smoke_events = 3\n", 3),
    ],
)
def test_the_first_events_of_the_simulation_travel(events: bytes, says: bytes, lines: int) -> None:
    config = CONFIG + b'[simulation]\nevents = "simulation/e.jsonl"\n' + says
    bundle = build_bundle(task_version(FILES | {"task.toml": config, "simulation/e.jsonl": events}), SIGNER)
    found = [bundle.blobs[entry.sha256] for entry in bundle.manifest.files if entry.path == SMOKE_FILE]
    assert len(found) == (lines > 0)
    for data in found:
        assert len(data) <= MAX_SMOKE_BYTES
        assert abs(len(data.splitlines()) - lines) <= (3 if lines > 200 else 0)
        assert data.replace(b"\n", b"") in events.replace(b"\n", b"").replace(b"\r", b"")
    assert not any(path.startswith("simulation") for path in (entry.path for entry in bundle.manifest.files))


FRAME = b'{"event_id":"frame","page_id":"cam","ts_ms":1,"contents":{"frames":[{"$image":"%s"}]}}\n'


@pytest.mark.parametrize(
    ("names", "sizes", "travel"),
    [
        (["a.jpg", "in/b.png", "a.jpg"], [1000, 2000], 3),
        (["a.jpg", "missing.jpg", "a.jpg"], [1000, 0], 1),
        (["a.jpg", "../task.toml"], [1000, 0], 1),
        (["a.jpg", "in/b.png"], [1000, MAX_SMOKE_FILE_BYTES], 1),
        (["a.jpg", "in/b.png"], [1000, MAX_SMOKE_FILE_BYTES - 1000], 2),
        (["a.jpg"], [MAX_SMOKE_FILE_BYTES + 1, 0], 0),
        (["e.jsonl", "a.jpg"], [1000, 0], 2),
        (["events.jsonl", "a.jpg"], [1000, 0], 0),
    ],
)
def test_small_files_travel_with_the_events_that_name_them(names: list[str], sizes: list[int], travel: int) -> None:
    config = CONFIG + b'[simulation]\nevents = "simulation/e.jsonl"\n'
    files = {"a.jpg": bytes(sizes[0]), "unused.jpg": b"x", "events.jsonl": b"{}"}
    files |= {"in/b.png": b"b" * sizes[1]} if sizes[1] else {}
    tree = FILES | {"task.toml": config, **{f"simulation/{path}": data for path, data in files.items()}}
    events = b"".join(FRAME % name.encode() for name in names)
    bundle = build_bundle(task_version(tree | {"simulation/e.jsonl": events}), SIGNER)
    paths = {entry.path: bundle.blobs[entry.sha256] for entry in bundle.manifest.files}
    assert SMOKE_FILE not in paths, "a device of an older walle would run the version on names of files"
    chosen = {f"{SMOKE_FOLDER}{name}" for name in names[:travel]}
    assert {path for path in paths if path.startswith(SMOKE_FOLDER)} == chosen | ({SMOKE_EVENTS} if travel else set())
    if travel:
        assert paths[SMOKE_EVENTS].count(b"\n") == travel
        assert paths[SMOKE_EVENTS] == b"".join(events.splitlines(keepends=True)[:travel])
    assert sum(len(paths[path]) for path in chosen) <= MAX_SMOKE_FILE_BYTES
