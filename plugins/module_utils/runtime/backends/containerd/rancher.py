# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""k3s and RKE2: config.toml is rendered at each start of the service, with the handlers whose programs are found.

Files in config-v3.toml.d or config.toml.d join in where the rendered file imports them; before, a template beside it
does (k3s documentation, 'Configuring containerd' and 'Alternative Container Runtime Support'). Which handler is the
default is an option of the service.
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ....core.plan import digest
from ... import toml
from ...detection import option
from ...model import HEADER, Edit, Service, environment
from ...policy import Policy
from .change import (
    FILE,
    Change,
    change_of,
    check_read_last,
    drop_in_text,
    overrides,
    whole_file,
    without,
)
from .configuration import Configuration, handlers, is_imported
from .writer import Tables, apply_tables, differing, wanted_tables

BASE = '{{ template "base" . }}\n'
# A template of ours, told from one of the user's that says the same
OWN_BASE = HEADER + BASE
# Releases that know this template carry containerd 1.7 (v1.24.17, v1.25.13, v1.26.8, v1.27.5 and v1.28.1 of k3s)
BASE_SINCE = (1, 7)
# Handlers that k3s and RKE2 define themselves when they find the program, and where they look before their PATH
# (pkg/agent/containerd/runtimes.go and config_linux.go of k3s)
DETECTED = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-experimental": "nvidia-container-runtime-experimental",
}
BUILT_IN = "runc"
SEARCHED_FIRST = "/usr/local/nvidia/toolkit"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OPENING = ("if", "range", "with", "define", "block")
ACTION = re.compile(r"\{\{-?\s*(?:/\*.*?\*/|(\w+)?.*?)\s*-?\}\}", re.DOTALL)
USES_BASE = re.compile(r'\{\{-?\s*template\s+"base"')
# A template that defines the handlers whose programs are found, by itself or by the distribution's own
RENDERS_FOUND = re.compile(USES_BASE.pattern + r"|\.ExtraRuntimes")
DEFAULT_RUNTIME = re.compile(r"(?m)^[\"']?default-runtime[\"']?\s*:\s*[\"']?([^\"'\s#]+)")


@dataclass(frozen=True)
class Layout:
    """Where this service keeps what joins its rendered configuration."""

    drop_in: str
    template: str
    options: str

    @classmethod
    def of(cls, service: Service, version: int, argv: List[str]) -> Layout:
        stem = os.path.join(os.path.dirname(service.root), "config-v3.toml" if version >= 3 else "config.toml")
        options = option(argv, "--config", "-c") or "/etc/rancher/%s/config.yaml" % service.distribution
        return cls("%s.d/%s.toml" % (stem, FILE), stem + ".tmpl", options)

    @property
    def default(self) -> str:
        """Our file of options: those of <options>.d are read after it, by their names, and the last one counts."""
        return "%s.d/%s.yaml" % (self.options, FILE)


@dataclass(frozen=True)
class Beside:
    """What k3s or RKE2 renders the configuration from, and what it finds by itself.

    layout:  where what joins lies.
    ours:    {path: text} of the files that we may write, None where there is none.
    options: (path, text) of the service's own configuration files, in the order in which they are read.
    joining: {path: text} of the files in the directory of our drop-in.
    flag:    the default handler that the service's command line names, '' for none.
    found:   {handler: program} of those that the next start of the service finds and defines.
    """

    layout: Layout
    ours: Mapping[str, Optional[str]]
    options: Tuple[Tuple[str, str], ...]
    joining: Mapping[str, str]
    flag: str
    found: Mapping[str, str]

    def to_dict(self) -> Dict[str, Any]:
        return {
            "ours": {path: digest(text) for path, text in self.ours.items()},
            "options": [[path, digest(text)] for path, text in self.options],
            "joining": {path: digest(text) for path, text in self.joining.items()},
            "flag": self.flag, "found": dict(self.found),
        }


def read(host: Host, service: Service, configuration: Configuration) -> Beside:
    argv = _command_line(host, service)
    layout = Layout.of(service, configuration.version, argv)
    more = [path for suffix in ("yaml", "yml") for path in host.glob("%s.d/*.%s" % (layout.options, suffix))]
    ours = {path: host.read(path) for path in (layout.drop_in, layout.template, layout.default)}
    template = ours[layout.template]
    return Beside(
        layout=layout,
        ours=ours,
        options=tuple((path, host.read(path) or "") for path in (layout.options, *sorted(more))),
        joining={path: host.read(path) or "" for path in host.glob(os.path.dirname(layout.drop_in) + "/*.toml")},
        flag=option(argv, "--default-runtime"),
        found=found(host, service) if template is None or _renders_found(toml.without_ours(template)) else {},
    )


