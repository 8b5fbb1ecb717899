"""A copy of the checkout, without anything fetched, in which the commands of figures run as a user runs them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from walle.cli.figures.catalogue import Catalogue, Figure
from walle.cli.figures.headline import Headline

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared/data"
_LIMIT_S = 300.0


def catalogue() -> Catalogue:
    """Return the catalogue of this checkout."""
    return Catalogue.find()


class FigureCheckout:
    """A copy of the files that git knows or would add, and of the built core, in `folder`, with a .venv of its own.

    The environment has the copy as its walle, as `make setup` installs it, and this one's other packages.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "walle"
        self._home = folder / "home"
        self._home.mkdir()
        listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
        cores = [str(path.relative_to(ROOT)) for path in (ROOT / "walle/engine_ext").glob("*.so")]
        for name in filter(None, [*names, *cores]):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        self._program = self._install()

    def _install(self) -> Path:
        """Make the environment; return its `walle`."""
        venv.create(self.root / ".venv", symlinks=True)
        (packages,) = (self.root / ".venv/lib").glob("python*/site-packages")
        (packages / "walle.pth").write_text(f"{self.root}\n{sysconfig.get_path('purelib')}\n")
        program = self.root / ".venv/bin/walle"
        _, _, text = Path(sys.executable).with_name("walle").read_text().partition("\n")
        program.write_text(f"#!{self.root}/.venv/bin/python\n{text}")
        program.chmod(0o755)
        return program

    def run(self, figure: Figure, *more: str, models: Path | None = None) -> list[Headline]:
        """Run `walle figures NAME -- ...` with the quick arguments and `more`; return its headlines.

        `models` is a folder of published models; without it there are none.
        """
        command = [str(self._program), "figures", figure.name, "--", *figure.quick, *more]
        environment = {**os.environ, "HOME": str(self._home), "XDG_CACHE_HOME": str(self._home / "cache")}
        environment.pop("WALLE_MODELS", None)
        if models is not None:
            environment["WALLE_MODELS"] = str(models)
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        shown = f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, shown
        last = done.stdout.rstrip().splitlines()
        found = [headline for line in last if (headline := Headline.parse(line)) is not None]
        assert 1 <= len(found) <= 2, f"a benchmark prints one headline or two\n{shown}"
        assert [one.to_line() for one in found] == last[-len(found) :], f"the headlines are not the last lines\n{shown}"
        assert all(one.ours > 0 or one.unit in ("%", "of 1") for one in found), shown
        for name in figure.pictures:
            assert (self.root / "out" / name).stat().st_size > 1000, name
        return found
