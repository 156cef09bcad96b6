# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What Kubernetes distributions make of containerd: they generate its root file, so ours is another one.

k3s, RKE2  config.toml is rendered at each start of the service, with the handlers whose programs are found (k3s
           documentation, 'Alternative Container Runtime Support'). Files in config-v3.toml.d or config.toml.d join in
           where the rendered file imports them; before, a template beside it does.
k0s        /etc/k0s/containerd.toml is k0s' as long as its first line says so. Files in /etc/k0s/containerd.d join in;
           k0s watches them and restarts containerd itself (k0s documentation, 'Runtime').
MicroK8s   containerd.toml is rendered from containerd-template.toml at each start of the service.
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from .. import toml
from ..model import Edit, Service
from ..policy import RuntimePolicy
from .configuration import CRI2, Configuration, handlers, is_imported
from .writer import apply_tables, difference_from, wanted_tables

FILE = "99-gpuops-nvidia"
HEADER = "# Managed by gpuops.nvidia: the handler for NVIDIA GPUs.\n"
K0S_FOLDER = "/etc/k0s/containerd.d"
K0S_MAGIC = "# k0s_managed=true"
BASE = '{{ template "base" . }}\n'
# Handlers that k3s and RKE2 define themselves when they find the program (pkg/agent/containerd/runtimes.go of k3s)
DETECTED = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-experimental": "nvidia-container-runtime-experimental",
}
SEARCHED = ("/usr/local/nvidia/toolkit", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
OPENING = ("if", "range", "with", "define", "block")
ACTION = re.compile(r"\{\{-?\s*(?:/\*.*?\*/|(\w+)?.*?)\s*-?\}\}", re.DOTALL)


@dataclass(frozen=True)
class Change:
    """
    edits:   files to change.
    preview: files as the distribution will have rendered them then: what containerd judges in their place.
    pending: whether the distribution itself would bring a handler at its next start.
    """

    edits: Tuple[Edit, ...] = ()
    preview: Tuple[Edit, ...] = ()
    pending: bool = False


def change(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Change:
    """The files that bring what is wanted, or take ours away. Raises GpuOpsError where that is not safe."""
    if service.distribution in ("k3s", "rke2"):
        return _rancher(host, service, configuration, policy)
    if service.distribution == "k0s":
        return _k0s(host, service, configuration, policy)
    return _microk8s(host, service, configuration, policy)


def edited(text: Optional[str], block: str) -> Optional[str]:
    """A Go template with our block at its end, or without any; None when nothing but ours was in it."""
    base = toml.without_ours(text or "")
    if block:
        return toml.with_block(base or BASE, block)
    return None if base == BASE else base


def unbalanced(text: str) -> Optional[Tuple[int, str]]:
    """(line, what is wrong) of a Go template behind whose end nothing can be added."""
    open_at: List[int] = []
    position = 0
    for match in ACTION.finditer(text):
        stray = text.find("{{", position, match.start())
        if stray >= 0:
            return _line(text, stray), "'{{' is not closed"
        position = match.end()
        if match.group(1) in OPENING:
            open_at.append(match.start())
        elif match.group(1) == "end":
            if not open_at:
                return _line(text, match.start()), "'end' ends nothing"
            open_at.pop()
    stray = text.find("{{", position)
    if stray >= 0:
        return _line(text, stray), "'{{' is not closed"
    return (_line(text, open_at[-1]), "it has no 'end'") if open_at else None


def _rancher(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Change:
    folder = os.path.dirname(service.root)
    third = configuration.version >= 3
    drop_in = "%s/%s.d/%s.toml" % (folder, "config-v3.toml" if third else "config.toml", FILE)
    template = "%s/%s.tmpl" % (folder, "config-v3.toml" if third else "config.toml")
    default = "/etc/rancher/%s/config.yaml.d/%s.yaml" % (service.distribution, FILE)
    base = _without(configuration, drop_in)
    missing, coming = _missing(host, base, policy)
    wanted = replace(policy, default_handler=False)
    text, tables = None, {}
    if missing and service.release >= (2, 0) and is_imported(base, drop_in):
        text = HEADER + "version = %d\n\n" % base.version + toml.render_tables(_tables(base, service.release, wanted))
    elif missing:
        # what is rendered before has a header for the plugin's own settings, and TOML takes no second one: handlers
        # are tables of their own, and NVIDIA's runtime injects CDI devices where containerd does not
        tables = _tables(base, service.release, replace(wanted, cdi=False))
    edits = [
        _file(host, drop_in, text, service.root),
        _template_edit(host, template, _guarded(tables)),
        _file(host, default, HEADER + "default-runtime: %s\n" % policy.handler
              if policy.present and policy.default_handler else None),
    ]
    preview = [edits[0]]
    if tables:
        root = configuration.files[0]
        after = toml.with_block(toml.without_ours(root.text), toml.render_tables(tables))
        preview.append(Edit(root.path, root.text, after, None, None))
    return _change(edits, preview, coming)


def _k0s(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Change:
    drop_in, release = "%s/%s.toml" % (K0S_FOLDER, FILE), service.release
    if [line for line in (host.read(service.root) or "").splitlines() if line][:1] != [K0S_MAGIC]:
        raise GpuOpsError(
            found="%s does not start with '%s': k0s leaves it alone, and %s with it"
                  % (service.root, K0S_MAGIC, K0S_FOLDER),
            wanted="a configuration that k0s manages",
            remedy="take the file away and restart k0s, or add the handler to it by hand",
        )
    _check_k0s_files(host, drop_in, release)
    ours = host.read(drop_in)
    base = _without(configuration, drop_in)
    cri = base.cri()
    if ours is not None:
        # up to 1.35 k0s has merged our file into one of its own, where nothing tells it apart
        _take_out(cri, toml.parse(drop_in, ours).get("plugins", {}).get(base.cri_id, {}))
    tables = wanted_tables(cri, base.cri_id, release, policy, False) if policy.present else {}
    version = 3 if release >= (2, 0) else 2
    text = HEADER + "version = %d\n\n" % version + toml.render_tables(tables) if tables else None
    edit = _file(host, drop_in, text)
    preview = edit
    if tables and release < (2, 0):
        merged = next(file for file in configuration.files if file.path == configuration.holder())
        known = handlers(base.cri())
        rest = {table: values for table, values in tables.items() if table[-1] not in known and table[-2] not in known}
        preview = Edit(merged.path, merged.text, apply_tables(merged.text, rest, merged.path), None, None)
    return _change([edit], [preview], False)


def _microk8s(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Change:
    template = os.path.join(os.path.dirname(service.root), "containerd-template.toml")
    text = host.read(template)
    if text is None:
        raise GpuOpsError("no %s" % template, "the template that MicroK8s renders containerd's configuration from",
                          "reinstall MicroK8s, or name the runtime with 'runtime'")
    base = _without(configuration, "")
    for name, binary in policy.entries.items() if policy.present else ():
        if name in handlers(base.cri()):
            _check_same(base, name, handlers(base.cri())[name], binary)
    tables = _tables(base, service.release, policy) if policy.present else {}
    after = apply_tables(text, tables, template)
    parameters = {"tables": [[list(table), dict(values)] for table, values in tables.items()]}
    edit = Edit(template, text, after, toml.our_lines(text) or None, toml.our_lines(after) or None, parameters)
    root = configuration.files[0]
    preview = Edit(root.path, root.text, apply_tables(root.text, tables, root.path), None, None)
    return _change([edit], [preview], False)


def _missing(host: Host, base: Configuration, policy: RuntimePolicy) -> Tuple[Dict[str, str], bool]:
    """(handlers that we have to bring, whether the distribution brings others at its next start)."""
    known = handlers(base.cri())
    missing: Dict[str, str] = {}
    coming = False
    for name, binary in policy.entries.items() if policy.present else ():
        if name in known:
            _check_same(base, name, known[name], binary)
        elif not _found(host, name):
            missing[name] = binary
        elif _found(host, name) == binary:
            coming = True
        else:
            raise GpuOpsError(
                found="the next start will define the handler '%s' with %s, which is found first" % (name, _found(
                    host, name)),
                wanted="BinaryName = %s" % binary,
                remedy="remove that program (it may be a leftover of the GPU Operator), or set handler_binary to it",
            )
    return missing, coming


def _check_same(base: Configuration, name: str, entry: Mapping[str, Any], binary: str) -> None:
    difference = difference_from(entry, binary)
    if difference:
        raise GpuOpsError(
            found="%s defines the handler '%s' with %s" % (base.source_of(name), name, difference),
            wanted="BinaryName = %s" % binary,
            remedy="the distribution, its template, the GPU Operator or 'microk8s enable nvidia' put it there: take "
                   "that out, or set handler_binary to its path",
        )


def _found(host: Host, name: str) -> str:
    """Program of a handler that k3s or RKE2 will find at its next start, '' if none."""
    program = DETECTED.get(name, "")
    paths = ["%s/%s" % (folder, program) for folder in SEARCHED] if program else []
    return next((path for path in paths if host.is_executable(path)), "")


def _tables(base: Configuration, release: Tuple[int, int], policy: RuntimePolicy) -> Dict[toml.Path, Dict[str, Any]]:
    return wanted_tables(base.cri(), base.cri_id, release, policy, False)


def _guarded(tables: Mapping[toml.Path, Mapping[str, Any]]) -> str:
    """Tables of handlers for a template, each left out when the program is found after all: twice is no TOML."""
    blocks: Dict[str, Dict[toml.Path, Mapping[str, Any]]] = {}
    for path, values in tables.items():
        blocks.setdefault(path[path.index("runtimes") + 1], {})[path] = values
    return "".join(
        '{{ if not (index .ExtraRuntimes "%s").BinaryName }}\n%s{{ end }}\n' % (name, toml.render_tables(each))
        for name, each in blocks.items())


def _template_edit(host: Host, path: str, block: str) -> Edit:
    text = host.read(path)
    if block and text is not None:
        _check_template(path, toml.without_ours(text), block)
    after = edited(text, block) if block or text is not None else None
    shown = [toml.our_lines(each) or None if each is not None else None for each in (text, after)]
    return Edit(path, text, after, shown[0], shown[1], {"block": block})


def _check_template(path: str, text: str, block: str) -> None:
    problem = unbalanced(text)
    for header in re.findall(r"(?m)^\[.*runtimes\..*\]$", block):
        name = header.rstrip("]").rpartition("runtimes.")[2].partition(".")[0]
        own = re.search(r"runtimes\.['\"]?%s['\"]?[.\]]" % re.escape(name), text)
        if own and problem is None:
            problem = _line(text, own.start()), "it defines the handler '%s' itself, under a condition" % name
    if problem:
        raise GpuOpsError(
            found="%s:%d: a Go template that cannot be extended: %s" % (path, *problem),
            wanted="a template that further lines can follow",
            remedy='start it with {{ template "base" . }} and add the handler there by hand; nothing was changed',
            file=path,
            line=problem[0],
        )


def _check_k0s_files(host: Host, ours: str, release: Tuple[int, int]) -> None:
    """From 1.36, with containerd 2.x, k0s does not start with a file of the old format (its pull request 7376)."""
    for path in host.glob(K0S_FOLDER + "/*.toml") if release >= (2, 0) else ():
        data = toml.parse(path, host.read(path) or "")
        if path != ours and (data.get("version", 3) != 3 or CRI2 in data.get("plugins", {})):
            raise GpuOpsError(
                found="%s is of format version 2, which k0s with containerd %d.%d refuses" % (path, *release),
                wanted="version = 3 and plugin sections of version 3",
                remedy="rewrite the file: k0s does not come up again with it",
            )


def _without(configuration: Configuration, drop_in: str) -> Configuration:
    changed: Dict[str, Optional[str]] = {file.path: toml.without_ours(file.text) for file in configuration.files}
    changed[drop_in] = None
    return configuration.but(changed)


def _take_out(data: Dict[str, Any], ours: Mapping[str, Any]) -> None:
    """Values of ours out of a table that they were merged into, and tables that are empty then."""
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _take_out(data[key], value)
        if data.get(key) == value or data.get(key) == {}:
            data.pop(key)


def _file(host: Host, path: str, text: Optional[str], like: str = "") -> Edit:
    before = host.read(path)
    return Edit(path, before, text, before, text, like=like)


def _change(edits: List[Edit], preview: List[Edit], pending: bool) -> Change:
    return Change(
        tuple(edit for edit in edits if edit.before != edit.after),
        tuple(edit for edit in preview if edit.before != edit.after),
        pending,
    )


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
