"""Reset of library objects and of state in C: a later task is unharmed, or gets another interpreter.

`ACTIONS` are what one hostile task does; each must be undone or cost the interpreter.
"""

import sys
from pathlib import Path

import pytest
import pytest_asyncio

from tests.sim.poison_tasks import TaskPair, write_attacker
from tests.sim.vm_task import write_task
from walle.engine_ext.vm.discards import MAX_VERSIONS, OTHERS, Discards
from walle.engine_ext.vm.host import VmHost
from walle.vm import VMPool

ACTIONS = '''
class Taker:
    """The other side of a comparison, which a mappingproxy gives its dict."""

    def __eq__(self, other):
        self.dict = other
        return True

def dict_of(one):
    taker = Taker()
    one.__dict__ == taker
    found = getattr(taker, "dict", None)
    return found if type(found) is dict else gc.get_referents(one.__dict__)[0]

def refuse_new():
    string.Template.__new__ = refuse

def refuse_new_and_delete():
    for one in (string.Template, collections.UserDict, fractions.Fraction, statistics.NormalDist, random.Random):
        one.__new__ = refuse
        del one.__new__

def change_bases():
    class Other:
        __slots__ = ()
        def __iter__(self):
            return iter(["of the attacker"])
    collections.ChainMap.__bases__ = (Other, collections.abc.MutableMapping)

def change_bases_and_back():
    class Other(collections.abc.MutableMapping):
        __slots__ = ()
    before = collections.ChainMap.__bases__
    collections.ChainMap.__bases__ = (Other,)
    collections.ChainMap.__bases__ = before

def change_class_of_module():
    class Module(types.ModuleType):
        def __getattribute__(self, name):
            return refuse if name == "dumps" else super().__getattribute__(name)
    load("json").__class__ = Module

def change_metaclass():
    class Meta(abc.ABCMeta):
        def __call__(cls, *args, **options):
            return refuse()
    collections.ChainMap.__class__ = Meta

def change_class_of_encoder():
    class Encoder(type(load("json")._default_encoder)):
        def encode(self, o):
            return "of the attacker"
    load("json")._default_encoder.__class__ = Encoder

def change_dict_of_builtin_class():
    dict_of(str)["upper"] = refuse
    "a".upper

def change_dict_of_dict():
    dict_of(dict)["__len__"] = refuse
    dict_of(list)["canary"] = refuse

def change_dict_of_library_class():
    dict_of(string.Template)["substitute"] = refuse
    string.Template("").substitute

def write_back(one, name):
    "Leave the dict as it was, after a look-up that CPython caches."
    dict_of(one)[name], before = json.loads, dict_of(one)[name]
    getattr(one, name)
    dict_of(one)[name] = before

def write_back_dict_of_library_class():
    string.Template.zz = 1
    del string.Template.zz
    write_back(string.Template, "substitute")

def write_back_dict_of_arrays():
    write_back(np.ndarray, "sum")

def write_back_dict_of_builtin_class():
    write_back(str, "upper")

def register_library_class():
    collections.abc.Sequence.register(collections.UserDict)

def register_own_class():
    class Own:
        pass
    collections.abc.Mapping.register(Own)
    json.JSONEncoder.default(json.JSONEncoder(), Own()) if False else isinstance({}, collections.abc.Mapping)

def change_code_and_defaults():
    textwrap.fill.__code__ = (lambda text, width=70, **options: "of the attacker").__code__
    textwrap.dedent.__defaults__ = ("of the attacker",)
    load("json").dumps.__kwdefaults__["indent"] = 7
    load("dataclasses").dataclass.__kwdefaults__["order"] = True

def change_closures():
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and one.__closure__ and "main" not in str(one.__module__):
            for cell in one.__closure__:
                if isinstance(cell.cell_contents, types.FunctionType):
                    cell.cell_contents = refuse

def initialise_descriptors_again():
    property.__init__(string.Formatter.__dict__.get("x") or fractions.Fraction.__dict__["numerator"], refuse)
    classmethod.__init__(fractions.Fraction.__dict__["from_float"], refuse)

def change_tables():
    load("copyreg").pickle(Taker, refuse)
    load("copy")._deepcopy_dispatch[dict] = refuse
    load("copy")._copy_dispatch.clear()
    load("json").encoder.c_make_encoder = None
    load("json").encoder.ESCAPE_DCT["a"] = "b"
    load("functools").singledispatch(refuse)
    load("typing")._cleanups.clear()
    load("re")._cache.clear()
    load("dataclasses").fields = refuse
    random.Random.VERSION = 0

def change_template_compiler():
    load("re")._compile_template = load("re").compile

def hold_lock():
    sys.modules["_strptime"]._cache_lock.acquire()

def close_output():
    sys.modules["walle.engine_ext.vm.dispatch"]._stdout.close()

def detach_output():
    sys.modules["walle.engine_ext.vm.dispatch"]._stdout.detach()

def reconfigure_output():
    sys.modules["walle.engine_ext.vm.dispatch"]._stdout.reconfigure(encoding="utf-16")

def change_settings():
    sys.setrecursionlimit(60)
    sys.setdlopenflags(1)
    gc.disable()
    gc.set_threshold(1)
    gc.unfreeze()
    decimal.getcontext().prec = 2
    decimal.DefaultContext.prec = 2
    random.seed(1)
    load("warnings" if "warnings" in sys.modules else "_warnings").filters.insert(0, ("error", None, Warning, None, 0))
    load("codecs").register_error("backslashreplace", lambda error: ("of the attacker", error.end))
    load("codecs").register(lambda name: refuse)

def freeze_garbage():
    load("json").garbage = [Taker() for _ in range(10)]
    gc.freeze()

def remove_setters():
    names = [("_imp", "_override_multi_interp_extensions_check"), ("_imp", "_override_frozen_modules_for_tests"),
             ("sys", "activate_stack_trampoline"), ("sys", "addaudithook"), ("time", "clock_settime"),
             ("time", "clock_settime_ns")]
    return [name for module, name in names if hasattr(sys.modules[module], name)]

def write_to_constants():
    for one in (np.True_, np.False_):
        try:
            one[()] = not one
        except TypeError:
            pass

def change_default_factory():
    (one,) = [one for one in gc.get_objects() if type(one) is collections.defaultdict]
    one.default_factory = refuse

def watch_code_of_library():
    events = sys.monitoring.events
    sys.monitoring.use_tool_id(3, "attacker")
    sys.monitoring.register_callback(3, events.LINE, refuse)
    sys.monitoring.set_local_events(3, textwrap.fill.__code__, events.LINE)

def watch_by_a_tool_that_gave_its_number_back():
    events = sys.monitoring.events
    sys.monitoring.use_tool_id(3, "attacker")
    sys.monitoring.register_callback(3, events.PY_START, json.loads)
    sys.monitoring.set_events(3, events.PY_START)
    sys.monitoring.free_tool_id(3)

def kinds_of_library_objects():
    "Return the classes, made in C, of all objects that modules refer to, without those that cannot change."
    seen, todo, found = {}, [*sys.modules.values(), *gc.get_objects()], set()
    while todo:
        one = todo.pop()
        if id(one) in seen or one is todo or one is seen or getattr(one, "__name__", "") == "main":
            continue
        seen[id(one)] = one
        todo += gc.get_referents(one)
        kind = type(one)
        is_python = kind.__flags__ & 1 << 9 and not kind.__flags__ & 1 << 8 and "__module__" in vars(kind)
        if not is_python or kind.__module__ in ("_thread", "itertools", "collections", "walle.engine_ext._core"):
            found.add(f"{kind.__module__}.{kind.__qualname__}")
        if kind is np.ndarray and one.flags.writeable:
            found.add(f"a writable array {one!r}")
    return sorted(found)

def rename_files():
    load("_imp")._fix_co_filename(textwrap.fill.__code__, "attacker.py")
    assert textwrap.fill.__code__.co_filename != "attacker.py"

def unavailable():
    found = []
    for name in ("ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_interpreters", "_xxsubinterpreters", "signal",
                 "_signal", "faulthandler", "_tracemalloc", "_locale", "_posixsubprocess", "_socket", "mmap"):
        try:
            load(name)
        except ImportError:
            continue
        found.append(name)
    return found
'''
NAMES = [line.split()[1].partition("(")[0] for line in ACTIONS.splitlines() if line.startswith("def ")]
NO_ATTACKS = ("dict_of", "write_back", "remove_setters", "unavailable", "kinds_of_library_objects")
DISCARDED = {
    "refuse_new", "refuse_new_and_delete", "change_bases", "change_bases_and_back", "change_class_of_module",
    "change_metaclass", "change_class_of_encoder", "change_dict_of_builtin_class", "change_dict_of_dict",
    "write_back_dict_of_builtin_class",
    "register_library_class", "initialise_descriptors_again", "hold_lock", "close_output", "detach_output",
    "reconfigure_output", "change_default_factory", "watch_code_of_library",
}  # fmt: skip

