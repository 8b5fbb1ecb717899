"""Sources of hostile tasks, by what they do, and of an honest one."""

LIMITS = {"memory_mb": 16, "output_kb": 64, "log_kb": 16, "recursion": 300}
ACCESS = """
import json
real = json.dumps.__globals__["__builtins__"]
load = real["__import__"]
sys = load("sys")

def run():
    return attack()
"""

ATTACKS = {
    "raises in a finalizer": """
class Bad:
    def __del__(self):
        raise ValueError("no")
def attack():
    for _ in range(100):
        Bad()
    cycle = Bad(); cycle.me = cycle
    return 1
""",
    "never ends a finalizer": """
class Bad:
    def __del__(self):
        while True: pass
def attack():
    bad = Bad(); bad.me = bad
    load("json").kept = bad
    return 1
""",
    "creates itself again": """
class Bad:
    def __del__(self):
        bad = type(self)(); bad.me = bad
        while True: pass
def attack():
    bad = Bad(); bad.me = bad
    return 1
""",
    "hooks audits indefinitely": """
def hook(*event):
    while True: pass
def attack():
    sys.addaudithook(hook)
    return 1
""",
    "leaves by SystemExit": "def attack(): raise SystemExit(1)\n",
    "leaves by sys.exit": "def attack(): sys.exit(3)\n",
    "interrupts": "def attack(): raise KeyboardInterrupt\n",
    "searches for os._exit": """
def attack():
    os = load("os")
    found = [name for name in ("_exit", "abort", "kill", "fork", "execv", "system", "close") if hasattr(os, name)]
    for name in ("posix", "faulthandler", "_signal", "signal", "ctypes", "_ctypes", "subprocess", "socket", "mmap"):
        sys.modules.pop(name, None)
        try:
            load(name)
            found.append(name)
        except (ImportError, AttributeError):
            pass
    if found: load("os")._exit(77) if "_exit" in found else load("json").loads(str(found))
    return 1
""",
    "allocates a giant": "def attack(): return len(bytearray(10**13))\n",
    "allocates giants": "def attack():\n    kept = []\n    while True: kept.append(bytearray(10**6))\n",
    "allocates despite errors": """
def attack():
    kept = []
    while True:
        try: kept.append("x" * 10**6 + str(len(kept)))
        except BaseException: pass
""",
    "counts indefinitely": "import itertools\ndef attack(): return list(itertools.count())\n",
    "generates indefinitely": "def numbers():\n    while True: yield 1\ndef attack(): return sum(numbers())\n",
    "catches all": """
def attack():
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
    "recurses in repr": "class R:\n    def __repr__(self): return repr([self])\ndef attack(): return repr(R())\n",
    "recurses in getattr": """
class R:
    def __getattr__(self, name): return getattr(self, name)
def attack(): return R().x
""",
    "nests deeply": "def attack():\n    value = []\n    for _ in range(10**6): value = [value]\n    return value\n",
    "changes builtins": "def attack(): real['len'] = real['isinstance'] = real['__import__'] = None\n",
    "changes classes": """
def attack():
    import collections, enum
    enum.Enum.__new__ = None
    collections.UserDict.__init__ = None
    load("abc").ABCMeta.__instancecheck__ = None
    return 1
""",
    "empties sys.modules": "def attack(): sys.modules.clear(); sys.path.clear(); sys.meta_path.clear(); return 1\n",
    "hijacks the collector": """
def attack():
    gc = load("gc")
    gc.disable(); gc.callbacks.clear(); gc.set_threshold(0)
    gc.callbacks.append(lambda *args: 1 / 0)
    for found in gc.get_objects():
        if type(found) is dict and "dispatch" in found: found.clear()
    return 1
""",
    "walks frames": """
def attack():
    frame = sys._getframe()
    while frame.f_back is not None: frame = frame.f_back
    frame.f_globals.clear()
    return 1
""",
    "traces": """
def attack():
    sys.settrace(lambda *a: 1 / 0)
    sys.setprofile(lambda *a: 1 / 0)
    return attack.__name__
""",
    "starts threads": "def attack(): load('_thread').start_new_thread(print, (1,))\n",
    "prints indefinitely": "def attack():\n    while True: print('x' * 200)\n",
    "sleeps": "import time\ndef attack(): time.sleep(100)\n",
    "returns nonsense": "def attack(): return {1: object()}\n",
    "has no text": "class E(Exception):\n    def __str__(self): raise self\ndef attack(): raise E\n",
    "chains errors": """
def attack():
    error = None
    for number in range(10_000):
        try:
            raise ValueError("x" * 100) from error
        except ValueError as caught: error = caught
    raise error
""",
    "backtracks": "import re\ndef attack(): return re.match(r'(a+)+$', 'a' * 60 + 'b')\n",
    "leaves objects that survive": """
import weakref, abc
def attack():
    import collections
    class Key(collections.UserDict): pass
    collections.abc.Sequence.register(Key)
    load("weakref").finalize(Key, print, 1)
    load("atexit").register(print, 1)
    load("codecs").register(lambda name: None)
    return 1
""".replace("import weakref, abc\n", ""),
    "makes empty objects": """
def attack():
    import walle.np
    core = sys.modules["walle.engine_ext._core"]
    kinds = [core.ndarray, core.Session, core.Module, core.ndarray.__base__, type(core.unary.__self__)]
    for kind in kinds:
        for new in (kind.__new__, kind.__base__.__new__, object.__new__, type.__call__):
            try: core.Session.inputs(new(kind))
            except TypeError: pass
        try: type("T", (kind,), {"__init__": lambda self: None})()
        except TypeError: pass
    class Fake:
        __class__ = core.ndarray
        def _pybind11_conduit_v1_(self, *given): return given[1]
    try: core.ndarray.reshape(Fake(), 2)
    except TypeError: pass
    return Fake()
""",
    "calls the core": """
def attack():
    core = sys.modules["walle.engine_ext._core"]
    for name, value in list(vars(core).items()):
        for given in ((), (1,), (b"",), ("", ""), (None, None, None)):
            if callable(value) and name not in ("vm_sleep", "call_back"):
                try: value(*given)
                except Exception: pass
    return 1
""",
    "reduces indefinitely": """
def attack():
    import walle.np
    core = sys.modules["walle.engine_ext._core"]
    while True:
        core.evaluate("ReduceSum", [core.broadcast_to(core.full((1,), 1, "float32"), (1 << 20, 1 << 20))], {})
""",
    "renames": """
def attack():
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()):
            for name in ("__name__", "__qualname__", "__module__"):
                try: setattr(value, name, "renamed")
                except (TypeError, AttributeError): pass
    return 1
