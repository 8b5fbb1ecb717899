"""Program that makes a table of uploaded attributes, apart from the gateway, which answers meanwhile.

    python -m walle.deploy.policies.attribute_build ROWS OUT < DESCRIPTION

ROWS is a file of JSON lines, OUT the new table, DESCRIPTION its `TableFacts` as JSON, without rows. It ends with 0, or
with 1 and the reason on standard output where the rows cannot be taken.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.attribute_table import AttributeTableError, TableFacts, write_table
from walle.engine_ext.vm.host import this_python
from walle.task.format.source_facts import end_with_parent

_MAX_S = 600.0


def build_apart(rows: Path, out: Path, facts: TableFacts) -> None:
    """Make the table of a file of rows in a separate process; `facts.rows` is not used. It is synced.

    Raises:
        AttributeTableError: the rows cannot be taken, or it took more than ten minutes.
        HostStartError: no process can be started.
    """
    program = [this_python(), "-m", __name__, str(rows), str(out)]
    try:
        done = subprocess.run(
            program, input=json.dumps(facts.to_plain()).encode(), capture_output=True, timeout=_MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AttributeTableError(f"the table was not made within {_MAX_S:.0f} s; put one of fewer rows") from None
    if done.returncode == 0:
        return
    what = done.stdout.decode(errors="replace").strip()
    if not what:
        what = f"the table was not made: {done.stderr.decode(errors='replace').strip()[-500:] or 'the process ended'}"
    raise AttributeTableError(what)


def main() -> int:
    end_with_parent()
    facts = json.load(sys.stdin)
    columns = {name: ColumnType(kind) for name, kind in facts["columns"].items()}
    with open(sys.argv[1], "rb") as rows, open(sys.argv[2], "xb", opener=_private) as out:
        try:
            write_table(rows, out, key=facts["key"], columns=columns, put_s=facts["put_s"], put_by=facts["put_by"])
            out.flush()
            os.fsync(out.fileno())
        except AttributeTableError as error:
            sys.stdout.write(str(error))
            return 1
        except OSError as error:
            sys.stdout.write(f"the table cannot be written: {error.strerror or error}")
            return 1
    return 0


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


if __name__ == "__main__":
    sys.exit(main())