# Classes in C of what library modules hold, Python's own values aside: what a task can change of an object is in its
# references, which a snapshot has, or named here.
REVIEWED = {
    "_contextvars.Context", "_contextvars.ContextVar", "_sre.SRE_Template", "collections._tuplegetter",
    "collections.defaultdict", "datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta",
    "datetime.timezone", "functools._lru_list_elem", "functools.partial", "re.Pattern", "types.GenericAlias",
    "types.SimpleNamespace", "types.UnionType", "typing.TypeAliasType", "typing.TypeVar", "unicodedata.UCD",
    "weakref.ReferenceType",
    "walle.engine_ext._core.dtype", "walle.engine_ext._core.ndarray",  # read-only
    "decimal.Context",  # restored by walle.engine_ext.vm.reset
    "functools._lru_cache_wrapper",  # cleared
    "itertools.count",  # weakref.finalize's counter: only ever larger
    "_thread.lock",  # recorded as held or free
    "_io.BufferedReader", "_io.BufferedWriter", "_io.FileIO", "_io.TextIOWrapper",  # the process's output: see dispatch
}  # fmt: skip


@pytest_asyncio.fixture
async def pair(tmp_path: Path, host: VmHost) -> TaskPair:
    both = TaskPair(tmp_path, host, ACTIONS)
    await both.start()
    return both


