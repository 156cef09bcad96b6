# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a module's file to its code, which is on the host already.

Ansible packs all that a module imports into every call of it, and Python compiles it there anew. The collection's own
code is more than Ansible's; so the action plugin ships it once, in an archive whose name is the hash of its content,
and names that archive in the environment. What is compiled of it on the host lies beside it, for one release of Python.
"""
from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys

VARIABLE = "GPUOPS_LIBRARIES"
# Where archives are kept on a host that a module has been allowed to change
FOLDER = "/var/lib/gpuops/lib"
PACKAGE = __name__.rpartition(".")[0]
OLDEST_PYTHON = (3, 9)


def run(name: str) -> None:
    """Run the main function of a module, by its name."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        _fail("Found: Python %s (%s). Wanted: Python %d.%d or newer on the host. Do: set ansible_python_interpreter."
              % (sys.version.split()[0], sys.executable, *OLDEST_PYTHON))
    archive = os.environ.get(VARIABLE, "")
    if archive:
        if not is_whole(archive):
            _fail("Found: %s is not on this host, not whole, or not to be read by uid %d. Wanted: the archive that the "
                  "collection's action plugin ships. Do: see room and rights of that directory (ansible_remote_tmp), "
                  "and run again." % (archive, os.geteuid()), libraries_missing=True)
        for path in (archive, compiled(archive)):
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


def compiled(archive: str) -> str:
    """Where the code of an archive lies that this Python has compiled; other releases cannot read it."""
    return "%s-%s.zip" % (archive[:-len(".zip")], importlib.util.MAGIC_NUMBER.hex())


def is_whole(archive: str) -> bool:
    """Whether an archive is there. One whose name is a hash has that content, unless a power cut has left less."""
    try:
        with open(archive, "rb") as handle:
            content = handle.read()
    except OSError:
        return False
    named = re.fullmatch(r"([0-9a-f]{20})\.zip", os.path.basename(archive))
    return named is None or hashlib.sha256(content).hexdigest().startswith(named.group(1))


def _fail(msg: str, **result: object) -> None:
    """End as a module that fails: what could do it in Ansible's way cannot be imported."""
    sys.stdout.write(json.dumps(dict(result, failed=True, changed=False, msg=msg)) + "\n")
    raise SystemExit(1)
