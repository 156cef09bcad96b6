# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the one file that gives CRI-O a handler for GPUs, and what stands against it.

A file of crio.conf.d replaces single values and whole handlers, so nothing else has to be touched, and removing the
file brings back what was there. CRI-O injects CDI devices without being told to.
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ... import toml
from ...model import HEADER
from ...policy import Policy
from .configuration import COMMAND_LINE, DIRECTORY, Configuration

DROP_IN_NAME = "99-gpuops-nvidia.conf"
DROP_IN = "%s/%s" % (DIRECTORY, DROP_IN_NAME)
# Read after leftovers such as 99-nvidia.toml; only where an entry is taken over (adopt) that would win otherwise
LATE_NAME = "zzz-gpuops-nvidia.conf"
NAMES = (DROP_IN_NAME, LATE_NAME)
# What a handler takes over from the one whose containers it starts; its program and type are NVIDIA's
INHERITED = ("runtime_root", "monitor_cgroup", "monitor_env", "monitor_exec_cgroup", "allowed_annotations",
             "privileged_without_host_devices", "container_min_memory", "no_sync_log")
# Likewise, a table of its own
ANNOTATIONS = "default_annotations"
# Words of an environment that a plan must not show, so our file does not repeat them
SECRET = re.compile(r"(?i)^[^=]*(password|token|secret|key)|://[^/\s]*@")
RUNTIMES: toml.Path = ("crio", "runtime", "runtimes")
# What a handler of conmon has for a type
OCI = ("", "oci")


def our_paths(configuration: Configuration) -> Tuple[str, ...]:
    return tuple("%s/%s" % (configuration.directory, name) for name in NAMES)


def without_ours(configuration: Configuration) -> Configuration:
    """The configuration as it would be without our file."""
    return configuration.but(dict.fromkeys(our_paths(configuration)))


def wanted(
    configuration: Configuration, policy: Policy, built_in: Mapping[str, Any]
) -> Dict[str, Optional[str]]:
    """{path: text} of our file under each of its names. built_in: CRI-O's own handlers."""
    paths = our_paths(configuration)
    texts: Dict[str, Optional[str]] = dict.fromkeys(paths)
    if policy.present:
        base = without_ours(configuration)
        against = _against(base, policy)
        place = next((path for path in paths if not any(_is_later(value.source, path) for value in against)),
                     paths[-1])
        texts[place] = wanted_text(configuration, policy, built_in)
    return texts


def wanted_text(
    configuration: Configuration, policy: Policy, built_in: Mapping[str, Any]
) -> Optional[str]:
    """Text of our file, None when the other files say all of it already."""
    base = without_ours(configuration)
    known = base.handlers()
    tables: Dict[toml.Path, Dict[str, Any]] = {}
    if policy.default_handler and base.runtime().get("default_runtime") != policy.handler:
        tables[("crio", "runtime")] = {"default_runtime": policy.handler}
    for name, program in policy.entries.items():
        if name not in known or difference_from(known[name], program, base):
            values = entry({**built_in, **known}, program, base)
            annotations = values.pop(ANNOTATIONS, None)
            tables[RUNTIMES + (name,)] = values
            if annotations:
                tables[RUNTIMES + (name, ANNOTATIONS)] = annotations
    return HEADER + "\n" + toml.render_tables(tables) if tables else None


def entry(known: Mapping[str, Any], program: str, base: Configuration) -> Dict[str, Any]:
    """A handler like runc, else like crun, whatever the default handler is: that one may be a virtual machine's."""
    source = next(iter(_sources(known)), {})
    values: Dict[str, Any] = {"runtime_path": program, "runtime_type": "oci"}
    monitor = monitor_of(known, base)
    if monitor:
        values["monitor_path"] = monitor
    # An empty value is CRI-O's own way to say that it is not set
    values.update({key: source[key] for key in (*INHERITED, ANNOTATIONS) if source.get(key)})
    if isinstance(values.get("monitor_env"), list):
        values["monitor_env"] = [word for word in values["monitor_env"] if not SECRET.search(word)]
    return values


def monitor_of(known: Mapping[str, Any], base: Configuration) -> str:
    """The monitor's absolute path as another handler names it; '' leaves it to CRI-O."""
    named = [str(each["monitor_path"]) for each in (*_sources(known), *known.values())
             if isinstance(each, dict) and each.get("runtime_type", "") in OCI and each.get("monitor_path")]
    if not named:
        return ""
    # A name without a directory is one that CRI-O itself looks up in PATH
    return base.monitor if "/" not in named[0] else base.daemon.absolute(named[0])


def finds_monitor(base: Configuration) -> bool:
    """Whether CRI-O finds a monitor for a handler that names none; else it does not start with such a handler."""
    return bool(base.monitor_of_all() or base.monitor)


def has_source(configuration: Configuration) -> bool:
    """Whether a file defines a handler to take over from."""
    return bool(_sources(configuration.handlers()))


def difference_from(found: Any, program: str, base: Configuration) -> str:
    """How a handler that somebody else defined differs from the wanted one, '' if it does not."""
    if not isinstance(found, dict):
        return "no table"
    if found.get("inherit_default_runtime"):
        return "inherit_default_runtime = true, which runs the default handler's program"
    if found.get("runtime_path") != program:
        return "runtime_path = %s" % toml.render_value(found.get("runtime_path", ""))
    if found.get("runtime_type", "") not in OCI:
        return "runtime_type = %s" % toml.render_value(found["runtime_type"])
    if not found.get("monitor_path") and not finds_monitor(base):
        return "no monitor_path, although conmon is in no directory of CRI-O's PATH: it would not start again"
    return ""


def conflict(configuration: Configuration, policy: Policy) -> Tuple[str, str]:
    """(source, what it says) of somebody else's value that stands against ours, ('', '') if there is none.

    Ours replaces a differing value where that may be taken over and is not said even later. The default is taken over
    from files that are read before ours in any case: that is what 'default_handler' asks for.
    """
    base = without_ours(configuration)
    ours = our_paths(configuration)[-1 if policy.adopt else 0]
    for value in _against(base, policy):
        if _is_later(value.source, ours) or not (policy.adopt or value.is_default):
            return value.source, value.told
    return "", ""


class Value(NamedTuple):
    """What somebody else says otherwise than it is wanted, and where."""

    source: str
    told: str
    is_default: bool


def _against(base: Configuration, policy: Policy) -> List[Value]:
    known = base.handlers()
    found = []
    for name, program in policy.entries.items():
        difference = difference_from(known[name], program, base) if name in known else ""
        if difference:
            found.append(Value(base.source_of(name), "the handler '%s' with %s" % (name, difference), False))
    source, default = base.source_of_default(), base.runtime().get("default_runtime")
    if policy.default_handler and source and default != policy.handler:
        found.append(Value(source, "default_runtime = %s" % toml.render_value(default), True))
    return found


def _sources(known: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    found = [known[name] for name in ("runc", "crun") if isinstance(known.get(name), dict)]
    return [each for each in found if each.get("runtime_type", "") in OCI]


def _is_later(source: str, ours: str) -> bool:
    """Whether CRI-O reads a source after our file, so that it wins."""
    return source == COMMAND_LINE or (source.startswith(ours.rpartition("/")[0] + "/")
                                      and source.split("/") > ours.split("/"))