@pytest.mark.asyncio
@pytest.mark.parametrize("action", [name for name in NAMES if name not in NO_ATTACKS])
async def test_no_action_harms_a_later_task(pair: TaskPair, action: str) -> None:
    result, reset_failure = await pair.run(pair.attacker, action)
    assert result is None, result  # the attack took place
    assert bool(reset_failure) == (action in DISCARDED), reset_failure
    await pair.check_victim(action)


@pytest.mark.asyncio
@pytest.mark.parametrize("function", ["remove_setters", "unavailable"])
async def test_settings_that_no_reset_can_see_are_out_of_reach(pair: TaskPair, function: str) -> None:
    assert await pair.run(pair.attacker, function) == ([], "")


@pytest.mark.skipif(sys.version_info[:2] != (3, 13), reason="the list was reviewed for Python 3.13")
@pytest.mark.asyncio
async def test_state_in_c_of_all_that_library_modules_hold_is_reviewed(pair: TaskPair) -> None:
    found, _ = await pair.run(pair.attacker, "kinds_of_library_objects")
    unknown = set(found) - REVIEWED
    assert {name for name in unknown if not name.startswith(("builtins.", "sys.", "pybind11_builtins."))} == set()


HONEST = {
    "classes": """
import abc, collections, collections.abc, dataclasses, enum, functools, json, typing

class Base(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

@Base.register
class Square:
    @functools.cached_property
    def side(self): return 2

@functools.singledispatch
def area(shape): return 0

@area.register
def _(shape: Square): return shape.side ** 2

@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Point:
    x: int
    y: float = 0.0

class Kind(enum.StrEnum):
    A = enum.auto()

@typing.runtime_checkable
class Sized(typing.Protocol):
    def __len__(self): ...

class Box(collections.UserList):
    def __class_getitem__(cls, item): return cls

def run(x):
    assert isinstance(Square(), Base) and isinstance([], Sized) and isinstance(Box(), collections.abc.MutableSequence)
    collections.abc.Sequence.register(Square)
    typing.get_type_hints(Point)
    return [area(Square()), str(sorted([Point(2), Point(1)])[0]), Kind.A, json.dumps({"k": Kind.A})]
""",
    "patches": """
import decimal, json, random, re, string, textwrap, time, typing
from array import array
import copy

time.strptime("2026", "%Y")  # loads a module, which must not be while library classes are changed

class Encoder(json.JSONEncoder):
    def default(self, o): return str(o)

def run(x):
    json.JSONEncoder.default = lambda self, o: "patched"
    string.Template.delimiter = "%"
    textwrap.TextWrapper.__repr__ = lambda self: "patched"
    json.JSONDecoder.__eq__ = lambda self, other: True
    decimal.getcontext().prec = 4
    decimal.setcontext(decimal.Context(prec=3))
    random.seed(3)
    re.compile("a+b").sub(r"\\\\g<0>", "ab")
    copy.deepcopy(array("h", [1, 2]))
    typing.Optional[typing.List[int]]
    return [json.dumps(object, cls=Encoder)[:3], str(decimal.Decimal(1) / 3)]
""",
    "engine": """
import walle.np as np
import walle.cv as cv

def run(x):
    image = np.random.default_rng(1).random((16, 16, 3)).astype("float32")
    half = cv.resize(image, (8, 8))
    return [int(half.shape[0]), float(np.linalg.norm(np.ones((2, 2)))), float(np.fft.fft(np.ones(4)).real[0])]
""",
    "generators": """
import contextlib, itertools, functools, collections

@contextlib.contextmanager
def entered():
    yield 1

@functools.lru_cache
def squared(x): return x * x

kept = (squared(one) for one in itertools.count())

def run(x):
    with entered(), contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(print, end="")
        next(kept), next(kept)
        return [collections.Counter("aab")["a"], squared(3)]
""",
}


