# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the roles of a host take from the documentation of their modules: argument specifications, defaults and tasks.

A module's DOCUMENTATION is the one text. docs/roles.yml has what a role says otherwise or beside it.
"""
from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple

import yaml
from workspace import REPOSITORY, collections_root

MODULES = REPOSITORY / "plugins" / "modules"
FRAGMENTS = REPOSITORY / "plugins" / "doc_fragments"
WRITER = "gpuops.nvidia.writer"
# Of the options that every writer has, those that are variables: the others are the collection's own, or a playbook's
OF_EVERY_WRITER = ("allowed_disruption", "approved_plan")
# {fragment whose options are variables of the modules that have it: where they are}
OPTIONS_OF = {
    "gpuops.nvidia.cluster_component": ("cluster_component.py", "DOCUMENTATION"),
    "gpuops.nvidia.cluster_component.pods": ("cluster_component.py", "PODS"),
    "gpuops.nvidia.cluster_component.task": ("cluster_component.py", "TASK"),
    "gpuops.nvidia.cluster_component.several": ("cluster_component.py", "SEVERAL"),
    "gpuops.nvidia.drain": ("drain.py", "DOCUMENTATION"),
}
# A module of this one runs on the controller, once for all hosts
OF_CLUSTER = "gpuops.nvidia.kubernetes_auth"
# What only a task says
OF_TASK = ("from_variables", "require_rights", "show", "save_to", "approved_from", "approved_fleet", "for_fleet")
TEXTS = REPOSITORY / "docs" / "roles.yml"
# What docs/roles.yml says of several roles at once
EVERY_ROLE = "every_role"
EVERY_COMPONENT = "every_component"
# What a role has for the reboots that it does
OF_REBOOTS = ("reboot_timeout",)
OPTION = re.compile(r"\bO\((\w+)((?:=[^)]*)?)\)")
RESULT = re.compile(r"\bRV\((\w+)\)")
HEAD = ("---\n# SPDX-License-Identifier: GPL-3.0-or-later\n"
        "# Made from docs/roles.yml and the modules' DOCUMENTATION by tests/gates/documentation.py\n")
WIDTH = 120
# A line that is a variable and its template, without a character that stands for another one
LONG_TEMPLATE = re.compile(r'^(\w+:) "(\{\{[^"\\]*)"$', re.MULTILINE)
LONGEST = 1000
PLUGINS = "ansible_collections.gpuops.nvidia.plugins."
META = """\
  license: GPL-3.0-or-later
  min_ansible_version: "2.16"
  platforms:
%sdependencies: []
"""
PLATFORMS = """\
    - name: Debian
      versions: [bookworm, trixie]
    - name: Ubuntu
      versions: [jammy, noble, resolute]
"""
ANY_PLATFORM = """\
    - name: GenericLinux
      versions: [all]
"""
TASK = """\
- name: %s
  gpuops.nvidia.%s:
    from_variables: true
"""
ONCE = """\
  register: %s_applied
  run_once: true
"""
REBOOT = """\
  register: %(role)s_applied

%(before)s\
# A module never reboots: it reports what a reboot would bring about. What could not be planned before it is left to the
# next plan.
- name: Bring it about by a reboot
  when:
    - %(needed)s
    - %(role)s_allowed_disruption == 'reboot'
  block:
    - name: Reboot the host
      ansible.builtin.reboot:
        reboot_timeout: "{{ %(role)s_reboot_timeout }}"
        msg: >-
          gpuops.nvidia: {{ (%(requirements)s | selectattr('kind', 'eq', 'reboot') | first).why }}

    - name: Go on after the reboot
      gpuops.nvidia.%(module)s:
        from_variables: true
      register: %(role)s_resumed
      when: %(role)s_applied.plan.complete
%(after)s"""
NEEDED, REQUIREMENTS = "%(role)s_applied.reboot_required", "%(role)s_applied.plan.requirements"
# Of what has come before it in the play, as it is by now: its user may have rebooted the host since
ALSO = """\
- name: See what else waits for a reboot
  gpuops.nvidia.%(of)s:
    from_variables: true
  check_mode: true
  changed_when: false
  register: %(role)s_waiting
  when:
    - (%(of)s_installed | default({})).reboot_required | default(false)
    - %(role)s_allowed_disruption == 'reboot'