""",
    "audits": "def attack():\n    sys.addaudithook(lambda *a: 1 / 0)\n    return 1\n",
}
HONEST = """
import json
import walle.np as np

def run(number):
    values = np.asarray([number, number + 1, number + 2], dtype="float32")
    return json.dumps({"sum": float(np.sum(values)), "len": len([1, 2]), "is": isinstance(3, int)})
"""

# Loops in C, which no VM can stop: only for a VM host, since in one process each keeps a core until the process ends.
UNSTOPPABLE = {
    call: f"import collections, functools, itertools, operator\ndef attack(): return {call}\n"
    for call in (
        "any(itertools.repeat(0))",
        "all(itertools.repeat(1))",
        "sum(itertools.repeat(0))",
        "max(itertools.repeat(0))",
        "min(itertools.repeat(0))",
        "1 in itertools.repeat(0)",
        "set(itertools.repeat(0))",
        "dict.fromkeys(itertools.repeat(0))",
        "next(filter(None, itertools.repeat(0)))",
        "next(itertools.islice(itertools.count(), 1 << 62, None))",
        "range(1 << 62).count(0.5)",
        "collections.deque(itertools.repeat(0), maxlen=0)",
        "collections.Counter(itertools.repeat(0))",
        "operator.countOf(itertools.repeat(0), 1)",
        "operator.indexOf(itertools.repeat(0), 1)",
        "functools.reduce(operator.and_, itertools.repeat(0))",
    )
}


# Opens a path or takes a descriptor by the file class that the interpreter's graph of objects leads to.
FILE_IO = """
def opened(path, mode="r"):
    queue = [object]
    for one in queue:
        queue += type.__subclasses__(one)
        if one.__name__ == "FileIO":
            return one(path, mode, closefd=not isinstance(path, int))
"""
PATHS = {
    "reads the system's users": ("/etc/passwd", "r"),
    "reads the users by another root": ("/proc/self/root/etc/passwd", "r"),
    "reads the environment": ("/proc/self/environ", "r"),
    "reads its process's map": ("/proc/self/maps", "r"),
    "reads its process's memory": ("/proc/self/mem", "r"),
    "writes its process's memory": ("/proc/self/mem", "r+"),
    "writes its badness for the system": ("/proc/self/oom_score_adj", "w"),
    "writes a file": ("/tmp/walle-hostile", "w"),
    "reads another process": ("/proc/1/cmdline", "r"),
    "reads a device": ("/dev/zero", "r"),
}

# Only for a VM host: in the device's own process each of these harms the device.
ESCAPES = {
    "crashes by bytecode": """
def attack():
    code = attack.__code__.replace(co_code=bytes([0x53, 200] * 64), co_stacksize=1)
    return type(attack)(code, {})()
""",
    "reads beyond its constants by bytecode": """
import types
def attack():
    kept = []
    for index in range(0, 256, 8):
        code = attack.__code__.replace(co_code=bytes([0x53, index, 0x24, 0]), co_consts=(None,))
        try: kept.append(repr(types.FunctionType(code, {})()))
        except Exception: pass
    return kept
""",
    "writes to its descriptors": FILE_IO
    + """
def attack():
    for number in range(3, 64):
        try: opened(number, "w").write(b"\\0" * 1000)
        except OSError: pass
    return 1
""",
    "reads from its descriptors": FILE_IO
    + """
def attack():
    while True:
        for number in range(3, 64):
            try: opened(number).read(1000)
            except OSError: pass
""",
    "closes its descriptors": FILE_IO
    + """
def attack():
    for number in range(3, 64):
        try: type(opened(number))(number, closefd=True).close()
        except OSError: pass
    return 1
""",
    **{
        name: FILE_IO + f"def attack(): return opened({path!r}, {mode!r}).read(100)\n"
        for name, (path, mode) in PATHS.items()
    },
}
