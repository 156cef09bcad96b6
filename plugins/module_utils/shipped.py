# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a module's file to its code, which is on the host already.

Ansible packs all that a module imports into every call of it, and Python compiles it there anew. The collection's own
code is more than Ansible's; so the action plugin ships it once, in an archive whose name is the hash of its content,
and names that archive in the environment. A module that has changed the host keeps it there, and beside it what this
release of Python has compiled of it (see .core.libraries).

The command `gpuops` takes its code from the same archive (see .agent). No Ansible is there then: what is used of it
lies in the archive below STANDALONE, where no module looks.
"""
from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import io
import json
import marshal
import os
import stat
import sys
import zipfile
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import NoReturn, Optional, Sequence, cast

VARIABLE = "GPUOPS_LIBRARIES"
# Where a host keeps archives that have changed it, for root alone
DIRECTORY = "/var/lib/gpuops/lib"
PACKAGE = __name__.rpartition(".")[0]
OLDEST_PYTHON = (3, 9)
SEAL = b"0" * 64
# What the command needs of Ansible
STANDALONE = "standalone/"
INSTALL_AGAIN = "run the role gpuops.nvidia.node_agent for this host again"

_ENDS = (".py", ".pyc", "/__init__.py", "/__init__.pyc")


def run(name: str) -> None:
    """Run the main function of a module, by its name."""
    if not is_python_new_enough():
        _fail("host.python_too_old", "Python %s (%s)" % (sys.version.split()[0], sys.executable),
              "Python %d.%d or newer on the host" % OLDEST_PYTHON, "set `ansible_python_interpreter`")
    archive = os.environ.get(VARIABLE, "")
    if archive:
        if not hold(archive):
            _fail("host.archive_missing",
                  "%s is not on this host, not whole, or not to be read by uid %d" % (archive, os.geteuid()),
                  "the archive that the collection's action plugin ships",
                  "see whether that directory has free space and may be written to (`ansible_remote_tmp`), and run "
                  "again", libraries_missing=True)
        hold(compiled(archive), private=True)
    try:
        main = importlib.import_module("%s.mains.%s" % (PACKAGE, name)).main
    except ImportError as error:
        _fail("host.code_missing", "no code of the collection for %s (%s)" % (sys.executable, error),
              "what the collection's action plugin ships to the host",
              "run the module through Ansible by its full name, gpuops.nvidia.%s" % name)
    main()


def run_command(archive: str) -> NoReturn:
    """Be the command `gpuops`, with the code of an archive and no other. Never returns."""
    if not is_python_new_enough():
        _end("%s is Python %s, and %d.%d or newer is needed" % (
            sys.executable, sys.version.split()[0], *OLDEST_PYTHON))
    if not hold(archive, below=("", STANDALONE)):
        _end("%s is not there, or not whole" % archive)
    hold(compiled(archive), private=True, below=("", STANDALONE))
    os.environ[VARIABLE] = archive
    raise SystemExit(importlib.import_module("%s.gpuops.entry" % PACKAGE).main(sys.argv[1:]))


def _end(found: str) -> NoReturn:
    sys.stderr.write("gpuops: %s: %s\n" % (found, INSTALL_AGAIN))
    raise SystemExit(1)


def is_python_new_enough() -> bool:
    return sys.version_info[:2] >= OLDEST_PYTHON


class Archive(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports from an archive in memory: libraries at its top, the collection's own code below its full name.

    It goes on when another run clears the file away. And the user who logs in may write what he has sent, but not what
    root runs of it, as he may where Python itself opens the archive once more for each import.
    """

    def __init__(self, path: str, content: bytes, below: Sequence[str]) -> None:
        self._path = path
        self._below = below
        self._files = zipfile.ZipFile(io.BytesIO(content))  # pylint: disable=consider-using-with
        self._names = frozenset(self._files.namelist())

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        name = self._name(fullname)
        if not name:
            return None
        spec = importlib.util.spec_from_loader(
            fullname, self, origin=os.path.join(self._path, name), is_package=self.is_package(fullname))
        if spec is not None:
            spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        return self._name(fullname).rpartition("/")[2].startswith("__init__.")

    def get_source(self, fullname: str) -> Optional[str]:
        name = self._name(fullname)
        return self._files.read(name).decode() if name.endswith(".py") else None

    def get_code(self, fullname: str) -> CodeType:
        name = self._name(fullname)
        data = self._files.read(name)
        if name.endswith(".pyc"):
            return cast(CodeType, marshal.loads(data))
        return self.source_to_code(data, os.path.join(self._path, name))

    def close(self) -> None:
        """Nothing more is imported from it, and its content leaves the memory."""
        self._names = frozenset()
        self._files.close()

    def _name(self, fullname: str) -> str:
        base = fullname.replace(".", "/")
        names = (below + base + end for below in self._below for end in _ENDS)
        return next((name for name in names if name in self._names), "")


def hold(path: str, private: bool = False, below: Sequence[str] = ("",)) -> bool:
    """Import from an archive before all else, until this process ends; False where it is not there, or not good.

    private: whether nobody else may be able to write it: what is compiled has no hash to be known by.
    below:   the parts of it that are imported from.
    """
    try:
        # A FIFO without a writer would be waited for
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
            content = handle.read()
            trusted = is_private(os.fstat(handle.fileno())) and is_private(os.stat(os.path.dirname(path)))
    except OSError:
        return False
    if not is_whole(path, content) or (private and not trusted):
        return False
    sys.meta_path.insert(0, Archive(path, content, below))
    return True


def let_go() -> None:
    """Have what is held leave the memory, for who goes on for long and imports nothing any more."""
    for finder in [each for each in sys.meta_path if isinstance(each, Archive)]:
        sys.meta_path.remove(finder)
        finder.close()


def compiled(archive: str) -> str:
    """Where the code of an archive lies that this Python has compiled; other releases cannot read it."""
    return "%s-%s.zip" % (archive[:-len(".zip")], importlib.util.MAGIC_NUMBER.hex())


def is_whole(archive: str, content: bytes) -> bool:
    """Whether that is an archive's content: a power cut, or a full disk, may have left less of it, or something else.

    The name of one that was shipped is its hash; one that was compiled ends with its own (see sealed).
    """
    name = os.path.basename(archive).split(".")[0]
    if "-" in name:
        return content == sealed(content[:-len(SEAL)])
    return name == hashlib.sha256(content).hexdigest()[:20]


def sealed(content: bytes) -> bytes:
    """Content and its hash, which is the comment at the end of a ZIP archive that has left room for it."""
    return content + hashlib.sha256(content).hexdigest().encode()


def is_private(found: os.stat_result) -> bool:
    """Whether nobody but root and this user may write a file, or names in a directory."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _fail(code: str, found: str, wanted: str, remedy: str, **result: object) -> NoReturn:
    """End as a module that fails: what could do it in Ansible's way cannot be imported, nor can Refusal."""
    parts = {"code": code, "found": found, "wanted": wanted, "remedy": remedy, "option": ""}
    msg = "Found: %s. Wanted: %s. Do: %s. [%s]" % (found, wanted, remedy, code)
    sys.stdout.write(json.dumps(dict(result, **parts, refusals=[parts], failed=True, changed=False, msg=msg)) + "\n")
    raise SystemExit(1)
