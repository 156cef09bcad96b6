# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Versions that stay: the list of dnf's plugin versionlock, and the state of module streams. Pure.

A line of the list leaves one version of a package to choose from (dnf-versionlock(8)); those of others stay where and
as they are. The plugin writes the list anew when somebody takes a line away, without comments (versionlock.py,
'delete'). What tells ours from those of others is therefore in each: an architecture that is every one, in a form that
nobody else writes.
"""
from __future__ import annotations

import fnmatch
import re
from typing import Dict, List, Mapping, Optional, Tuple

LIST = "/etc/dnf/plugins/versionlock.list"
CONFIGURATION = "/etc/dnf/plugins/versionlock.conf"
MODULES = "/etc/dnf/modules.d"
_COMMENT = "# gpuops.nvidia %s"
# No architecture begins with a capital
_MARK = "[!%s]"
_MARKED = re.compile(r"\.\[i?![A-Z_]+\](?:\*|\d86)$")
_SECOND = re.compile(r"^i([3-6]86)$")


def text(capability: str, versions: Mapping[str, str], there: Optional[str]) -> Optional[str]:
    """The list with the lines of a capability; None where nothing would be left of a file that was not there.

    versions: {package: version}; {} takes them away, and leaves what others wrote to the byte. What is there already
    stays as it is, whoever has written it anew.
    """
    lines = [pattern(capability, name, version) for name, version in sorted(versions.items())]
    return with_block(capability, "\n".join([_COMMENT % capability, *lines]) + "\n" if lines else None, there)


def pattern(capability: str, name: str, version: str) -> str:
    """'nvidia-driver-cuda-3:580.178.04-1.el9.[!DRIVER]*', and 'nvidia-driver-libs-3:580.178.04-1.el9.[i!DRIVER]686'."""
    bare, arch = _parts(name)
    mark = _MARK % capability.upper()
    return "%s-%s.%s" % (bare, full(version), "[i%s%s" % (mark[1:], arch[1:]) if arch else mark + "*")


def _parts(name: str) -> Tuple[str, str]:
    """(name, architecture) of what is not of the system's own, which has none."""
    bare, dot, arch = name.rpartition(".")
    return (bare, arch) if dot and _SECOND.match(arch) else (name, "")


def full(version: str) -> str:
    """With its epoch, which is left out elsewhere where it is 0."""
    return version if ":" in version else "0:" + version


def of_others(there: Optional[str]) -> List[str]:
    """Lines that are not ours."""
    lines = (line.strip() for line in (there or "").splitlines())
    return [line for line in lines if line and not line.startswith("#") and not _MARKED.search(line)]


def holds(lines: List[str], name: str, version: str) -> bool:
    """Whether a line is about a package: its name, alone or with a version of it."""
    bare, arch = _parts(name)
    named = (bare, *("%s-%s" % (bare, each) for each in (full(version), version.split(":")[-1])))
    forms = (*named, *("%s.%s" % (form, arch or "*") for form in named))
    patterns = [line.lstrip("!") for line in lines]
    return any(fnmatch.fnmatchcase(form, each) or fnmatch.fnmatchcase(bare, _without_version(each))
               for each in patterns for form in forms)


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
    """Our lines as they stand in a list, None where there are none."""
    return "".join(line for line in (there or "").splitlines(True) if _is_ours(capability, line)) or None


def with_block(capability: str, ours: Optional[str], there: Optional[str]) -> Optional[str]:
    """The list with these lines in place of ours; None takes ours away. They come first, so that no line of others is
    touched."""
    if _patterns(block(capability, there)) == _patterns(ours):
        return there
    rest = "".join(line for line in (there or "").splitlines(True) if not _is_ours(capability, line))
    whole = (ours or "") + rest
    return whole if whole or there is not None else None


def _patterns(lines: Optional[str]) -> List[str]:
    return sorted(line for line in (lines or "").splitlines() if not line.startswith("#"))


def _is_ours(capability: str, line: str) -> bool:
    mark = (_MARK % capability.upper())[1:]
    return line.rstrip() == _COMMENT % capability or re.search(
        r"\.\[i?%s(?:\*|\d86)\s*$" % re.escape(mark), line) is not None