@pytest.mark.asyncio
async def test_honest_tasks_cost_no_interpreter(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(1, host=host)  # one VM: each task evicts the one before
    folders = [write_task(tmp_path / name, main) for name, main in HONEST.items()]
    first = [await pool.call(folder, "run", 1) for folder in folders]
    for _ in range(5):
        assert [await pool.call(folder, "run", 1) for folder in folders] == first
    assert pool.discarded() == {}
    pool.close()


@pytest.mark.asyncio
async def test_a_pool_counts_discarded_interpreters_by_task_and_logs_them(
    tmp_path: Path, host: VmHost, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = write_attacker(tmp_path / "hostile", ACTIONS)
    honest = write_task(tmp_path / "honest", "def run(): return 1")
    pool = VMPool(1, host=host)
    await pool.call(hostile, "refuse_new")
    (vm,) = pool.vms()
    assert await pool.call(honest, "run") == 1
    assert await vm.wait_closed(60)
    ((name, found),) = pool.discarded().items()
    assert (name, found.count) == ("hostile", 1)
    assert found.leaked_bytes > 2 << 20
    assert found.reason == "string.Template has other slots in C, which cannot be restored"
    logged = [one.getMessage() for one in caplog.records if one.name == "walle.engine_ext.vm.discards"]
    assert [line.partition(" (")[0] for line in logged] == ["hostile changed its interpreter, which was discarded"]
    await pool.call(hostile, "refuse_new")
    assert pool.vms() == []  # run alone, in a process that ends with each use
    assert await pool.call(honest, "run") == 1
    pool.close()


def test_the_record_of_discards_is_bounded_and_printable() -> None:
    discards = Discards()
    for number in range(MAX_VERSIONS + 50):
        discards.add(f"shop/task v{number}", "a \x1b[2J" + "x" * 1000, 5)
    found = discards.by_version()
    assert len(found) == MAX_VERSIONS
    assert found[OTHERS].count == 51
    assert sum(one.leaked_bytes for one in found.values()) == 5 * (MAX_VERSIONS + 50)
    assert all(one.reason.isprintable() and len(one.reason) <= 300 for one in found.values())