"""
# A boot that nobody watches loses what a person has to confirm at the console
ALSO_NEEDED = """\
%(role)s_applied.reboot_required or %(role)s_waiting.reboot_required | default(false)
    - >-
      (%(role)s_applied.plan | default({})).requirements | default([]) | selectattr('kind', 'eq', 'confirmation')
      | length == 0"""
ALSO_REQUIREMENTS = """\
[%(role)s_applied, %(role)s_waiting]
                             | map(attribute='plan.requirements', default=[])
                             | flatten"""
ALSO_LOOKED = """\

    - name: See what the boot has brought
      gpuops.nvidia.%(of)s:
        from_variables: true
      check_mode: true
      changed_when: false
      register: %(role)s_brought
      when: %(role)s_waiting.reboot_required | default(false)
"""
# Each run would take the node out of service for another one
IN_VAIN = """\

    - name: Stop at what the boot has not brought
      ansible.builtin.fail:
        msg: >-
          Found: the host was rebooted, and still needs it:
          {{ (%(looked)s.plan.requirements | selectattr('kind', 'eq', 'reboot') | first).why.rstrip('.') }}.
          Wanted: what the reboot was for.
          Do: find out what else has its say when this host boots (another file in /etc/modprobe.d, the entry that the
          boot loader starts, the firmware), and run this again.
          [%(area)s.boot_in_vain]
      when:
        - %(looked)s.reboot_required | default(false)
        - not ansible_check_mode
"""
# What it has tried in vain it follows with something else
TRIES_ON = "gpu_repair"
# Only the activation waits for a person
CONFIRMS = "gpu_driver_activation"
CONFIRMATION = """\

- name: Stop at what a person has to confirm at the console
  ansible.builtin.fail:
    msg: >-
      Found: {{ %(role)s_confirmation.subject }} is not confirmed yet.
      Wanted: a kernel that loads the driver's modules.
      Do: {{ %(role)s_confirmation.why }} Then run this again.
      [activation.key_unconfirmed]
  vars:
    %(role)s_confirmation: >-
      {{ ([%(role)s_resumed | default({}), %(role)s_applied] | selectattr('plan', 'defined') | first)
         .plan.requirements | selectattr('kind', 'eq', 'confirmation') | first | default({}) }}
  when:
    - %(role)s_confirmation | length > 0
    - not ansible_check_mode
"""

Options = Dict[str, Dict[str, Any]]


@functools.lru_cache(maxsize=None)
def documentation_blocks(path: Path) -> Dict[str, Any]:
    """The YAML documents that the file assigns to names, such as DOCUMENTATION."""
    blocks: Dict[str, Any] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                blocks[target.id] = yaml.safe_load(node.value.value)
    return blocks


@functools.lru_cache(maxsize=None)
def texts() -> Dict[str, Dict[str, Any]]:
    """{role: what docs/roles.yml says of it}, for every role that has its options from modules."""
    return {role: text for role, text in yaml.safe_load(TEXTS.read_text()).items()
            if role not in (EVERY_ROLE, EVERY_COMPONENT)}


@functools.lru_cache(maxsize=None)
def sources() -> Dict[str, Any]:
    """{module: where its options come from}, as the action plugins know it."""
    return {**plugin("plugin_utils.role_variables").SOURCES, **plugin("plugin_utils.component_variables").SOURCES}


def capability_names() -> List[str]:
    """In the order in which they are planned."""
    return [capability.name for capability in plugin("module_utils.registry").CAPABILITIES]


def plugin(name: str) -> Any:
    """A module below plugins/, imported under the collection's name."""
    sys.path.insert(0, str(collections_root()))
    try:
        return importlib.import_module(PLUGINS + name)
    finally:
        sys.path.remove(str(collections_root()))


def entry_points(role: str) -> Dict[str, Dict[str, Any]]:
    """The argument specifications of a role, by entry point; all have the same options."""
    return {name: {**point, "options": options(role)} for name, point in texts()[role]["entry_points"].items()}


