# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: how a CRI-O was started, as far as that decides over its files.

An option of the command line replaces what the files say, and a variable of the environment stands for an option that
is not given (internal/criocli/criocli.go of CRI-O).
"""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

# What systemd gives a service that sets no PATH of its own (systemd.exec(5))
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
# {option: (short name, variable)}
OPTIONS = {
    "config": ("c", "CONTAINER_CONFIG"),
    "config-dir": ("d", "CONTAINER_CONFIG_DIR"),
    "conmon": ("", "CONTAINER_CONMON"),
    "default-runtime": ("", "CONTAINER_DEFAULT_RUNTIME"),
    "runtimes": ("", "CONTAINER_RUNTIMES"),
}
# Parts of a value of --runtimes, of which the first three are always there
PARTS = ("name", "runtime_path", "runtime_root", "runtime_type", "privileged_without_host_devices",
         "runtime_config_path", "container_min_memory")


@dataclass(frozen=True)
class Daemon:
    """How the daemon was started, as far as that decides over its files.

    options:   {option: its values} of those that decide over our files.
    path:      directories in which it looks for programs.
    directory: its working directory, to which relative paths belong.
    """

    options: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    path: Tuple[str, ...] = tuple(DEFAULT_PATH.split(":"))
    directory: str = "/"

    def option(self, name: str) -> str:
        return self.options[name][-1] if name in self.options else ""

    def absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.directory, path)) if path else ""

    def overrides(self) -> List[str]:
        """Options to give to another call of the program, so that it sees what the daemon sees."""
        return ["--%s=%s" % (name, value) for name in ("conmon", "default-runtime", "runtimes")
                for value in self.options.get(name, ())]

    def handlers(self) -> Dict[str, Dict[str, Any]]:
        """Handlers of the command line, which replace those of the files."""
        values = self.options.get("runtimes", ())
        # CRI-O splits a single value at its commas
        told = values[0].split(",") if len(values) == 1 else values
        entries = [dict(zip(PARTS, (part.strip() for part in value.split(":")))) for value in told]
        return {entry.pop("name"): dict(entry) for entry in entries}


def started_as(argv: Sequence[str], variables: Mapping[str, str], directory: str) -> Daemon:
    """words: its command line; variables: its environment."""
    found: Dict[str, List[str]] = {}
    names = {name: name for name in OPTIONS}
    names.update({short: name for name, (short, _variable) in OPTIONS.items() if short})
    waiting = ""
    for word in argv[1:]:
        if waiting:
            found.setdefault(waiting, []).append(word)
            waiting = ""
        elif word.startswith("-"):
            name, given, value = word.lstrip("-").partition("=")
            if given and name in names:
                found.setdefault(names[name], []).append(value)
            else:
                waiting = names.get(name, "")
    for name, (_short, variable) in OPTIONS.items():
        if name not in found and variables.get(variable):
            found[name] = [variables[variable]]
    path = variables.get("PATH") or DEFAULT_PATH
    return Daemon({name: tuple(values) for name, values in found.items()}, tuple(path.split(":")), directory)
