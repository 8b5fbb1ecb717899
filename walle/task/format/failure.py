"""Failures of task code as they are shown and reported: type, text, place, traceback and last log lines of an error."""

from walle.engine_ext.vm.bytecode import BytecodeError
from walle.engine_ext.vm.imports import ForbiddenImport
from walle.engine_ext.vm.loop_calls import HostCrashed, HostLost, LimitExceeded, TaskError
from walle.engine_ext.vm.pool import TaskQuarantined
from walle.errors import VMError
from walle.protocol import Failure, printable


def failure_of(error: BaseException, *, log: str = "") -> Failure:
    """Return the failure that an error of a run, of a load or of a check is; its texts are bounded and printable.

    A traceback and a log keep their line breaks. `log` is used where the error has none.
    """
    traceback = ""
    match error:
        case TaskError():
            error_type, place, traceback = error.type_name, error.place, error.traceback_text
        case LimitExceeded() | ForbiddenImport() | HostCrashed() | HostLost() | TaskQuarantined():
            error_type, place = type(error).__name__, error.place
        case BytecodeError():
            error_type, place = type(error).__name__, f"{error.file}:{error.line}" if error.line else error.file
        case _:
            error_type, place = type(error).__name__, ""
    kept = error.log if isinstance(error, VMError) and error.log else log
    return Failure(
        error_type=printable(error_type),
        error=printable(str(error)),
        place=printable(place),
        traceback=_printable_lines(traceback),
        log=_printable_lines(kept),
    ).bounded()


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
