# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""containerd's configuration as the daemon reads it: the root file, its imports, and what they mean together.

Rules of cmd/containerd/server/config of containerd: files are read root first and breadth-first through 'imports';
a later file wins. 1.x replaces a plugin's whole section, 2.x merges sections deeply and replaces lists.
"""
from __future__ import annotations

import copy
import fnmatch
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ....core.errors import GpuOpsError, HostFailed
from ....core.host import Host
from ... import toml

CRI2 = "io.containerd.grpc.v1.cri"
CRI3 = "io.containerd.cri.v1.runtime"
# Versions of the root file's format that a release reads, by the release since which it does
# (cmd/containerd/server/config/config.go)
FORMATS: Dict[Tuple[int, int], Tuple[int, ...]] = {(1, 6): (2,), (2, 0): (2, 3), (2, 3): (2, 3, 4)}
DISABLED_NAMES = ("cri", CRI2, CRI3)
# What we read of a file, of which type it has to be for containerd to read it too
Types = Tuple[Tuple[toml.Path, type, str], ...]
TYPES: Types = (
    (("version",), int, "a number"), (("imports",), list, "a list of paths"),
    (("disabled_plugins",), list, "a list of names"), (("plugins",), dict, "tables"),
)
# The same of the CRI plugin's section; ANY is every key
ANY = "*"
RUNTIMES = ("containerd", "runtimes")
SECTION_TYPES: Types = (
    ((), dict, "a table"), (("cdi_spec_dirs",), list, "a list of paths"), (("containerd",), dict, "a table"),
    (("containerd", "default_runtime_name"), str, "a name"), (RUNTIMES, dict, "tables"),
    ((*RUNTIMES, ANY), dict, "a table"), ((*RUNTIMES, ANY, "runtime_type"), str, "a name"),
    ((*RUNTIMES, ANY, "options"), dict, "a table"),
)


@dataclass(frozen=True)
class File:
    """A file of the configuration. text may hold registry credentials: it goes into no result."""

    path: str
    text: str
    data: Mapping[str, Any]

    def place(self, *path: str) -> str:
        """The file with the line of a table or key."""
        return "%s:%d" % (self.path, toml.line_of(self.text, path))


@dataclass(frozen=True)
class Configuration:
    """The root file of containerd and all that it imports, as they are.

    files:   in the order in which they are read, the root first; none when there is no root file.
    missing: files that an import names without a pattern and that are not there: the daemon does not start.
    major:   containerd's major version.
    """

    files: Tuple[File, ...]
    missing: Tuple[str, ...]
    major: int

    @property
    def version(self) -> int:
        """Version of the root file's format; 1 when it names none, 0 when there is no root file or nothing in it."""
        data = self.files[0].data if self.files else {}
        return int(data.get("version", 1)) if data else 0

    @property
    def cri_id(self) -> str:
        version = self.version or (2 if self.major < 2 else 3)
        return CRI2 if version < 3 else CRI3

    @property
    def disabled(self) -> Tuple[str, ...]:
        named = [name for file in self.files for name in file.data.get("disabled_plugins", [])]
        return tuple(name for name in named if name in DISABLED_NAMES)

    @property
    def imports(self) -> Tuple[str, ...]:
        """The root file's imports as they are written."""
        return tuple(self.files[0].data.get("imports", [])) if self.files else ()

    def cri(self) -> Dict[str, Any]:
        """The CRI plugin's section in effect, built-in values not filled in."""
        return merged([_section(file.data, self.cri_id) for file in self.files], self.major)

    def holder(self) -> str:
        """The last file with a section of the CRI plugin, which on 1.x is the one that counts; else the root."""
        holders = [file.path for file in self.files if self.cri_id in file.data.get("plugins", {})]
        return holders[-1] if holders else self.files[0].path

    def source_of(self, handler: str) -> str:
        """The last file that defines a handler."""
        named = [
            file.path for file in self.files
            if handler in _runtimes(_section(file.data, self.cri_id))
        ]
        return named[-1] if named else ""

    def place_of(self, handler: str) -> str:
        """File and line of a handler."""
        path = self.source_of(handler)
        return next((file.place("plugins", self.cri_id, "containerd", "runtimes", handler)
                     for file in self.files if file.path == path), "")

    def place_of_default(self) -> str:
        """File and line of the default handler's name, '' when no file has one."""
        found = [file.place("plugins", name, "containerd", "default_runtime_name")
                 for file in self.files for name in (CRI2, CRI3)
                 if "default_runtime_name" in _section(file.data, name).get("containerd", {})]
        return found[-1] if found else ""

    def importer_of(self, missing: str) -> str:
        """File and line of the import of a file that is not there."""
        return next((file.place("imports") for file in self.files
                     if missing in [_absolute(file.path, pattern) for pattern in file.data.get("imports", [])]), "")

    def but(self, changed: Mapping[str, Any]) -> Configuration:
        """The configuration with other texts of its files; a text of None takes the file away."""
        files = []
        for file in self.files:
            text = changed.get(file.path, file.text)
            if text is not None:
                files.append(File(file.path, text, toml.parse(file.path, text)))
        return Configuration(tuple(files), self.missing, self.major)


