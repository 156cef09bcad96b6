# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CRI-O's configuration as the daemon reads it: crio.conf, every file below crio.conf.d, then its command line.

Rules of pkg/config of CRI-O: the directory is walked in lexical order whatever a file is called (a stray backup counts
too); a later value replaces an earlier one; an entry of crio.runtime.runtimes is replaced whole.
"""
from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ... import toml
from ...model import Service, environment
from .daemon import Daemon, started_as

ROOT = "/etc/crio/crio.conf"
DIRECTORY = "/etc/crio/crio.conf.d"
COMMAND_LINE = "the command line of CRI-O"
MONITOR = "conmon"
# What CRI-O's packages bring for low-level runtimes, where no file names the runtime
DEFAULT_HANDLERS = ("crun", "runc")


@dataclass(frozen=True)
class File:
    """A file of the configuration. text may hold secrets: it goes into no result."""

    path: str
    text: str
    data: Mapping[str, Any]

    def runtime(self) -> Dict[str, Any]:
        """Its table crio.runtime."""
        crio = self.data.get("crio", {})
        runtime = crio.get("runtime", {}) if isinstance(crio, dict) else {}
        return runtime if isinstance(runtime, dict) else {}

    def handlers(self) -> Dict[str, Any]:
        runtimes = self.runtime().get("runtimes", {})
        return runtimes if isinstance(runtimes, dict) else {}


@dataclass(frozen=True)
class Configuration:
    """The files of CRI-O and the options of its daemon, which override them.

    files:   in the order in which they are read; crio.conf, when it is there, is the first.
    daemon:  how the daemon was started.
    monitor: where the daemon finds conmon in its PATH, '' if it does not.
    """

    root: str
    directory: str
    files: Tuple[File, ...]
    daemon: Daemon = Daemon()
    monitor: str = ""

    def runtime(self) -> Dict[str, Any]:
        """The table crio.runtime in effect, built-in values not filled in."""
        total: Dict[str, Any] = {}
        for file in self.files:
            total.update(copy.deepcopy({key: value for key, value in file.runtime().items() if key != "runtimes"}))
        if self.daemon.option("default-runtime"):
            total["default_runtime"] = self.daemon.option("default-runtime")
        total["runtimes"] = self.handlers()
        return total

    def handlers(self) -> Dict[str, Any]:
        """The handlers that are defined, each as it is said last."""
        total: Dict[str, Any] = {}
        for file in self.files:
            total.update(copy.deepcopy(file.handlers()))
        total.update(self.daemon.handlers())
        return total

    def monitor_of_all(self) -> str:
        """The monitor that one old setting gives every handler, '' if it does not."""
        return self.daemon.option(MONITOR) or str(self.runtime().get(MONITOR) or "")

    def source_of(self, handler: str) -> str:
        """What defines a handler last, '' if nothing does."""
        if handler in self.daemon.handlers():
            return COMMAND_LINE
        return next((file.path for file in reversed(self.files) if handler in file.handlers()), "")

    def source_of_default(self) -> str:
        """What names the default handler last, '' if nothing does."""
        if self.daemon.option("default-runtime"):
            return COMMAND_LINE
        return next((file.path for file in reversed(self.files) if "default_runtime" in file.runtime()), "")

    def but(self, changed: Mapping[str, Optional[str]]) -> Configuration:
        """The configuration with other texts of its files; a text of None takes the file away."""
        texts: Dict[str, Optional[str]] = {file.path: file.text for file in self.files}
        texts.update(changed)
        names = sorted(texts, key=lambda path: (path != self.root, path.split("/")))
        return replace(self, files=tuple(
            File(path, text, toml.parse(path, text))
            for path, text in ((path, texts[path]) for path in names) if text is not None))


def load(host: Host, root: str = ROOT, directory: str = DIRECTORY, daemon: Optional[Daemon] = None) -> Configuration:
    """Read what CRI-O reads, in its order. Raises GpuOpsError that names a broken file's line."""
    daemon = daemon or Daemon()
    files: List[File] = []
    for path in [root, *_below(host, directory)]:
        text = None if host.is_dir(path) else host.read(path)
        if text is not None:
            files.append(File(path, text, toml.parse(path, text)))
        elif path != root:
            raise GpuOpsError(
                "runtime.link_to_no_file",
                found="%s is a link to %s, which is no file" % (path, host.link(path)),
                wanted="files below %s: CRI-O does not start with anything else there" % directory,
                remedy="take the link away, or put the file there that it is for; nothing was changed",
            )
    places = ("%s/%s" % (place.rstrip("/"), MONITOR) for place in daemon.path if place.startswith("/"))
    return Configuration(root, directory, tuple(files), daemon,
                         next((place for place in places if host.is_executable(place)), ""))


def load_of(host: Host, service: Service) -> Configuration:
    """What the running daemon of a service reads."""
    daemon = started_as(service.arguments, environment(host, service.pid),
                        host.link("/proc/%d/cwd" % service.pid) or "/")
    told = daemon.absolute(daemon.option("config"))
    root = told if service.root == ROOT and told else service.root
    return load(host, root or ROOT, daemon.absolute(daemon.option("config-dir")) or DIRECTORY, daemon)


def low_level_runtimes(configuration: Configuration) -> Tuple[str, ...]:
    """Absolute paths of the low-level runtimes that CRI-O uses, its default first.

    NVIDIA's runtime has to call the same ones: those of CRI-O's packages are in no directory of PATH.
    """
    known = configuration.handlers()
    default = str(configuration.runtime().get("default_runtime", ""))
    told = [known[name].get("runtime_path", "") for name in (default, *DEFAULT_HANDLERS)
            if isinstance(known.get(name), dict)]
    paths = [configuration.daemon.absolute(path) for path in told]
    return tuple(dict.fromkeys(path for path in paths if os.path.basename(path) in DEFAULT_HANDLERS))


def _below(host: Host, directory: str) -> List[str]:
    """Every file below a directory, names of each level in lexical order. To CRI-O a link to one is no directory."""
    found: List[str] = []
    for name in host.list(directory):
        path = os.path.join(directory, name)
        if host.is_dir(path) and host.link(path) is None:
            found.extend(_below(host, path))
        else:
            found.append(path)
    return found
