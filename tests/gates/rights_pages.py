# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The least roles of the playbooks as files of Kubernetes (docs/rbac), and the page about them: docs/rbac.md.

All of it from the table of rights, which the collection itself asks by before it writes.
"""
from __future__ import annotations

import importlib
import sys
import textwrap
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from workspace import REPOSITORY, collections_root

PACKAGE = "ansible_collections.gpuops.nvidia.plugins.module_utils.cluster."
DIRECTORY = "docs/rbac"
PAGE = "docs/rbac.md"
BEGIN = "<!-- Made from the table of rights by tests/gates/documentation.py -->"
END = "<!-- End of what is made -->"
HEAD = """\
---
# SPDX-License-Identifier: GPL-3.0-or-later
# Made from the code of the collection by tests/gates/documentation.py; docs/rbac.md says how it is used.
"""
WIDTH = 120
# Of an item of a List
INDENT = 4
DOES = {
    "inventory": "the inventory plugin `gpu_nodes`",
    "plan": "`gpuops.nvidia.plan`, and check mode of what brings components",
    "stage": "`gpuops.nvidia.stage`",
    "validate": "`gpuops.nvidia.validate`",
    "site": "`gpuops.nvidia.site`",
    "uninstall": "`gpuops.nvidia.uninstall`",
}

Rules = Sequence[Any]


def table() -> Any:
    """module_utils/cluster/playbook_rights.py."""
    return _module("playbook_rights")


def _module(name: str) -> Any:
    if str(collections_root()) not in sys.path:
        sys.path.insert(0, str(collections_root()))
    return importlib.import_module(PACKAGE + name)


def files() -> Dict[str, str]:
    """{path in the repository: text} of the page and of every file of roles."""
    made = {"%s/namespace.yaml" % DIRECTORY: HEAD + namespace()}
    for playbook in table().PLAYBOOKS:
        made["%s/%s.yaml" % (DIRECTORY, playbook)] = HEAD + roles(("gpuops-" + playbook, rules_of(playbook)))
    for (component, option), needed in extras().items():
        name = _dashed(component, option)
        made["%s/options/%s.yaml" % (DIRECTORY, name)] = HEAD + roles(*(
            ("gpuops-%s-%s" % (playbook, name), rules) for playbook, rules in needed.items()))
    for name, rules in {**table().BESIDE, **table().OF_DRAINS}.items():
        made["%s/options/%s.yaml" % (DIRECTORY, _dashed(name))] = HEAD + roles(*(
            ("gpuops-%s-%s" % (playbook, _dashed(name)), rules) for playbook in table().TAKE_NODES))
    made[PAGE] = page()
    return made


def rules_of(playbook: str) -> List[Any]:
    return list(table().rules_of(playbook, {}))


def extras() -> Dict[Tuple[str, str], Dict[str, Rules]]:
    return dict(table().extras())


def _dashed(*words: str) -> str:
    return "-".join(filter(None, words)).replace("_", "-").replace(".", "-")


def namespace() -> str:
    """The components' namespace as an administrator prepares it, whose it stays."""
    made = _module("components.common").shared_objects({
        name: option["default"] for name, option in _module("components.common").SHARED_ARGUMENTS.items()})[0]
    labels = {name: value for name, value in made["metadata"]["labels"].items() if name.startswith("pod-security")}
    return "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n%s" % (
        made["metadata"]["name"], "".join("    %s: %s\n" % label for label in labels.items()))


def roles(*named: Tuple[str, Rules]) -> str:
    """A ClusterRole with what is of the whole cluster, and a Role in each namespace with what is of that alone.

    named: (their name, rules). One document, as not every reader of YAML takes several.
    """
    lines = ["apiVersion: v1", "kind: List", "items:"]
    for name, rules in named:
        for place in sorted({rule.place for rule in rules}):
            lines += _role(name, place, [rule for rule in rules if rule.place == place])
    return "\n".join(lines) + "\n"


