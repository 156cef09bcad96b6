# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install the Debian packages of debian-packages.txt that the machine lacks."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import List

from workspace import REPOSITORY

LIST = REPOSITORY / "debian-packages.txt"


def main() -> int:
    missing = missing_packages()
    if not missing:
        return 0
    if not shutil.which("apt-get"):
        return _refuse("this machine has no apt-get", missing, "install these programs by the machine's own means")
    if os.geteuid() != 0:
        return _refuse("you are not root", missing, "run: apt-get install %s" % " ".join(missing))
    print("installing Debian packages: %s" % " ".join(missing), flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    apt = ["apt-get", "--quiet", "--option", "Dpkg::Use-Pty=0"]
    subprocess.run([*apt, "update"], check=True, env=environment, stdout=subprocess.DEVNULL)
    # --no-install-recommends: a recommended package could start services on the machine.
    subprocess.run([*apt, "install", "--yes", "--no-install-recommends", *missing], check=True, env=environment,
                   stdin=subprocess.DEVNULL)
    return 0


def missing_packages() -> List[str]:
    missing = []
    for line in LIST.read_text().splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) > 1 and shutil.which(words[1]):
            continue
        if not _installed(words[0]):
            missing.append(words[0])
    return missing


def _installed(package: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    answer = subprocess.run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", package], check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return answer.stdout == "installed"


def _refuse(found: str, missing: List[str], remedy: str) -> int:
    print("missing Debian packages: %s; %s; %s" % (" ".join(missing), found, remedy), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
