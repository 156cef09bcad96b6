# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether CRI-O starts with its files, as far as `crio config` does not tell.

That command reads and merges; only the daemon looks for the programs (RuntimeConfig.Validate of pkg/config): for the
monitor of every handler of conmon that is left, and for the program of the default handler. Of other handlers it drops
those whose program is not there.
"""
from __future__ import annotations

from typing import Any, Container, Dict

from ....core.errors import GpuOpsError
from ....core.host import Host
from .configuration import Configuration
from .writer import OCI


def check(host: Host, configuration: Configuration, waiting: Container[str] = ()) -> None:
    """Raises GpuOpsError when it does not. waiting: handlers whose program is still to come."""
    default = configuration.runtime().get("default_runtime")
    for name, entry in sorted(configuration.handlers().items()):
        fault = ""
        if isinstance(entry, dict):
            there = has_program(host, configuration, name, entry)
            if there or name in waiting:
                fault = _monitor_fault(host, configuration, entry)
            elif name == default:
                fault = "a program that is not there, and is the default"
        if fault:
            raise GpuOpsError(
                "runtime.crio_would_not_start",
                found="CRI-O would not start again: %s has the handler '%s' with %s" % (
                    configuration.source_of(name), name, fault),
                wanted="files with which CRI-O starts",
                remedy="correct the handler, or take it out; nothing was changed, and CRI-O was left alone",
            )


def has_program(host: Host, configuration: Configuration, name: str, entry: Dict[str, Any]) -> bool:
    """Whether CRI-O keeps the handler: one without a path is looked up in PATH by its own name."""
    if entry.get("inherit_default_runtime"):
        return True
    told = str(entry.get("runtime_path") or "")
    if told:
        return host.stat(configuration.daemon.absolute(told)) is not None
    return any(host.is_executable("%s/%s" % (directory.rstrip("/"), name)) for directory in configuration.daemon.path)


def _monitor_fault(host: Host, configuration: Configuration, entry: Dict[str, Any]) -> str:
    if entry.get("runtime_type", "") not in OCI:
        return ""
    told = configuration.monitor_of_all() or str(entry.get("monitor_path") or "")
    if told and host.stat(configuration.daemon.absolute(told)) is None:
        return "the monitor %s, which is not there" % told
    if not told and not configuration.monitor:
        return "no monitor_path, although conmon is in no directory of its PATH"
    return ""