def _role(name: str, place: str, rules: Rules) -> List[str]:
    lines = ["apiVersion: %s/v1" % _module("components.kinds").RBAC,
             "kind: %s" % ("Role" if place else "ClusterRole"), "metadata:",
             "  name: %s" % name, *(["  namespace: %s" % place] if place else []), "rules:"]
    for group, resources, verbs, names, purpose in _together(rules):
        lines += textwrap.wrap("To " + purpose, WIDTH - INDENT, initial_indent="  # ", subsequent_indent="  # ",
                               break_on_hyphens=False)
        lines += ["  - apiGroups: [%s]" % (group or '""'), *_list("resources", resources), *_list("verbs", verbs),
                  *(_list("resourceNames", names) if names else [])]
    return [(" " * (INDENT - 2) + "- " if number == 0 else " " * INDENT) + line for number, line in enumerate(lines)]


def _together(rules: Rules) -> List[Tuple[str, List[str], Sequence[str], Sequence[str], str]]:
    """Resources of one group with the same verbs for the same purpose in one rule."""
    found: Dict[Any, List[str]] = {}
    for rule in rules:
        found.setdefault((rule.group, rule.verbs, rule.names, rule.purpose), []).append(rule.resource)
    return [(group, resources, verbs, names, purpose)
            for (group, verbs, names, purpose), resources in found.items()]


def _list(name: str, values: Sequence[str]) -> List[str]:
    line = "    %s: [%s]" % (name, ", ".join(values))
    if len(line) <= WIDTH - INDENT:
        return [line]
    return ["    %s:" % name, *("      - %s" % value for value in values)]


def page() -> str:
    """The page with its tables; what stands around them is kept."""
    path = REPOSITORY / PAGE
    text = path.read_text() if path.is_file() else "# Rights in the cluster\n\n%s\n%s\n" % (BEGIN, END)
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit("%s needs one line %r and one line %r: the tables go between them" % (path, BEGIN, END))
    before, rest = text.split(BEGIN)
    return before + "\n".join([BEGIN, "", *_tables(), "", END]) + rest.split(END)[1]


def _tables() -> List[str]:
    lines = ["## Each right and what it is for", ""]
    for playbook in table().PLAYBOOKS:
        link = "[%s.yaml](rbac/%s.yaml)" % (playbook, playbook)
        lines += ["### %s" % playbook, "", "For %s: %s." % (DOES[playbook], link), "",
                  "| Where | Resource | Verbs | To |", "|---|---|---|---|", *map(_row, rules_of(playbook)), ""]
    lines += ["## Options that need more", "",
              "Each has a file with roles `gpuops-<playbook>-<option>`, to be bound beside those of the playbook.", "",
              "| Option | Playbook | Beyond its role |", "|---|---|---|"]
    for (component, option), needed in extras().items():
        name = "_".join(filter(None, (component, option)))
        link = "[`%s`](rbac/options/%s.yaml)" % (name, _dashed(component, option))
        lines += ["| %s | %s | %s |" % (link, playbook, _spoken(rules)) for playbook, rules in needed.items()]
    lines += ["| [`%s`](rbac/options/%s.yaml) | %s | %s |" % (name, _dashed(name), playbook, _spoken(rules))
              for name, rules in table().OF_DRAINS.items() for playbook in table().TAKE_NODES]
    lines += ["", "## Programs that are asked", "",
              "Where a cluster has them. Each has a file with roles, as options have, in the program's namespace.", "",
              "| Program | Playbooks | Beyond their roles | To |", "|---|---|---|---|"]
    lines += ["| [%s](rbac/options/%s.yaml) | %s | %s | %s |" % (
        program, program, ", ".join(table().TAKE_NODES), _spoken([rule]), rule.purpose)
        for program, rules in table().BESIDE.items() for rule in rules]
    return lines


def _row(rule: Any) -> str:
    only = ": " + ", ".join("`%s`" % name for name in rule.names) if rule.names else ""
    return "| %s | %s%s | %s | %s |" % (
        "`%s`" % rule.place if rule.place else "cluster", rule.called, only, ", ".join(rule.verbs), rule.purpose)


def _spoken(rules: Iterable[Any]) -> str:
    return "; ".join("%s %s%s%s" % (
        ", ".join(rule.verbs), rule.called, " (%s)" % ", ".join(rule.names) if rule.names else "",
        " in `%s`" % rule.place if rule.place else "") for rule in rules)
