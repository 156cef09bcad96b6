# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judge before a change: containerd itself reads a scratch copy of the configuration, before and after.

The change of the effective configuration has to be ours alone. The scratch copy is a directory of root alone.
"""
from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ... import toml
from ...model import Edit
from ...policy import Policy
from .configuration import CRI2, CRI3, Configuration, handlers
from .writer import DROP_IN, without_ours

EMPTY: Tuple[Any, ...] = (None, "", False, 0, [], {})


def judge(host: Host, binary: str, configuration: Configuration, edits: Sequence[Edit], policy: Policy) -> None:
    """Raises GpuOpsError when containerd cannot read the configuration, or when the edits change more than they say."""
    before = effective(host, binary, configuration, {})
    _check_default(before, configuration.place_of_default() or "the configuration as it is")
    after = effective(host, binary, configuration, {edit.path: edit.after for edit in edits})
    ours = set(handlers(configuration.cri())) - set(handlers(without_ours(configuration).cri())) | set(policy.entries)
    _check_default(after, "the configuration with our change")
    foreign = [
        "%s: %s -> %s" % (".".join(path), _shown(path, old), _shown(path, new))
        for path, old, new in differences(before, after) if not _is_ours(path, old, policy, ours)
    ]
    if foreign:
        raise GpuOpsError(
            "runtime.containerd_changes_more",
            found="our change would also change %s" % "; ".join(foreign[:5]),
            wanted="an effective configuration of containerd that differs by %s alone" % ", ".join(policy.entries),
            remedy="nothing was changed; report this with the layout of the configuration (not its secrets)",
        )


def check_in_place(host: Host, binary: str, configuration: Configuration) -> None:
    """Raises GpuOpsError when containerd would not start with the files as they are."""
    _check_default(effective(host, binary, configuration, {}),
                   configuration.place_of_default() or "the configuration in place")


def effective(
    host: Host, binary: str, configuration: Configuration, changed: Mapping[str, Optional[str]]
) -> Dict[str, Any]:
    """What `containerd config dump` makes of the files, some of them with another text."""
    texts: Dict[str, Optional[str]] = {file.path: file.text for file in configuration.files}
    names = list(texts)
    texts.update(changed)
    names.extend(path for path in changed if path not in names and path != DROP_IN)
    if changed.get(DROP_IN) is not None and DROP_IN not in names:
        names.append(DROP_IN)
    present = [(name, texts[name]) for name in names if texts[name] is not None]
    if not present:
        # containerd without a file takes its built-in values; 1.x dumps them only with a file, if an empty one
        present = [("the built-in configuration", "version = 2\n")]
    return _dump(host, binary, [(name, text or "") for name, text in present], present[0][0])


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> List[Tuple[Tuple[str, ...], Any, Any]]:
    """(path, before, after) of every value that differs; a missing value equals an empty one."""
    old, new = toml.flat(before), toml.flat(after)
    return [
        (path, old.get(path), new.get(path))
        for path in sorted(set(old) | set(new))
        if old.get(path) != new.get(path) and not (old.get(path) in EMPTY and new.get(path) in EMPTY)
    ]


def _dump(host: Host, binary: str, files: Sequence[Tuple[str, str]], root: str) -> Dict[str, Any]:
    """The files flattened into one directory: the root imports copies of the others, in the order of their reading."""
    with host.scratch() as scratch:
        copies = [os.path.join(scratch, "%03d.toml" % number) for number in range(len(files))]
        for number, (_path, text) in enumerate(files):
            imports = copies[1:] if number == 0 else None
            _put(copies[number], _with_imports(text, imports))
        done = host.run([binary, "--config", copies[0], "config", "dump"], check=False)
        if done.rc != 0:
            told = done.stderr
            for number, (path, _text) in enumerate(files):
                told = told.replace(copies[number], path)
            raise GpuOpsError(
                "runtime.containerd_refuses",
                found="containerd refuses %s: %s" % (root, _complaint(told)),
                wanted="a configuration that containerd reads",
                remedy="correct the file by hand until `containerd --config %s config dump` succeeds; "
                       "nothing was changed" % root,
                rc=done.rc,
            )
        dumped = toml.parse("containerd config dump", done.stdout)
    dumped.pop("imports", None)
    return dumped


def _with_imports(text: str, imports: Optional[Sequence[str]]) -> str:
    """The text with other imports, on the line of the former ones where there is one: containerd tells lines too."""
    lines = text.split("\n")
    first = None
    for statement in reversed(toml.statements(text)):
        if not statement.table and statement.path == ("imports",):
            lines[statement.first:statement.last + 1] = [""] * (statement.last + 1 - statement.first)
            first = statement.first
    if imports is not None:
        if first is None:
            first = 0
            if lines[0].strip() and not lines[0].lstrip().startswith("#"):
                lines.insert(0, "")
        lines[first] = "imports = %s" % toml.render_value(list(imports))
    return "\n".join(lines)


def _check_default(dumped: Mapping[str, Any], what: str) -> None:
    """containerd 1.x ends well here and without CRI at its start when the default handler is not defined."""
    for cri_id in (CRI2, CRI3):
        section = dumped.get("plugins", {}).get(cri_id, {}).get("containerd", {})
        default = section.get("default_runtime_name")
        if default and default not in section.get("runtimes", {}):
            raise GpuOpsError(
                "runtime.default_undefined",
                found="%s names the default handler '%s' and defines only: %s"
                      % (what, default, ", ".join(sorted(section.get("runtimes", {}))) or "none"),
                wanted="a default handler that is defined: the CRI plugin does not start without",
                remedy="define the handler or correct `default_runtime_name`; nothing was changed",
            )


def _is_ours(path: Tuple[str, ...], old: Any, policy: Policy, ours: Set[str]) -> bool:
    """Whether a value is one that we set, or takes back."""
    if len(path) < 3 or path[0] != "plugins" or path[1] not in (CRI2, CRI3):
        return False
    inner = path[2:]
    return (
        inner[:2] == ("containerd", "runtimes") and inner[2] in ours
        or inner in (("enable_cdi",), ("cdi_spec_dirs",))
        or inner == ("containerd", "default_runtime_name") and (policy.default_handler or old in ours)
    )


def _shown(path: Tuple[str, ...], value: Any) -> str:
    """A value for a person; what belongs to a registry may be a secret."""
    if value is None:
        return "absent"
    return "(not shown)" if "registry" in path else str(value)


def _complaint(told: str) -> str:
    lines = [line for line in told.splitlines() if line.startswith("containerd: ")] or told.splitlines()
    return lines[-1] if lines else "no output"


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as handle:
        handle.write(text)
