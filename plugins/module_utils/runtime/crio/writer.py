# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the one file that gives CRI-O a handler for GPUs, and what stands against it.

A file of crio.conf.d replaces single values and whole handlers, so nothing else has to be touched, and removing the
file brings back what was there. CRI-O injects CDI devices without being told to.
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .. import toml
from ..policy import RuntimePolicy
from .configuration import FOLDER, Configuration

DROP_IN_NAME = "99-gpuops-nvidia.conf"
DROP_IN = "%s/%s" % (FOLDER, DROP_IN_NAME)
HEADER = "# Managed by gpuops.nvidia: the handler for NVIDIA GPUs.\n"
# What a handler takes over from the one whose containers it starts; its program and type are NVIDIA's
INHERITED = ("runtime_root", "monitor_path", "monitor_cgroup", "monitor_env", "monitor_exec_cgroup",
             "allowed_annotations", "privileged_without_host_devices", "container_min_memory", "no_sync_log")
# Words of an environment that a plan must not show, so our file does not repeat them
SECRET = re.compile(r"(?i)^[^=]*(password|token|secret|key)|://[^/\s]*@")
RUNTIMES: toml.Path = ("crio", "runtime", "runtimes")


def drop_in_path(configuration: Configuration) -> str:
    return "%s/%s" % (configuration.folder, DROP_IN_NAME)


def without_ours(configuration: Configuration) -> Configuration:
    """The configuration as it would be without our file."""
    return configuration.but({drop_in_path(configuration): None})


def wanted_text(
    configuration: Configuration, policy: RuntimePolicy, built_in: Mapping[str, Any]
) -> Optional[str]:
    """Text of our file, None when the other files say all of it already. built_in: CRI-O's own handlers."""
    base = without_ours(configuration)
    known = base.handlers()
    tables: Dict[toml.Path, Dict[str, Any]] = {}
    if policy.default_handler and base.runtime().get("default_runtime") != policy.handler:
        tables[("crio", "runtime")] = {"default_runtime": policy.handler}
    for name, program in policy.entries.items():
        if name not in known or difference_from(known[name], program):
            tables[RUNTIMES + (name,)] = entry({**built_in, **known}, program)
    return HEADER + "\n" + toml.render_tables(tables) if tables else None


def entry(known: Mapping[str, Any], program: str) -> Dict[str, Any]:
    """A handler like runc, else like crun, whatever the default handler is: that one may be a virtual machine's."""
    source = next(iter(_sources(known)), {})
    values: Dict[str, Any] = {"runtime_path": program, "runtime_type": "oci"}
    # An empty value is CRI-O's own way to say that it is not set
    values.update({key: source[key] for key in INHERITED if source.get(key)})
    if "monitor_env" in values:
        values["monitor_env"] = [word for word in values["monitor_env"] if not SECRET.search(word)]
    return values


def has_source(configuration: Configuration) -> bool:
    """Whether a file defines a handler to take over from."""
    return bool(_sources(configuration.handlers()))


def difference_from(found: Any, program: str) -> str:
    """How a handler that somebody else defined differs from the wanted one, '' if it does not."""
    if not isinstance(found, dict):
        return "no table"
    if found.get("inherit_default_runtime"):
        return "inherit_default_runtime = true, which runs the default handler's program"
    if found.get("runtime_path") != program:
        return "runtime_path = %s" % toml.render_value(found.get("runtime_path", ""))
    if found.get("runtime_type", "") not in ("", "oci"):
        return "runtime_type = %s" % toml.render_value(found["runtime_type"])
    return ""


def conflict(configuration: Configuration, policy: RuntimePolicy) -> Tuple[str, str]:
    """(file, what it says) of somebody else's value that stands against ours, ('', '') if there is none.

    Ours replaces a differing handler only where that may be taken over and is read before ours.
    """
    base = without_ours(configuration)
    known = base.handlers()
    for name, program in policy.entries.items():
        difference = difference_from(known[name], program) if name in known else ""
        source = base.source_of(name)
        if difference and not (policy.adopt and not _is_later(configuration, source)):
            return source, "the handler '%s' with %s" % (name, difference)
    source = base.source_of_default()
    default = base.runtime().get("default_runtime")
    if policy.default_handler and default != policy.handler and source and _is_later(configuration, source):
        return source, "default_runtime = %s, and is read after %s" % (toml.render_value(default), DROP_IN_NAME)
    return "", ""


def _sources(known: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    found = [known[name] for name in ("runc", "crun") if isinstance(known.get(name), dict)]
    return [each for each in found if each.get("runtime_type") != "vm"]


def _is_later(configuration: Configuration, path: str) -> bool:
    """Whether CRI-O reads a file after ours, so that it wins."""
    return path != configuration.root and path.split("/") > drop_in_path(configuration).split("/")