def load(host: Host, root: str, major: int) -> Configuration:
    """Read the root file and everything that it imports. Raises GpuOpsError that names a broken file's line."""
    files: List[File] = []
    missing: List[str] = []
    waiting = [root]
    while waiting:
        path = waiting.pop(0)
        if path in [file.path for file in files]:
            continue
        text = _text(host, path)
        if text is None:
            if files:
                missing.append(path)
            continue
        file = File(path, text, toml.parse(path, text))
        _check_types(file, (), TYPES)
        files.append(file)
        for pattern in file.data.get("imports", []):
            waiting.extend(_imported(host, path, pattern))
    configuration = Configuration(tuple(files), tuple(missing), major)
    for file in files:
        _check_types(file, ("plugins", configuration.cri_id), SECTION_TYPES)
    return configuration


def merged(sections: Sequence[Mapping[str, Any]], major: int) -> Dict[str, Any]:
    """Sections of one plugin, in the order of their files, as containerd of this major version puts them together."""
    present = [section for section in sections if section]
    if major < 2:
        return copy.deepcopy(dict(present[-1])) if present else {}
    total: Dict[str, Any] = {}
    for section in present:
        _merge_into(total, section)
    return total


def is_imported(configuration: Configuration, path: str) -> bool:
    """Whether the root file's imports reach a file that may not be there yet."""
    directory = os.path.dirname(configuration.files[0].path) if configuration.files else ""
    return any(fnmatch.fnmatch(path, os.path.join(directory, pattern)) for pattern in configuration.imports)


def handlers(cri: Mapping[str, Any]) -> Dict[str, Any]:
    """The runtime handlers that a section of the CRI plugin defines."""
    return dict(_runtimes(cri))


def _section(data: Mapping[str, Any], cri_id: str) -> Dict[str, Any]:
    section = data.get("plugins", {}).get(cri_id, {})
    return section if isinstance(section, dict) else {}


def _runtimes(section: Mapping[str, Any]) -> Dict[str, Any]:
    runtimes = section.get("containerd", {}).get("runtimes", {})
    return runtimes if isinstance(runtimes, dict) else {}


def _imported(host: Host, importer: str, pattern: str) -> List[str]:
    path = _absolute(importer, pattern)
    return host.glob(path) if "*" in path else [path]


def _absolute(importer: str, pattern: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(importer), pattern))


def _text(host: Host, path: str) -> Optional[str]:
    try:
        return host.read(path)
    except HostFailed as error:
        raise GpuOpsError(
            "runtime.file_unreadable",
            found="%s cannot be read: %s" % (path, error.reason),
            wanted="a configuration file of containerd",
            remedy="put the file there, or name it with `config_file`; nothing was changed",
            option="config_file",
            file=path,
        ) from error


def _check_types(file: File, section: toml.Path, types: Types) -> None:
    """Raises GpuOpsError that names what containerd could not read. types: paths within the section."""
    for inner, kind, wanted in types:
        for path, value in _values(file.data, section + inner):
            entries = value if isinstance(value, list) else []
            # To Python, true is a number too
            fits = isinstance(value, kind) and not isinstance(value, bool)
            if fits and all(isinstance(entry, str) for entry in entries):
                continue
            raise GpuOpsError(
                "runtime.wrong_type",
                found="%s: %s = %s" % (file.place(*path), path[-1], toml.render_value(value)
                                       if isinstance(value, (str, int)) else "another type"),
                wanted="%s: %s" % (path[-1], wanted),
                remedy="correct the file: containerd does not start with it; nothing was changed",
                file=file.path,
                line=toml.line_of(file.text, path),
            )


def _values(data: Any, path: toml.Path, before: toml.Path = ()) -> Iterator[Tuple[toml.Path, Any]]:
    """(path, value) of what is there at a path; ANY in it is every key."""
    if not path:
        yield before, data
    elif isinstance(data, dict):
        for key in data if path[0] == ANY else (path[0],):
            if data.get(key) is not None:
                yield from _values(data[key], path[1:], (*before, key))


def _merge_into(total: Dict[str, Any], section: Mapping[str, Any]) -> None:
    for key, value in section.items():
        if isinstance(value, dict) and isinstance(total.get(key), dict):
            _merge_into(total[key], value)
        else:
            total[key] = copy.deepcopy(value)
