"""Imports by a task that changed the library before: later tasks get the module unchanged, the task keeps its changes.

The module is loaded for the first time in its interpreter, and stays there.
"""

from pathlib import Path

import pytest

from tests.sim.poison_tasks import TaskPair
from tests.sim.vm_task import write_task
from walle.engine_ext.vm.host import VmHost

REACH = """
import json

load = json.dumps.__globals__["__builtins__"]["__import__"]
sys, gc = load("sys"), load("gc")
"""

FILL = """
import textwrap

def run():
    return textwrap.fill("a b", 1)
"""

# What a hostile task does, then what a later task returns, and what is right.
ATTACKS = {
    "key in the table of resets": (
        """
sys.modules["walle.engine_ext.vm.reset"]._resets["canary"] = lambda: None
import decimal, random

def run():
    decimal.DefaultContext.prec = 2
    random.seed(1)
""",
        """
import decimal, random

def run():
    return decimal.DefaultContext.prec, random.random() == random.Random(1).random()
""",
        (28, False),
    ),
    "pattern in the cache of patterns": (
        """
import re

for flags in (re.MULTILINE, int(re.MULTILINE)):
    for cache in (load("re")._cache, load("re")._cache2):
        cache[str, "^[ \\t]+$", flags] = re.compile("a")
import textwrap

def run(): pass
""",
        """
import textwrap

def run():
    return textwrap.dedent("  a\\n   \\n  b")
""",
        "a\n\nb",
    ),
    "category of the compiler of patterns": (
        """
import re

load("re")._parser.CATEGORIES["\\\\s"] = load("re")._parser.CATEGORIES["\\\\d"]
import string, textwrap

def run(): pass
""",
        """
import textwrap

def run():
    return textwrap.TextWrapper.wordsep_simple_re.sub("_", "a b1")
""",
        "a_b1",
    ),
    "other module in sys.modules": (
        """
import math, re

sys.modules["re"] = load("math")
try:
    import textwrap
except AttributeError:
    pass

def run(): pass
""",
        """
import textwrap

def run():
    return textwrap.dedent("  a")
""",
        "a",
    ),
    "finder": (
        """
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "numbers":
            load("functools").total_ordering = None

sys.meta_path.insert(0, Finder)
import fractions

def run(): pass
""",
        """
import fractions, functools

def run():
    return callable(functools.total_ordering), str(fractions.Fraction(2, 4))
""",
        (True, "1/2"),
    ),
    "import function": (
        """
builtins = load("builtins")
before = builtins.__import__

def other(name, *args):
    found = before(name, *args)
    if name == "numbers":
        found.Number = int
    return found

builtins.__import__ = other
import fractions

def run(): pass
""",
        """
import fractions, numbers

def run():
    return isinstance(1.5, numbers.Number), isinstance(fractions.Fraction(1), numbers.Rational)
""",
        (True, True),
    ),
    "import function of the task's own module": (
        """
import textwrap

whole, start = load("textwrap"), sys.modules["walle.engine_ext.vm.reset"]._load

def other(name, *args):
    whole.fill = whole.dedent
    return load(name, *args)

def run():
    before = globals()["__builtins__"]
    globals()["__builtins__"] = {"__import__": other}
    start("statistics")
    globals()["__builtins__"] = before
""",
        FILL,
        "a\nb",
    ),
    "subclass of a library class": (
        """
import numbers, textwrap

whole = load("textwrap")

class Other(numbers.Integral):
    @classmethod
    def __subclasshook__(cls, other):
        whole.fill = whole.dedent
        return NotImplemented

import decimal

def run(): pass
""",
        FILL,
        "a\nb",
    ),
    "subclass that a collection creates": (
        """
import numbers, textwrap

def make_garbage():
    whole = load("textwrap")

    def hook(cls, other):
        whole.fill = whole.dedent
        return NotImplemented

    class Garbage:
        def __init__(self):
            self.me, self.hook = self, hook

        def __del__(self):
            type(numbers.Integral)("Other", (numbers.Integral,), {"__subclasshook__": classmethod(self.hook)})
            import decimal

    Garbage()

make_garbage()
gc.collect()

def run():
    assert "decimal" in sys.modules
""",
        FILL,
        "a\nb",
    ),
    "trace function": (
        """
def trace(frame, event, arg):
    names = frame.f_globals
    if names.get("__name__") == "textwrap" and "dedent" in names and "fill" in names:
        names["fill"] = names["dedent"]
    return trace

sys.settrace(trace)
import textwrap
sys.settrace(None)

def run(): pass
""",
        FILL,
        "a\nb",
    ),
    "events of a tool": (
        """
monitoring = sys.monitoring

def returned(code, *args):
    textwrap = sys.modules.get("textwrap")
    if textwrap is not None and "fill" in vars(textwrap):
        textwrap.fill = textwrap.dedent
        monitoring.set_events(2, 0)
        monitoring.register_callback(2, monitoring.events.PY_RETURN, None)

monitoring.use_tool_id(2, "attacker")
monitoring.register_callback(2, monitoring.events.PY_RETURN, returned)
monitoring.set_events(2, monitoring.events.PY_RETURN)
monitoring.free_tool_id(2)
import textwrap

def run(): pass
""",
        FILL,
        "a\nb",
    ),
    "method of a library class": (
        """
import enum, re

enum.EnumType.__prepare__ = classmethod(lambda *args, **options: {})
try:
    import decimal, string
except Exception:
    pass

def run(): pass
""",
        """
import decimal, enum, string

class Colour(enum.Enum):
    RED = enum.auto()

def run():
    return str(Colour.RED), string.Template("$a").substitute(a=1)
""",
        ("Colour.RED", "1"),
    ),
}

