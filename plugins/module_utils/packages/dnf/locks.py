# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Versions that stay: the list of dnf's plugin versionlock, and the state of module streams. Pure.

A line of the list leaves one version of a package to choose from (dnf-versionlock(8)); those of others stay where and
as they are, so ours stand in a block of their own, for each capability one.
"""
from __future__ import annotations

import fnmatch
import re
from typing import Dict, List, Mapping, Optional, Tuple

LIST = "/etc/dnf/plugins/versionlock.list"
CONFIGURATION = "/etc/dnf/plugins/versionlock.conf"
MODULES = "/etc/dnf/modules.d"
_BEGIN, _END = "# gpuops.nvidia %s: begin", "# gpuops.nvidia %s: end"


def text(capability: str, versions: Mapping[str, str], there: Optional[str]) -> Optional[str]:
    """The list with the block of a capability; None where nothing would be left of a file that was not there.

    versions: {package: version}; {} takes the block away, and leaves what others wrote to the byte.
    """
    lines = [pattern(name, version) for name, version in sorted(versions.items())]
    ours = "\n".join([_BEGIN % capability, *lines, _END % capability]) + "\n" if lines else None
    return with_block(capability, ours, there)


def pattern(name: str, version: str) -> str:
    """'nvidia-driver-cuda-3:580.178.04-1.el9.*', as `dnf versionlock add` writes it."""
    bare, dot, arch = name.rpartition(".")
    if dot and re.match(r"^i[3-6]86$", arch):
        return "%s-%s.%s" % (bare, full(version), arch)
    return "%s-%s.*" % (name, full(version))


def full(version: str) -> str:
    """With its epoch, which is left out elsewhere where it is 0."""
    return version if ":" in version else "0:" + version


def of_others(there: Optional[str]) -> List[str]:
    """Lines that are in no block of ours."""
    rest = re.sub(r"(?ms)^%s\n.*?^%s(\n|\Z)" % (_BEGIN % r"\S+", _END % r"\S+"), "", there or "")
    return [line.strip() for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def holds(lines: List[str], name: str, version: str) -> bool:
    """Whether a line is about a package: its name, alone or with a version of it."""
    whole = pattern(name, version)[:-2]
    forms = (name, name + ".*", whole, whole.replace(full(version), version.split(":")[-1]))
    patterns = [line.lstrip("!") for line in lines]
    return any(fnmatch.fnmatchcase(form, each) or fnmatch.fnmatchcase(form + ".*", each)
               or fnmatch.fnmatchcase(name, _without_version(each)) for each in patterns for form in forms)


def _without_version(line: str) -> str:
    """The name in a line of 'name-[epoch:]version-release[.arch]'; the line where it has no version."""
    parts = line.rsplit("-", 2)
    return parts[0] if len(parts) == 3 and re.match(r"^(\d+:)?[\d*]", parts[1]) else line


def stream_files(streams: Mapping[str, str]) -> Dict[str, str]:
    """{path: text} after which {module: stream} are enabled, as `dnf module enable` leaves them (dnf.modularity(7))."""
    return {"%s/%s.module" % (MODULES, module): "[%s]\nname=%s\nstream=%s\nprofiles=\nstate=enabled\n" % (
        module, module, stream) for module, stream in sorted(streams.items())}


def streams_of(files: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """{module: stream} that such files enable."""
    found = {}
    for path, content in files.items():
        if not path.startswith(MODULES + "/") or content is None:
            continue
        options = dict(re.findall(r"(?m)^(\w+)=(.*)$", content))
        if options.get("state") == "enabled" and options.get("stream"):
            found[options["name"]] = options["stream"]
    return found


def modules_of(files: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """{module: stream} of such files, '' of a module of which none enables any."""
    return {**{path[len(MODULES) + 1:-len(".module")]: "" for path in files if path.startswith(MODULES + "/")},
            **streams_of(files)}


def block(capability: str, there: Optional[str]) -> Optional[str]:
    """Our block of the list, None where there is none."""
    before, after = _around(capability, there or "")
    return (there or "")[len(before):len(there or "") - len(after)] or None


def with_block(capability: str, ours: Optional[str], there: Optional[str]) -> Optional[str]:
    """The list with this block in place of ours; None takes ours away."""
    before, after = _around(capability, there or "")
    whole = before + (ours or "") + after
    return whole if whole or there is not None else None


def _around(capability: str, there: str) -> Tuple[str, str]:
    """What stands before our block and behind it. A new one comes first, so that no line of others is touched."""
    found = re.search(r"(?ms)^%s\n.*?^%s(\n|\Z)" % (
        re.escape(_BEGIN % capability), re.escape(_END % capability)), there)
    return (there[:found.start()], there[found.end():]) if found else ("", there)
