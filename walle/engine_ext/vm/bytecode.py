"""Compiler of Python source to `.pyc` bytes, and their loader (§4.3: the cloud compiles, a device runs bytecode).

A `.pyc` file is the standard one: magic number, flags, source time and size, marshalled code. Its magic number belongs
to one minor version of CPython, which is why a bundle may contain a module several times: `main.pyc`, or
`main.cpython-313.pyc` beside `main.cpython-314.pyc`.
"""

import marshal
import sys
from importlib.util import MAGIC_NUMBER, source_hash
from types import CodeType

from walle.errors import VMError

_HEAD_BYTES = 16
_HASH_BASED = 0b01  # PEP 552: identified by its source's hash, which a device need not check
# Last magic number of each version's releases, and the version's name. Older versions are not supported.
_VERSIONS = ((3495, "3.11"), (3531, "3.12"), (3571, "3.13"), (3627, "3.14"))

TAG = sys.implementation.cache_tag


class BytecodeError(VMError):
    """Code that this interpreter cannot load: source that does not compile, or broken or another Python's bytecode."""

    def __init__(self, file: str, problem: str, line: int = 0) -> None:
        super().__init__(f"{file}{f':{line}' if line else ''}: {problem}")
        self.file = file
        self.problem = problem
        self.line = line


def _python_of(magic: bytes) -> str:
    """Return the name of the Python version that a magic number belongs to, as far as it is known."""
    if magic[2:] != b"\r\n":
        return "no Python (the file is not a bytecode file)"
    number = int.from_bytes(magic[:2], "little")
    for last, version in _VERSIONS:
        if number <= last:
            return f"Python {version}" if number > 3400 else "a Python before 3.9"
    return f"a Python after {_VERSIONS[-1][1]}"


def compile_source(source: bytes | str, file: str) -> bytes:
    """Return the `.pyc` bytes of the source; the same source gives the same bytes. `file` is what tracebacks show.

    Raises:
        BytecodeError: a syntax error, with its line.
    """
    data = source.encode() if isinstance(source, str) else source
    try:  # compiled from bytes, not from a tree: marshal writes objects that a tree still refers to in another way
        body = marshal.dumps(compile(data, file, "exec", dont_inherit=True, optimize=0))
    except SyntaxError as error:
        raise BytecodeError(file, f"does not compile: {error.msg}", error.lineno or 0) from error
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BytecodeError(file, f"does not compile: {error or type(error).__name__}") from error
    return MAGIC_NUMBER + _HASH_BASED.to_bytes(4, "little") + source_hash(data) + body


def check_magic(data: bytes, file: str) -> None:
    """Check that the bytes are bytecode of this interpreter, without loading them.

    Raises:
        BytecodeError: they are not; the message names the Python that they are for.
    """
    if len(data) < _HEAD_BYTES:
        raise BytecodeError(file, f"is {len(data)} bytes long, too short for bytecode")
    if data[:4] != MAGIC_NUMBER:
        here = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        raise BytecodeError(file, f"is bytecode of {_python_of(data[:4])}, this is {here}; build it with {here}")


def load_code(data: bytes, file: str) -> CodeType:
    """Return the code of `.pyc` bytes. The bytes must be trusted: `marshal` is not safe for bytes made by an attacker.

    Raises:
        BytecodeError: the bytes are of another Python, truncated, or not code.
    """
    check_magic(data, file)
    try:
        code = marshal.loads(memoryview(data)[_HEAD_BYTES:])  # noqa: S302 -- signed, and checked against its hash
    except (ValueError, EOFError, TypeError) as error:
        raise BytecodeError(file, f"is broken bytecode: {error}") from error
    if not isinstance(code, CodeType):
        raise BytecodeError(file, f"holds {type(code).__name__}, not code")
    return code