# What an honest task does before and after an import, and what it returns.
HONEST = {
    "a class that is a number": (
        """
import numbers

class Money: pass

numbers.Number.register(Money)
import decimal

def run():
    return [isinstance(one, numbers.Number) for one in (Money(), decimal.Decimal(1), "a")]
""",
        [True, True, False],
    ),
    "a class that is a sequence": (
        """
import collections.abc

class Own: pass

collections.abc.MutableSequence.register(Own)
import array

def run():
    return [isinstance(one, collections.abc.MutableSequence) for one in (Own(), array.array("b"), ())]
""",
        [True, True, False],
    ),
    "questions of class": (
        """
import numbers

class Money: pass

before = [isinstance(one, numbers.Number) for one in (Money(), 1.5)]
import decimal

def run():
    return [*before, isinstance(decimal.Decimal(1), numbers.Number), isinstance(Money(), numbers.Number)]
""",
        [False, True, True, False],
    ),
    "patterns, overloads, flags": (
        """
import re, typing

@typing.overload
def double(x: int) -> int: ...
@typing.overload
def double(x: str) -> str: ...
def double(x): return x + x

words = re.compile(r"(\\w+)x", re.I | re.A)
import textwrap, statistics

def run():
    return [words.sub(r"\\1", "ABx"), double(2), len(typing.get_overloads(double)), statistics.mean([1, 3])]
""",
        ["AB", 4, 2, 2],
    ),
    "functions by class": (
        """
import functools, json

@functools.singledispatch
def area(shape): return 0

@area.register
def _(shape: int): return shape * shape

area(3)
json.loads('{"a": 1}')
import fractions, dataclasses

@dataclasses.dataclass
class Point:
    x: int

def run():
    return [area(3), area("a"), str(fractions.Fraction(1, 2)), repr(Point(1))]
""",
        [9, 0, "1/2", "Point(x=1)"],
    ),
    "subclasses of library classes": (
        """
import collections, numbers

class Own(numbers.Integral): pass
class Rows(collections.UserList): pass

import array, decimal

def run():
    return [isinstance(decimal.Decimal(1), numbers.Number), isinstance(array.array("b"), Rows), Rows([1])[0]]
""",
        [True, False, 1],
    ),
    "an import that fails": (
        """
import numbers

class Money: pass

numbers.Number.register(Money)
try:
    import walle.np.missing
except ImportError:
    pass
import walle.np as np

def run():
    return [isinstance(Money(), numbers.Number), float(np.sum(np.ones(2)))]
""",
        [True, 2.0],
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ATTACKS)
async def test_no_change_before_an_import_reaches_a_later_task(tmp_path: Path, host: VmHost, name: str) -> None:
    attack, look, right = ATTACKS[name]
    pair = TaskPair(tmp_path, host)
    attacker = write_task(tmp_path / "attacking", REACH + attack)
    result, _ = await pair.run(attacker, "run")
    assert result is None, result  # the attack took place
    for folder in ("first", "second"):  # the second is of the interpreter that was reset twice
        later = write_task(tmp_path / folder, look)
        assert await pair.run(later, "run") == (right, "")


@pytest.mark.asyncio
@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_task_keeps_its_changes_and_its_interpreter(tmp_path: Path, host: VmHost, name: str) -> None:
    main, right = HONEST[name]
    pair = TaskPair(tmp_path, host)
    for folder in ("first", "second"):
        assert await pair.run(write_task(tmp_path / folder, main), "run") == (right, "")