@functools.lru_cache(maxsize=None)
def options(role: str) -> Options:
    """The variables of a role: those behind its modules' options, in the modules' order, then its own."""
    made: Options = {}
    of_writers: Options = {}
    of_modules = list(_of_modules(role))
    names = {name for _module, name, _option in of_modules}
    for module, name, option in of_modules:
        mine = _as_variable(module, option, names)
        (of_writers if name.endswith(OF_EVERY_WRITER) else made).setdefault(name, mine)
    made.update(of_writers)
    of_all = yaml.safe_load(TEXTS.read_text())
    every = {"%s_%s" % (role, name): text for name, text in of_all[EVERY_ROLE].items()}
    if of_cluster(role):
        every.update({"%s_%s" % (role, name): text for name, text in of_all[EVERY_COMPONENT].items()})
    own = texts()[role].get("variables") or {}
    here = {*made, *("%s_%s" % (role, name) for name in OF_REBOOTS if _reboots(role))}
    for name, differing in [*((name, text) for name, text in every.items() if name in here), *own.items()]:
        made[name] = _merged(made.get(name, {}), differing)
    return made


def files(role: str) -> Dict[str, str]:
    """{path in the repository: text} of what is made for a role."""
    specified, points = options(role), []
    lines = [line for name, option in specified.items()
             for line in ("      %s:" % name, *_described(_specified(option), " " * 8))]
    for number, (name, point) in enumerate(texts()[role]["entry_points"].items()):
        anchor = " *options" if number else " &options" if len(texts()[role]["entry_points"]) > 1 else ""
        points += ["  %s:" % name, "    short_description: %s" % point["short_description"],
                   *_described({"description": point["description"]}, " " * 4), "    options:" + anchor,
                   *([] if number else lines)]
    defaults = {name: option["default"] for name, option in specified.items() if "default" in option}
    tasks = {"roles/%s/tasks/%s.yml" % (role, name): HEAD + _tasks(role, point)
             for name, point in texts()[role]["entry_points"].items() if "module" in point}
    return {
        **tasks,
        "roles/%s/meta/main.yml" % role: HEAD + "\n".join([
            "galaxy_info:", "  author: gpuops.nvidia contributors", "  description: >-",
            *textwrap.wrap(texts()[role]["description"], WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4,
                           break_long_words=False, break_on_hyphens=False)])
        + "\n" + META % (ANY_PLATFORM if of_cluster(role) else PLATFORMS),
        "roles/%s/meta/argument_specs.yml" % role: HEAD + "\n".join(["argument_specs:", *points]) + "\n",
        "roles/%s/defaults/main.yml" % role: HEAD + _dumped(defaults),
    }


def _specified(option: Mapping[str, Any]) -> Dict[str, Any]:
    """An option as a specification has it, where a default has to be of its type: no template but of a text."""
    is_template = str(option.get("default", "")).startswith("{{")
    return {name: value for name, value in option.items()
            if name != "default" or not is_template or option.get("type", "str") in ("str", "path", "raw")}


def _tasks(role: str, point: Mapping[str, Any]) -> str:
    told = TASK % (point["short_description"], point["module"])
    if of_cluster(role):
        return told + ONCE % role
    if not point.get("reboots"):
        return told
    whole = told + REBOOT + (CONFIRMATION if point["module"] == CONFIRMS else "")
    of, module = point.get("reboots_for"), point["module"]
    before, needed, requirements, looked = (ALSO, ALSO_NEEDED, ALSO_REQUIREMENTS, ALSO_LOOKED) if of else (
        "", NEEDED, REQUIREMENTS, "")
    names = {"role": role, "module": module, "of": of, "looked": "%s_%s" % (role, "brought" if of else "resumed"),
             "area": sources()[of or module].capability}
    parts = {"before": before, "needed": needed, "requirements": requirements,
             "after": looked + ("" if module == TRIES_ON else IN_VAIN)}
    return whole % {**names, **{name: part % names for name, part in parts.items()}}


def _reboots(role: str) -> bool:
    return any(point.get("reboots") for point in texts()[role]["entry_points"].values())


def of_cluster(role: str) -> bool:
    """Whether the role is one of the cluster's components, not of a host."""
    return any(OF_CLUSTER in _documented(point["module"])["extends_documentation_fragment"]
               for point in texts()[role]["entry_points"].values() if "module" in point)


