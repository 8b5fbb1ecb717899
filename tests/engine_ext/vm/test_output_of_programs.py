"""Import of the VM's runtime in a program that has replaced its standard output."""

import subprocess
import sys


def test_the_types_of_tasks_are_imported_where_the_output_has_no_file() -> None:
    code = "import io, sys\nsys.stdout = io.StringIO()\nimport walle.task, walle.task.check\nsys.stderr.write('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "done")
