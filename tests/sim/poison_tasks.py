"""Tasks that change the library of an interpreter, and a task that would notice: of the tests of resets."""

from pathlib import Path
from typing import Any, ClassVar

from tests.sim.vm_task import write_task
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError

# Modules in C that tasks reach too, because they import them.
_IMPORTS = """
import abc, array, base64, bisect, collections, collections.abc, contextlib, copy, dataclasses, datetime, decimal, enum
import fractions, functools, hashlib, heapq, io, itertools, json, math, numbers, operator, random, re, statistics
import string, struct, textwrap, time, types, typing, unicodedata, zlib
import walle.cv as cv
import walle.np as np

real = json.dumps.__globals__["__builtins__"]
load = real["__import__"]
sys, gc = load("sys"), load("gc")
datetime.datetime.strptime("2026", "%Y")  # which loads _strptime

def classes():
    found, todo = [], [object]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += [sub for sub in type.__subclasses__(one) if sub not in found and sub not in todo]
    module, name = type.__dict__["__module__"], type.__dict__["__qualname__"]
    names = lambda one: f"{module.__get__(one)}.{name.__get__(one)}"
    return sorted({names(one): one for one in found if not names(one).startswith("main.")}.items())
"""

_SLOTS = """
    new init del repr str hash call getattribute getattr setattr delattr get set delete iter next len getitem setitem
    delitem contains bool int float index add radd iadd sub rsub mul rmul matmul truediv floordiv mod divmod pow lshift
    rshift and or xor neg pos abs invert eq ne lt le gt ge await aiter anext buffer release_buffer init_subclass
    class_getitem instancecheck subclasscheck subclasshook reduce reduce_ex format sizeof dir set_name mro_entries
    abstractmethods doc module match_args annotations copy deepcopy enter exit missing length_hint reversed bytes
"""
SLOTS = _SLOTS.split()

_ATTACK = (
    _IMPORTS
    + """
def refuse(*args, **options):
    raise SystemExit("of the attacker")

def assign(slots, names, is_deleted):
    "Assign a function to these slots of these classes (none: all), which is deleted again with `is_deleted`."
    chosen = [one for name, one in classes() if not names or name in names]
    for one in chosen:
        for slot in slots:
            try:
                type.__setattr__(one, f"__{slot}__", refuse)
            except BaseException:
                continue
            if is_deleted:
                try:
                    type.__delattr__(one, f"__{slot}__")
                except BaseException:
                    pass

def names():
    return [name for name, one in classes() if one.__flags__ & 1 << 9 and not one.__flags__ & 1 << 8]
"""
)