def change(service: Service, configuration: Configuration, beside: Beside, policy: Policy) -> Change:
    layout = beside.layout
    base = without(configuration, layout.drop_in)
    joins = service.release >= (2, 0) and is_imported(base, layout.drop_in)
    missing = _missing(base, beside, policy, joins)
    wanted = replace(policy, default_handler=False, handlers=tuple(missing.items()))
    tables = _handler_tables(base, service, replace(wanted, cdi=policy.cdi and joins), tuple(missing))
    if policy.adopt and joins:
        tables.update(overrides(handlers(base.cri()), base.cri_id, policy))
    tables = tables if policy.present else {}
    edits = [
        whole_file(layout.drop_in, beside.ours[layout.drop_in],
                   drop_in_text(base.version, tables) if joins else None, service.root),
        _template_edit(service, layout.template, beside.ours[layout.template], {} if joins else tables),
        whole_file(layout.default, beside.ours[layout.default], _default(service, beside, policy)),
    ]
    rendered = _rendered(configuration, {} if joins else tables, _default_then(base, edits[2], policy))
    return change_of(edits, [edits[0], rendered])


def brings(service: Service, configuration: Configuration, beside: Beside, policy: Policy) -> bool:
    """Whether the next start of the service defines a wanted handler itself, as it is wanted."""
    known = handlers(without(configuration, beside.layout.drop_in).cri())
    return policy.present and any(name not in known and beside.found.get(name) == binary
                                  for name, binary in policy.entries.items())


def found(host: Host, service: Service) -> Dict[str, str]:
    """{handler: program} of those that the next start of the service defines itself."""
    directories = (SEARCHED_FIRST, *environment(host, service.pid).get("PATH", PATH).split(":"))
    programs = {
        name: next((place for place in ("%s/%s" % (directory, program) for directory in directories if directory)
                    if host.is_executable(place)), "")
        for name, program in DETECTED.items()}
    return {name: program for name, program in programs.items() if program}


def edited(text: Optional[str], block: str) -> Optional[str]:
    """A Go template with our block at its end, or without any; None when nothing but ours was in it."""
    base = toml.without_ours(text or "")
    if block:
        return toml.with_block(base or OWN_BASE, block)
    return None if base == OWN_BASE else base


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


# Handlers


def _missing(base: Configuration, beside: Beside, policy: Policy, joins: bool) -> Dict[str, str]:
    """Handlers that we have to bring."""
    known = handlers(base.cri())
    adopts = policy.adopt and joins
    missing: Dict[str, str] = {}
    for name, binary in policy.entries.items() if policy.present else ():
        program = beside.found.get(name, "")
        difference = differing(known, policy).get(name, "")
        if difference and not adopts:
            raise GpuOpsError(
                "runtime.foreign_handler_rendered",
                found="%s defines the handler '%s' with %s" % (_place(base, beside, name), name, difference),
                wanted="BinaryName = %s" % binary,
                remedy="k3s and RKE2 define it for the program that they find first, such as a leftover of the GPU "
                       "Operator, or somebody's template or drop-in does: take that out, or set `handler_binary` to "
                       "its path" + (", or let `adopt` take it over" if joins else
                                     "; `adopt` needs a rendered file that imports drop-ins" if policy.adopt else ""),
                option="adopt" if joins else "handler_binary",
            )
        if difference:
            check_read_last(beside.joining, beside.layout.drop_in, name, base.cri_id)
        if name in known:
            continue
        if program and program != binary and not adopts:
            raise GpuOpsError(
                "runtime.found_first",
                found="the next start will define the handler '%s' with %s, which is found first" % (name, program),
                wanted="BinaryName = %s" % binary,
                remedy="remove that program (it may be a leftover of the GPU Operator), or set `handler_binary` to it",
                option="handler_binary",
            )
        if program != binary:
            missing[name] = binary
    return missing


def _handler_tables(
    base: Configuration, service: Service, policy: Policy, names: Tuple[str, ...]
) -> Tables:
    """Tables of the handlers that we bring, and with policy.cdi the settings that CDI needs.

    A template has a header for these settings already, and TOML takes no second one: there handlers are all that goes
    in, and NVIDIA's runtime injects CDI devices where containerd does not.
    """
    tables = wanted_tables(base.cri(), base.cri_id, service.release, policy, False)
    return {table: values for table, values in tables.items()
            if "runtimes" not in table or table[table.index("runtimes") + 1] in names}


def _place(base: Configuration, beside: Beside, name: str) -> str:
    """File, with its line, where somebody has defined a handler: a template is where a person can change it."""
    template = beside.layout.template
    line = _own_line(beside.ours[template] or "", name)
    return "%s:%d" % (template, line) if line else base.place_of(name)


