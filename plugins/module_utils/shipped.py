# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a module's file to its code, which is on the host already.

Ansible packs all that a module imports into every call of it, and Python compiles it there anew. The collection's own
code is more than Ansible's; so the action plugin ships it once, in an archive whose name is the hash of its content,
and names that archive in the environment. A module that has changed the host keeps it there, and beside it what this
release of Python has compiled of it (see .core.libraries).
"""
from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
import stat
import sys
from typing import IO, List, NoReturn, Optional

VARIABLE = "GPUOPS_LIBRARIES"
# Where a host keeps archives that have changed it, for root alone
FOLDER = "/var/lib/gpuops/lib"
PACKAGE = __name__.rpartition(".")[0]
OLDEST_PYTHON = (3, 9)

_held: List[IO[bytes]] = []


def run(name: str) -> None:
    """Run the main function of a module, by its name."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        _fail("Found: Python %s (%s). Wanted: Python %d.%d or newer on the host. Do: set ansible_python_interpreter."
              % (sys.version.split()[0], sys.executable, *OLDEST_PYTHON))
    archive = os.environ.get(VARIABLE, "")
    if archive:
        held = hold(archive)
        if held is None:
            _fail("Found: %s is not on this host, not whole, or not to be read by uid %d. Wanted: the archive that the "
                  "collection's action plugin ships. Do: see room and rights of that directory (ansible_remote_tmp), "
                  "and run again." % (archive, os.geteuid()), libraries_missing=True)
        for path in (held, hold(compiled(archive)) if is_kept(archive) else None):
            if path is not None:
                use(path)
    try:
        main = importlib.import_module("%s.mains.%s" % (PACKAGE, name)).main
    except ImportError as error:
        _fail("Found: no code of the collection for %s (%s). Wanted: what the collection's action plugin ships to the "
              "host. Do: run the module through Ansible by its full name, gpuops.nvidia.%s."
              % (sys.executable, error, name))
    main()


def use(path: str) -> None:
    """Import from an archive before all else: libraries at its top, and the collection's own below its full name."""
    if path not in sys.path:
        sys.path.insert(0, path)
        sys.modules[PACKAGE].__path__.insert(0, os.path.join(path, *PACKAGE.split(".")))


def hold(archive: str) -> Optional[str]:
    """A name by which this process can import from an archive until it ends; None where it is not there, or not good.

    It is the name of the open file: what was looked at is what is imported, also if another run replaces it or clears
    it away meanwhile. What a host keeps is root's code, so it counts only where nobody else can have written it.
    """
    try:
        if is_kept(archive) and not is_private(os.stat(os.path.dirname(archive))):
            return None
        handle = open(archive, "rb")  # pylint: disable=consider-using-with
        _held.append(handle)
        if is_kept(archive) and not is_private(os.fstat(handle.fileno())):
            return None
        return "/proc/self/fd/%d" % handle.fileno() if is_whole(archive, handle.read()) else None
    except OSError:
        return None


def compiled(archive: str) -> str:
    """Where the code of an archive lies that this Python has compiled; other releases cannot read it."""
    return "%s-%s.zip" % (archive[:-len(".zip")], importlib.util.MAGIC_NUMBER.hex())


def is_kept(archive: str) -> bool:
    """Whether an archive lies where it outlives the call."""
    return os.path.dirname(archive) == FOLDER


def is_whole(archive: str, content: bytes) -> bool:
    """Whether an archive whose name is a hash has that content: a power cut, or a full disk, may have left less."""
    named = re.fullmatch(r"([0-9a-f]{20})\.zip", os.path.basename(archive))
    return named is None or hashlib.sha256(content).hexdigest().startswith(named.group(1))


def is_private(found: os.stat_result) -> bool:
    """Whether nobody but root and this user may write a file, or names in a directory."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _fail(msg: str, **result: object) -> NoReturn:
    """End as a module that fails: what could do it in Ansible's way cannot be imported."""
    sys.stdout.write(json.dumps(dict(result, failed=True, changed=False, msg=msg)) + "\n")
    raise SystemExit(1)