def _documented(module: str) -> Dict[str, Any]:
    return dict(documentation_blocks(MODULES / (module + ".py"))["DOCUMENTATION"])


def documented_options(module: str) -> Options:
    """The options of a module, but those of its connection: those of fragments first, what every writer has last."""
    documented = _documented(module)
    found: Options = {}
    for fragment in documented["extends_documentation_fragment"]:
        if fragment in OPTIONS_OF:
            file, block = OPTIONS_OF[fragment]
            found.update(documentation_blocks(FRAGMENTS / file)[block]["options"])
    found.update(documented["options"])
    if WRITER in documented["extends_documentation_fragment"]:
        of_writers = documentation_blocks(FRAGMENTS / "writer.py")["DOCUMENTATION"]["options"]
        found.update({name: of_writers[name] for name in OF_EVERY_WRITER})
    return found


def _of_modules(role: str) -> Iterator[Tuple[str, str, Mapping[str, Any]]]:
    """(module, variable, option) of every option that is one; of modules that share one, the first describes it."""
    made: Set[str] = set()
    for module, source in sources().items():
        if source.role != role:
            continue
        found = documented_options(module)
        for option in set(found).intersection((*OF_TASK, *(texts()[role].get("without") or ()))):
            del found[option]
        for option, described in found.items():
            shared = "%s_%s" % (role, option)
            name = shared if shared in made else source.prefix + option
            made.add(name)
            yield module, name, described


def _as_variable(module: str, option: Mapping[str, Any], names: Set[str]) -> Dict[str, Any]:
    """A module's option as that of a role: what it says of other options names their variables."""
    qualified = "gpuops.nvidia.%s#module" % module

    def renamed(match: re.Match[str]) -> str:
        variable = sources()[module].variable(match.group(1), names)
        return "O(%s%s)" % (variable or "%s:%s" % (qualified, match.group(1)), match.group(2))

    paragraphs = option["description"] if isinstance(option["description"], list) else [option["description"]]
    made: Dict[str, Any] = {
        "description": [RESULT.sub(r"RV(%s:\1)" % qualified, OPTION.sub(renamed, text)) for text in paragraphs]}
    made.update({name: option[name] for name in ("type", "elements", "choices", "default") if name in option})
    if "choices" in made:
        made["choices"] = _InOneLine(made["choices"])
    return made


def _merged(option: Mapping[str, Any], differing: Mapping[str, Any]) -> Dict[str, Any]:
    merged = {**option, **{name: value for name, value in differing.items() if name != "adds"}}
    if isinstance(merged["description"], str):
        merged["description"] = [merged["description"]]
    if "adds" in differing:
        first, *others = merged["description"]
        merged["description"] = ["%s %s" % (first, differing["adds"]), *others]
    return merged


def _described(data: Mapping[str, Any], indent: str) -> List[str]:
    """Lines of YAML: the paragraphs of the description, then everything else."""
    lines = [indent + "description:"]
    for paragraph in data["description"]:
        plain = yaml.safe_load("- " + paragraph) == [paragraph]
        lines += textwrap.wrap(paragraph if plain else "'%s'" % paragraph.replace("'", "''"), WIDTH,
                               initial_indent=indent + "  - ", subsequent_indent=indent + "    ",
                               break_long_words=False, break_on_hyphens=False)
    rest = {name: value for name, value in data.items() if name != "description"}
    return lines + ([indent + line for line in _dumped(rest).splitlines()] if rest else [])


class _InOneLine(List[Any]):
    """A list that is written as [a, b]."""


class _Dumper(yaml.SafeDumper):
    """Writes YAML as the files of this repository have it."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: Any, text: str) -> Any:
    needs_quotes = text.startswith("{{") or yaml.safe_load(text) != text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if needs_quotes else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(
    _InOneLine, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True))


def _dumped(data: Any) -> str:
    text = str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=LONGEST, allow_unicode=True))
    return LONG_TEMPLATE.sub(lambda line: line.group() if len(line.group()) <= WIDTH else "%s >-\n  %s" % line.groups(),
                             text)