# What each class does without arguments, and what library functions return.
_VICTIM = (
    _IMPORTS
    + """
@dataclasses.dataclass(order=True)
class Record:
    name: str
    values: list = dataclasses.field(default_factory=list)

class Colour(enum.IntFlag):
    RED = 1
    BLUE = 2

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

class Pair(typing.NamedTuple):
    left: int
    right: str = "r"

def outcome(function, *args):
    try:
        value = function(*args)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:60]
    if not isinstance(value, (int, str, float, list)):
        return type(value).__name__
    return f"{type(value).__name__}: {value}"[:60]

USES = {
    "Random": lambda: random.Random(1).random(), "uniform": lambda: 0 <= random.uniform(0, 1) <= 1,
    "dumps": lambda: json.dumps({"a": [1.5, "b"]}), "loads": lambda: json.loads('[1, {"a": null}]'),
    "Counter": lambda: dict(collections.Counter("aab")), "UserDict": lambda: dict(collections.UserDict(a=1)),
    "ChainMap": lambda: dict(collections.ChainMap({"a": 1})), "OrderedDict": lambda: list(collections.OrderedDict(a=1)),
    "defaultdict": lambda: collections.defaultdict(int)["a"], "deque": lambda: list(collections.deque([1, 2], 1)),
    "Formatter": lambda: string.Formatter().format("{}", 1), "Template": lambda: string.Template("$a").substitute(a=1),
    "fill": lambda: textwrap.fill("a b", 2), "dedent": lambda: textwrap.dedent("  a"),
    "Fraction": lambda: str(fractions.Fraction(1, 3) + 1), "Decimal": lambda: str(decimal.Decimal("1.10") * 2),
    "NormalDist": lambda: statistics.NormalDist(0, 1).mean, "mean": lambda: statistics.mean([1, 2, 4]),
    "record": lambda: repr(sorted([Record("b"), Record("a", [1])])),
    "equal": lambda: str(Record("a") == Record("a")),
    "made": lambda: str(dataclasses.make_dataclass("P", ["x"])(1)), "colour": lambda: str(Colour.RED | Colour.BLUE),
    "colours": lambda: [str(one) for one in Colour], "abstract": lambda: Shape(), "pair": lambda: str(Pair(1)),
    "optional": lambda: str(typing.Optional[int]), "hints": lambda: str(typing.get_type_hints(Record)),
    "strptime": lambda: str(datetime.datetime.strptime("2026-01-02", "%Y-%m-%d")),
    "isoformat": lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc).isoformat(),
    "sub": lambda: re.sub("(a)(b)", r"\\2\\1", "xab"), "findall": lambda: re.findall("[a-c]+", "abxc", re.I),
    "partial": lambda: functools.partial(max, 3)(2), "cached": lambda: functools.lru_cache(lambda: 7)(),
    "reduced": lambda: functools.reduce(operator.add, [1, 2]),
    "deepcopy": lambda: str(copy.deepcopy({"a": [Record("c")]})),
    "array": lambda: str(copy.copy(array.array("h", [1, 2]))), "b64": lambda: str(base64.b64encode(b"ab")),
    "sha": lambda: hashlib.sha256(b"a").hexdigest()[:8], "struct": lambda: str(struct.unpack("<h", b"ab")),
    "nlargest": lambda: heapq.nlargest(1, [1, 3, 2]), "StringIO": lambda: io.StringIO("a").read(),
    "chain": lambda: list(itertools.chain([1], [2])), "norm": lambda: unicodedata.normalize("NFC", "a"),
    "zlib": lambda: str(zlib.decompress(zlib.compress(b"a"))),
    "suppress": lambda: str(contextlib.suppress(KeyError))[:9],
    "exits": lambda: str(contextlib.ExitStack())[:9], "namespace": lambda: str(types.SimpleNamespace(a=1)),
    "true": lambda: bool(np.True_), "false": lambda: bool(np.False_), "print": lambda: print(end=""),
    "upper": lambda: "a".upper(), "length": lambda: len([1, 2]),
    "sum": lambda: float(np.sum(np.ones((2, 2)))),
    "resize": lambda: cv.resize(np.ones((4, 4, 3), "uint8"), (2, 2)).shape[0],
    "is_sequence": lambda: isinstance(collections.UserDict(), collections.abc.Sequence),
    "is_mapping": lambda: isinstance({}, collections.abc.Mapping),
    "matched": lambda: matched(collections.UserDict(a=1)), "seconds": lambda: time.time() > 0,
    "escaped": lambda: "\\udcff".encode("utf-8", "backslashreplace").decode(), "ratio": lambda: math.gcd(4, 6),
}

def matched(value):
    match value:
        case [*_]:
            return "sequence"
        case {}:
            return "mapping"
    return "neither"

def look():
    "Return what each use gives, and what each class and its object do."
    found = {f"use {name}": outcome(use) for name, use in USES.items()}
    for name, one in classes():
        if name.startswith(("walle.engine_ext.vm.", "_frozen_importlib", "_io", "builtins.", "_thread", "_strptime")):
            continue
        found[name] = outcome(one)
        try:
            made = one()
        except BaseException:
            continue
        uses = repr, hash, iter, len, bool, copy.copy, str, dir
        found[name] += str([outcome(use, made).partition(":")[0] for use in uses])
    return found
"""
)


def write_attacker(folder: Path, actions: str = "") -> Path:
    """Return the folder of a task that assigns to slots of library classes, or runs `actions` of its own."""
    return write_task(folder, _ATTACK + actions)


def write_victim(folder: Path) -> Path:
    """Return the folder of a task whose `look` returns how the library behaves, as texts by name."""
    return write_task(folder, _VICTIM)


class TaskPair:
    """An attacker and a victim that follow one another in the interpreters of one host."""

    unharmed: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path, host: VmHost, actions: str = "") -> None:
        self.attacker = write_attacker(folder / "attacker", actions)
        self.victim = write_victim(folder / "victim")
        self.host = host

    async def start(self) -> None:
        """Record once what the victim finds where no attack was before."""
        if not self.unharmed:
            await self.look()  # the first look loads all libraries
            self.unharmed.update(await self.look())

    async def run(self, folder: Path, function: str, *args: Any) -> tuple[Any, str]:
        """Return the result or error of a call in a VM of its own, and why its interpreter was discarded afterwards."""
        vm = VM(folder, host=self.host, grace_s=5.0)
        try:
            result = await vm.call(function, *args, deadline=60.0)
        except VMError as error:
            result = error
        vm.close()
        assert await vm.wait_closed(60)
        return result, vm.reset_failure

    async def look(self) -> dict[str, str]:
        found, reset_failure = await self.run(self.victim, "look")
        assert isinstance(found, dict), found
        assert reset_failure == ""  # an honest task costs no interpreter
        return found

    async def check_victim(self, attack: object) -> None:
        """Fail where the victim finds another library than before the attack."""
        found = await self.look()
        changed = {key: (self.unharmed[key], found.get(key)) for key in self.unharmed}
        assert {key: pair for key, pair in changed.items() if pair[0] != pair[1]} == {}, attack

    async def attack(self, slots: list[str], names: list[str], *, is_deleted: bool) -> str:
        """Return why the interpreter was discarded after assignments to slots; check the victim where it was not."""
        _, reset_failure = await self.run(self.attacker, "assign", slots, names, is_deleted)
        if not reset_failure:
            await self.check_victim((slots, names))
        return reset_failure
