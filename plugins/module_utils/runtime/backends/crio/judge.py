# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judge before a change: CRI-O itself reads a scratch copy of the configuration, before and after.

The change of the effective configuration has to be ours alone. The copy is never made beside the files: CRI-O reads
whatever lies in its directory. Root alone may read the scratch copy.
"""
from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional

from ....core.errors import GpuOpsError
from ....core.host import Host
from ... import toml
from ...policy import Policy
from ...toml import Path
from .configuration import Configuration
from .writer import without_ours

RUNTIMES: Path = ("crio", "runtime", "runtimes")
# CRI-O prints its built-in handlers only beside another one
PROBE = "gpuops-probe"
DEFAULT: Path = ("crio", "runtime", "default_runtime")


def judge(
    host: Host, binary: str, configuration: Configuration, changes: Mapping[str, Optional[str]], policy: Policy
) -> None:
    """Raises GpuOpsError when CRI-O cannot read the files, or when our change does more than to give or take handlers.

    changes: {path: text} of our file as it is to be, None for no file.
    """
    before = effective(host, binary, configuration)
    after = effective(host, binary, configuration.but(changes))
    ours = set(configuration.handlers()) - set(without_ours(configuration).handlers())
    ours |= set(policy.entries)
    foreign = [
        ".".join(path)
        for path in sorted(set(before) | set(after))
        if before.get(path) != after.get(path) and path[:4] not in [RUNTIMES + (name,) for name in ours]
        and not (path == DEFAULT and (policy.default_handler or before.get(path) in ours))
    ]
    if foreign:
        raise GpuOpsError(
            "runtime.crio_changes_more",
            found="our change would also change %s" % ", ".join(foreign[:5]),
            wanted="an effective configuration of CRI-O that differs by our handlers alone: %s" % ", ".join(
                sorted(ours)),
            remedy="nothing was changed; report this with the layout of the configuration (not its secrets)",
        )


def effective(host: Host, binary: str, configuration: Configuration) -> Dict[Path, Any]:
    """What `crio config` makes of the files: {path: value} of everything that is not CRI-O's own default."""
    with host.scratch() as scratch:
        root, directory = os.path.join(scratch, "crio.conf"), os.path.join(scratch, "crio.conf.d")
        os.mkdir(directory)
        _put(root, "")
        _put(os.path.join(directory, "~" + PROBE),
             toml.render_tables({RUNTIMES + (PROBE,): {"runtime_path": binary, "runtime_type": "oci"}}))
        for file in configuration.files:
            if file.path == configuration.root:
                _put(root, file.text)
            else:
                _put(os.path.join(directory, os.path.relpath(file.path, configuration.directory)), file.text)
        overrides = configuration.daemon.overrides()
        done = host.run([binary, "--config", root, "--config-dir", directory, *overrides, "config"],
                        check=False)
        told = done.stderr.replace(directory, configuration.directory).replace(root, configuration.root)
    if done.rc != 0:
        raise GpuOpsError(
            "runtime.crio_refuses",
            found="CRI-O refuses its configuration: %s" % _complaint(told),
            wanted="a configuration that CRI-O reads",
            remedy="correct it by hand until `crio config` succeeds; nothing was changed",
            rc=done.rc,
        )
    values = toml.flat(toml.parse("crio config", done.stdout))
    return {path: value for path, value in values.items() if path[:4] != RUNTIMES + (PROBE,)}


def built_in(host: Host, binary: str, configuration: Configuration) -> Dict[str, Any]:
    """CRI-O's own handlers, those left out that the files define."""
    known = without_ours(configuration)
    handlers: Dict[str, Any] = {}
    for path, value in effective(host, binary, known).items():
        if path[:3] == RUNTIMES and len(path) == 5 and path[3] not in known.handlers():
            handlers.setdefault(path[3], {})[path[4]] = value
    return handlers


def _complaint(told: str) -> str:
    """The last message of CRI-O's log."""
    lines: List[str] = [line for line in told.splitlines() if "level=fatal" in line or "level=error" in line]
    lines = lines or told.splitlines()
    return lines[-1].partition("msg=")[2] or lines[-1] if lines else "no output"


def _put(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as handle:
        handle.write(text)