# The template


def _template_edit(service: Service, path: str, text: Optional[str], tables: Tables) -> Edit:
    base = BASE if text is None else toml.without_ours(text)
    block = _guarded(tables) if _renders_found(base) else toml.render_tables(tables)
    if block:
        _check_template(service, path, base, tables)
    after = edited(text, block) if block or text is not None else None
    shown = [toml.our_lines(each) or None if each is not None else None for each in (text, after)]
    return Edit(path, text, after, shown[0], shown[1], {"block": block})


def _renders_found(template: str) -> bool:
    return RENDERS_FOUND.search(template) is not None


def _check_template(service: Service, path: str, text: str, tables: Tables) -> None:
    problem = unbalanced(text)
    for name in sorted({table[table.index("runtimes") + 1] for table in tables}):
        line = _own_line(text, name)
        if line and problem is None:
            problem = line, "it defines the handler '%s' itself, under a condition" % name
    if problem is None and service.release < BASE_SINCE and USES_BASE.search(text):
        problem = 1, "k3s with containerd %d.%d knows no template \"base\"" % service.release
    if problem:
        raise GpuOpsError(
            "runtime.template_not_extensible",
            found="%s:%d: a Go template that cannot be extended: %s" % (path, *problem),
            wanted="a template that further lines can follow",
            remedy='start it with `{{ template "base" . }}` and add the handler there by hand; nothing was changed',
            file=path,
            line=problem[0],
        )


def _own_line(text: str, name: str) -> int:
    """Line of a template that defines a handler, 0 when none does."""
    own = re.search(r"runtimes\s*\.\s*['\"]?%s['\"]?\s*[.\]]" % re.escape(name), toml.without_ours(text))
    return _line(text, own.start()) if own else 0


def _guarded(tables: Tables) -> str:
    """Tables of handlers for a template, each left out when the program is found after all: twice is no TOML."""
    blocks: Dict[str, Dict[toml.Path, Mapping[str, Any]]] = {}
    for path, values in tables.items():
        blocks.setdefault(path[path.index("runtimes") + 1], {})[path] = values
    return "".join(
        '{{ if not (index .ExtraRuntimes "%s").BinaryName }}\n%s{{ end }}\n' % (name, toml.render_tables(each))
        for name, each in blocks.items())


def _rendered(configuration: Configuration, tables: Tables, default: str) -> Edit:
    """The rendered file as it will be: what the template adds comes behind all else, as one block."""
    root = configuration.files[0]
    after = toml.without_ours(root.text)
    if default:
        section = ("plugins", configuration.cri_id, "containerd")
        after = apply_tables(after, {section: {"default_runtime_name": default}}, root.path)
    if tables:
        after = toml.with_block(after, toml.render_tables(tables))
    return Edit(root.path, root.text, after, None, None)


# The default


def _default(service: Service, beside: Beside, policy: Policy) -> Optional[str]:
    """Text of our file of options, None where none is wanted or others name the handler the default already."""
    if not policy.present or not policy.default_handler:
        return None
    ours = beside.layout.default
    named: List[Tuple[str, str]] = []
    for path, text in beside.options:
        named.extend(("%s:%d" % (path, _line(text, match.start(1))), match.group(1))
                     for match in DEFAULT_RUNTIME.finditer(text) if path != ours)
    later = [each for each in named if each[0].rpartition(":")[0] > ours and each[1] != policy.handler]
    if beside.flag and beside.flag != policy.handler:
        later = [("the command line of %s" % service.unit, beside.flag)]
    if later:
        raise GpuOpsError(
            "runtime.default_named_later",
            found="%s: default-runtime is %s" % later[-1],
            wanted="default-runtime %s, which we would set in %s" % (policy.handler, ours),
            remedy="take it out there: it beats our file; or leave `default_handler` off",
            option="default_handler",
        )
    if beside.flag or named and named[-1][1] == policy.handler:
        return None
    return HEADER + "default-runtime: %s\n" % policy.handler


def _default_then(base: Configuration, options: Edit, policy: Policy) -> str:
    """The default that will be rendered once our file of options is as it shall be, '' for the one that is."""
    if options.after is not None:
        return policy.handler
    rendered = base.cri().get("containerd", {}).get("default_runtime_name")
    return BUILT_IN if options.before is not None and rendered == policy.handler else ""


def _command_line(host: Host, service: Service) -> List[str]:
    """Words of the unit's command: k3s hides those of its process, which may hold its token."""
    done = host.run(["systemctl", "show", service.unit, "--property", "ExecStart"], check=False)
    argv = re.search(r"argv\[\]=(.*?) ; ", done.stdout)
    return argv.group(1).split() if argv else []


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
