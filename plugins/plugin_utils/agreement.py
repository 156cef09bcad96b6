# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the hosts of a cluster say of it: worked out once for those that say it alike, and refused where they differ.

A cluster has one device plugin, so that its hosts must agree on every variable of it. Hundreds of hosts have their
variables from few groups: what is written alike, templates and all that these name included, comes to the same.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Container, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import jinja2
import jinja2.nodes

from ..module_utils.core.plan import canonical, digest
from ..module_utils.core.refusal import Refusal
from ..module_utils.core.secrets import without_passwords

LOOKUPS = frozenset(("lookup", "query", "q"))
# Lookups that know nothing of the host that they are for; of others nobody can tell
OF_CONTROLLER = frozenset(("env", "file", "unvault"))
# What is the same for every host of a play
OF_PLAY = frozenset((
    "ansible_check_mode", "ansible_diff_mode", "ansible_play_batch", "ansible_play_hosts", "ansible_play_hosts_all",
    "ansible_play_name", "ansible_playbook_python", "ansible_version", "environment", "groups", "hostvars", "omit",
    "play_hosts", "playbook_dir", "role_path", "undef"))
# A template that sees all variables of its host may come to something else on each
ALL_VARIABLES = "vars"
# What is written where nothing is
NOTHING = ""
LONGEST_VALUE = 100
MOST_HOSTS = 10


@dataclass(frozen=True)
class Opinion:
    """What these hosts say."""

    value: Any
    hosts: Tuple[str, ...]


def written_alike(
    hosts: Mapping[str, Mapping[str, Any]], names: Sequence[str], defaults: Mapping[str, Any]
) -> List[Tuple[str, ...]]:
    """The hosts in groups for whose members these names come to the same, in the order of the first of each.

    hosts: {host: its variables as they are written}.
    """
    groups: Dict[str, List[str]] = {}
    texts = _Texts()
    for host, variables in hosts.items():
        groups.setdefault(_written(host, variables, names, defaults, texts), []).append(host)
    return [tuple(members) for members in groups.values()]


def disagreement(cluster: str, variable: str, opinions: Iterable[Opinion], secret: bool = False) -> Optional[Refusal]:
    """Why a cluster cannot be what its hosts say of one variable; None where they agree.

    secret: whether the values may not be shown.
    """
    told: Dict[str, Opinion] = {}
    for opinion in opinions:
        key = canonical(opinion.value)
        told[key] = Opinion(opinion.value, (*(told[key].hosts if key in told else ()), *opinion.hosts))
    if len(told) < 2:
        return None
    of_data = {_written_out(each.value) for each in told.values() if not isinstance(each.value, str)}
    parts = ["%s on %s" % ("one value" if secret else _shown(each.value, of_data), _listed(each.hosts))
             for each in sorted(told.values(), key=lambda each: -len(each.hosts))]
    return Refusal(
        "cluster.hosts_disagree",
        "the hosts of %s say different things of `%s`: %s" % (cluster, variable, "; ".join(parts)),
        "one word for all nodes of a cluster, as they share what runs in it",
        "set `%s` for all of them, in a group that is the cluster; configurations and metrics of single nodes are "
        "chosen by their names (`device_plugin_config_name`, `dcgm_exporter_metric_set_name`)" % variable,
        option=variable,
    )


def _shown(value: Any, of_data: Container[str]) -> str:
    """of_data: how those are written that are no text, which text may look like."""
    text = without_passwords(_written_out(value))
    text = text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
    is_alike = isinstance(value, str) and (not value or value[0] in "[{" or value in of_data)
    return "text '%s'" % text if is_alike else text


def _written_out(value: Any) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else canonical(value)


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:MOST_HOSTS]) + (" and %d more" % (len(hosts) - MOST_HOSTS)
                                            if len(hosts) > MOST_HOSTS else "")


class _Texts:
    """What is written in values, read once: what a task has found of all hosts is one object in the variables of each,
    which each would read whole otherwise."""

    def __init__(self) -> None:
        # With the value, as what is gone may leave its identity to another
        self._known: Dict[int, Tuple[Any, str, Set[str]]] = {}

    def read(self, value: Any) -> Tuple[str, Set[str]]:
        """(one short text for equal values, the variables that it names)"""
        if id(value) not in self._known:
            self._known[id(value)] = (value, digest(value), named_in(value))
        return self._known[id(value)][1:]


def _written(
    host: str, variables: Mapping[str, Any], names: Sequence[str], defaults: Mapping[str, Any], texts: _Texts
) -> str:
    """What these names come to, as far as that can be told from what is written: one text for what is alike."""
    found: Dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name in OF_PLAY:
            continue
        if name == ALL_VARIABLES:
            found[name] = host
            continue
        value = variables[name] if name in variables else defaults.get(name)
        if value is None:
            found[name] = NOTHING
            continue
        found[name], named = texts.read(value)
        waiting.extend(named)
    return canonical({name: text for name, text in found.items() if text != NOTHING})


def named_in(value: Any) -> Set[str]:
    """Names of the variables that the templates in a value refer to, at any depth."""
    if isinstance(value, str):
        return set(_named_by(value)) if "{{" in value or "{%" in value else set()
    if isinstance(value, Mapping):
        return {name for part in (*value.keys(), *value.values()) for name in named_in(part)}
    if isinstance(value, (list, tuple)):
        return {name for part in value for name in named_in(part)}
    return set()


@functools.lru_cache(maxsize=None)
def _parser() -> jinja2.Environment:
    return jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"], autoescape=True)


@functools.lru_cache(maxsize=4096)
def _named_by(template: str) -> FrozenSet[str]:
    """The same of one template. What cannot be read may name anything; Ansible says what is wrong with it."""
    try:
        parsed = _parser().parse(template)
    except jinja2.TemplateError:
        return frozenset((ALL_VARIABLES,))
    # Those that a template sets itself are among them, and are none of any host. Jinja2's own list is to be had only
    # where it knows each filter, and it knows none of Ansible's.
    names = {name.name for name in parsed.find_all(jinja2.nodes.Name) if name.ctx == "load"}
    if names & LOOKUPS and not all(map(_is_of_controller, parsed.find_all(jinja2.nodes.Call))):
        names.add(ALL_VARIABLES)
    return frozenset(names - LOOKUPS)


def _is_of_controller(call: jinja2.nodes.Call) -> bool:
    """Whether a call is no lookup, or one that is the same for every host."""
    if not isinstance(call.node, jinja2.nodes.Name) or call.node.name not in LOOKUPS:
        return True
    plugin = call.args[0] if call.args else None
    return isinstance(plugin, jinja2.nodes.Const) and str(plugin.value).rpartition(".")[2] in OF_CONTROLLER
