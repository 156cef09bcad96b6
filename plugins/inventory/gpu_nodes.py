# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_nodes
short_description: GPU nodes of a Kubernetes cluster as hosts
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors (@gpuops)
description:
  - Reads the nodes of a cluster with one paged request and makes every node with NVIDIA GPUs a host.
  - What GPU feature discovery, Node Feature Discovery and the device plugin published becomes host variables
    and groups.
  - The configuration file must end in C(gpu_nodes.yml) or C(gpu_nodes.yaml). Each file is one cluster; an inventory
    may have several of them.
  - The only permission needed is to list nodes.
requirements:
  - kubernetes >= 24.2.0
  - jmespath >= 1.0.0, where O(filters) are given
extends_documentation_fragment:
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description: Marks the file as a configuration of this plugin.
    required: true
    choices: [gpuops.nvidia.gpu_nodes]
  kubeconfig:
    description:
      - Path of a kubeconfig, several paths as in E(KUBECONFIG), or the kubeconfig itself as a dictionary.
      - Without it the service account of the pod that Ansible runs in is used, then E(KUBECONFIG),
        then C(~/.kube/config).
    type: raw
    env:
      - name: K8S_AUTH_KUBECONFIG
  context:
    description: Name of a context in the kubeconfig.
    type: str
    env:
      - name: K8S_AUTH_CONTEXT
  host:
    description: URL of the API server.
    type: str
    env:
      - name: K8S_AUTH_HOST
  api_key:
    description: Bearer token.
    type: str
    env:
      - name: K8S_AUTH_API_KEY
  username:
    description: User name for HTTP basic authentication.
    type: str
    env:
      - name: K8S_AUTH_USERNAME
  password:
    description: Password for HTTP basic authentication.
    type: str
    env:
      - name: K8S_AUTH_PASSWORD
  validate_certs:
    description: Whether to verify the certificate of the API server.
    type: bool
    aliases: [verify_ssl]
    env:
      - name: K8S_AUTH_VERIFY_SSL
  ca_cert:
    description: Path of the certificate authority of the API server.
    type: path
    aliases: [ssl_ca_cert]
    env:
      - name: K8S_AUTH_SSL_CA_CERT
  client_cert:
    description: Path of a client certificate.
    type: path
    aliases: [cert_file]
    env:
      - name: K8S_AUTH_CERT_FILE
  client_key:
    description: Path of the client certificate's key.
    type: path
    aliases: [key_file]
    env:
      - name: K8S_AUTH_KEY_FILE
  proxy:
    description: URL of an HTTP or SOCKS proxy.
    type: str
    env:
      - name: K8S_AUTH_PROXY
  no_proxy:
    description: Hosts and domains, separated by commas, that do not go through O(proxy).
    type: str
    env:
      - name: K8S_AUTH_NO_PROXY
  proxy_headers:
    description:
      - Headers for the proxy, with the keys C(proxy_basic_auth), C(basic_auth) and C(user_agent).
    type: dict
  persist_config:
    description: Whether a refreshed token is written back to the kubeconfig.
    type: bool
    env:
      - name: K8S_AUTH_PERSIST_CONFIG
  impersonate_user:
    description: User to act as.
    type: str
    env:
      - name: K8S_AUTH_IMPERSONATE_USER
  impersonate_groups:
    description: Groups to act as.
    type: list
    elements: str
    env:
      - name: K8S_AUTH_IMPERSONATE_GROUPS
  label_selector:
    description: Only nodes with these labels, in the syntax of C(kubectl get nodes --selector).
    type: str
  filters:
    description:
      - L(JMESPath expressions,https://jmespath.org) on the facts of a node; a node becomes a host where all of them are
        true. They are named as the host variables are, without O(hostvars_prefix), and numbers are numbers.
      - What can be told from labels alone is better asked by O(label_selector), which the API server answers.
      - An expression that cannot be right is refused before the cluster is asked. A node for which one cannot be worked
        out is left out with a warning; with O(strict) it is an error.
      - The C(findings) of a node are those that it shows by itself. That its driver is not that of most nodes is found
        later, among all GPU nodes of O(label_selector), whether picked or not.
    type: list
    elements: str
    default: []
  include_all:
    description: Whether nodes without a GPU become hosts too. They are in no group of this plugin but C(gpu_not_ready)
      and C(gpu_cordoned).
    type: bool
    default: false
  hostnames:
    description:
      - Where the inventory name comes from, in order of preference.
      - V(name) is the name of the Node object; V(label:KEY) and V(annotation:KEY) are values of the node; what has
        C({{) in it is a template with the node's host variables; any other word is an address type of the node.
      - A name has letters, digits and C(._%@-), and does not begin with a dash, or is an IPv6 address; another one
        counts as none.
      - Two nodes with one name are refused. Of several clusters with nodes of the same name, let a template tell the
        names apart.
    type: list
    elements: str
    default: [name]
  address_types:
    description: Where C(ansible_host) comes from, in order of preference. An empty list leaves it unset.
    type: list
    elements: str
    default: [InternalIP, ExternalIP, Hostname, InternalDNS]
  hostvars_prefix:
    description: Prefix of every host variable of this plugin.
    type: str
    default: k8s_gpu_
  group_prefix:
    description: Prefix of every group of this plugin.
    type: str
    default: gpu_
  default_groups:
    description: Whether to build the groups C(gpu_nodes), C(gpu_product_*), C(gpu_family_*), C(gpu_mig_*),
      C(gpu_sharing_*), C(gpu_driver_*), C(gpu_clique_*), C(gpu_not_ready), C(gpu_cordoned) and C(gpu_degraded).
    type: bool
    default: true
  cache_if_unreachable:
    description:
      - How old, in seconds, the nodes in the cache may be that stand in, with a warning, for an API server that is not
        to be had. With V(0) that is an error whatever the cache has.
      - It counts where nobody answers, and where the server cannot serve (HTTP 429, 500, 502, 503 or 504) for as long
        as the request is repeated. Credentials that are refused, missing rights and certificates that do not fit are
        errors always.
      - Needs O(cache) and a cache plugin that keeps what it is given, which is then kept for the longer one of this
        time and O(cache_timeout).
      - A flushed cache, and C(meta) with V(refresh_inventory), ask the server first. Where it is not to be had then,
        the cache stands in for it too, so that a play does not lose its hosts.
    type: int
    default: 0
"""

EXAMPLES = r"""
# The first line alone gives every GPU node of the current context. With the rest: ready Hopper nodes of one context
# with eight GPUs, groups by zone, and a cache of at most an hour, or of a day while the API server does not answer.
plugin: gpuops.nvidia.gpu_nodes
kubeconfig: ~/.kube/config
context: training
label_selector: nvidia.com/gpu.family=hopper
filters:
  - ready && !unschedulable
  - count == `8` && memory_mib >= `80000`
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/gpu_nodes
cache_timeout: 3600
cache_if_unreachable: 86400
keyed_groups:
  - key: k8s_gpu_zone
    prefix: zone
compose:
  ansible_user: "'admin'"
  ansible_become: "true"
groups:
  fully_used_mig: k8s_gpu_mig.strategy == 'mixed' and not k8s_gpu_findings
"""

import json
import re
import time
from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import ansible.template
from ansible.errors import AnsibleError, AnsibleParserError
from ansible.parsing.utils.addresses import parse_address
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

from ..module_utils.cluster.client import Connection, is_outage, server_named
from ..module_utils.core.collecting import without_collection
from ..module_utils.core.errors import GpuOpsError
from ..plugin_utils import node_cache
from ..plugin_utils.kubernetes import Picked, access_from_plugin, gpu_node_facts
from ..plugin_utils.node_filters import NodeFilters
from ..plugin_utils.remembering import RememberingTemplar

SUFFIXES = ("gpu_nodes.yml", "gpu_nodes.yaml")
# Names and addresses are the word of whoever may write a Node, its host among them: to ssh, one with a dash before it
# is an option
USABLE_NAME = re.compile(r"[A-Za-z0-9:_][A-Za-z0-9._:%@-]*")
# Since ansible-core 2.19 no text is a template unless somebody says so; before, each was unless somebody denied it
TEXTS_ARE_TEMPLATES = not hasattr(ansible.template, "trust_as_template")
if TEXTS_ARE_TEMPLATES:
    from ansible.utils.unsafe_proxy import wrap_var


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """GPU nodes as hosts."""

    NAME = "gpuops.nvidia.gpu_nodes"
    templar: Any

    def __init__(self) -> None:
        super().__init__()
        # {default groups of a node: the groups that they are here}: those of most nodes are the same
        self._groups: Dict[Tuple[str, ...], List[str]] = {}

    def verify_file(self, path: str) -> bool:
        return super().verify_file(path) and path.endswith(SUFFIXES)

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        self.templar = RememberingTemplar(self.templar)
        try:
            filters = NodeFilters([self._worked_out(each) for each in self.get_option("filters")])
            with without_collection():
                self._add_all(self._facts(path, filters, cache))
        except GpuOpsError as error:
            raise AnsibleParserError("%s: %s" % (path, error)) from error

    def _facts(self, path: str, filters: NodeFilters, cache: bool) -> List[Dict[str, Any]]:
        """The nodes, from the cache unless it is off, being flushed or out of date."""
        access = access_from_plugin(self._templated)
        if not self.get_option("cache"):
            return node_cache.compared(*self._read(access, filters))
        question = json.dumps([server_named(access), self._templated("label_selector"), self.get_option("include_all"),
                               filters.expressions])
        key = self.get_cache_key("%s %s" % (path, question))
        entry = self._entry(key, question)
        limit = self.get_option("cache_timeout")
        if entry is not None and cache and (entry.age <= limit or not limit):
            return entry.facts()
        packing = node_cache.Packing()
        try:
            picked = self._read(access, filters, packing)
        except GpuOpsError as error:
            if entry is None or entry.age > self.get_option("cache_if_unreachable") or not is_outage(error):
                raise
            self.display.warning("%s: these are the nodes as they were %d s ago, at %s. %s" % (
                path, entry.age, datetime.fromtimestamp(entry.read, timezone.utc).isoformat(" ", "seconds"), error))
            return entry.facts()
        self._cache[key] = packing.entry(question, picked.usual, time.time())
        return node_cache.compared(*picked)

    def _entry(self, key: str, question: str) -> Optional[node_cache.Entry]:
        """What the cache has of this question, for as long as it may be of use."""
        longest = self.get_option("cache_if_unreachable")
        if longest > self.get_option("cache_timeout") > 0:
            timeout = self.get_option("cache_timeout")
            self.set_option("cache_timeout", longest)
            self.load_cache_plugin()
            self.set_option("cache_timeout", timeout)
        try:
            return node_cache.found(self._cache[key], question, time.time())
        except KeyError:
            return None

    def _read(self, access: Connection, filters: NodeFilters, packing: Optional[node_cache.Packing] = None) -> Picked:
        """packing: is given the facts of each node while the next ones come."""

        def pick(facts: Mapping[str, Any]) -> bool:
            picked = filters.pick(facts)
            if picked and packing is not None:
                packing.add(facts)
            return picked

        def forget() -> None:
            filters.forget()
            if packing is not None:
                packing.forget()

        picked = gpu_node_facts(
            access, self._templated("label_selector"), self.get_option("include_all"), pick, forget)
        failures = filters.failures()
        if failures and self.get_option("strict"):
            raise GpuOpsError.because(failures)
        for failure in failures:
            self.display.warning(str(failure))
        return picked

    def _templated(self, name: str) -> Any:
        """An option whose value may be a template, so that credentials can come from a lookup."""
        return self._worked_out(self.get_option(name))

    def _worked_out(self, value: Any) -> Any:
        return self.templar.template(value) if isinstance(value, str) else value

    def _add_all(self, nodes: List[Dict[str, Any]]) -> None:
        """Make hosts of the nodes, which are taken out of the list: they are in memory once."""
        prefix = self.get_option("hostvars_prefix")
        names = {name: prefix + name for facts in nodes[:1] for name in facts}
        nodes.reverse()
        while nodes:
            facts = nodes.pop()
            variables = {names[name]: value for name, value in facts.items()}
            address = _first_address(facts, self.get_option("address_types"))
            if address:
                variables["ansible_host"] = address
            if TEXTS_ARE_TEMPLATES:
                variables = without_templates(variables, wrap_var)
            self._add(facts, variables)

    def _add(self, facts: Mapping[str, Any], variables: Dict[str, Any]) -> None:
        host = self._hostname(facts, variables)
        self._add_host(host, facts, variables)
        if self.get_option("default_groups"):
            self._add_to_groups(host, facts)
        strict, groups, keyed = (self.get_option(name) for name in ("strict", "groups", "keyed_groups"))
        self._set_composite_vars(self.get_option("compose"), variables, host, strict=strict)
        if not groups and not keyed:
            return
        # What a host has is put together once for all of them, unless they ask for each other
        each = "group_names" in str([groups, keyed])
        known = self.inventory.get_host(host).get_vars()
        self._add_host_to_composed_groups(groups, known, host, strict=strict, fetch_hostvars=each)
        self._add_host_to_keyed_groups(keyed, known, host, strict=strict, fetch_hostvars=each)

    def _add_host(self, host: str, facts: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        known = self.inventory.hosts.get(host)
        if known is None:
            self.inventory.add_host(host)
            # At once: through set_variable, Ansible copies every value to note which file it is of
            self.inventory.hosts[host].vars.update(variables)
            return
        prefix = self.get_option("hostvars_prefix")
        other = {name: known.vars.get(prefix + name) for name in ("name", "created")}
        if other["name"] is not None and other != {name: facts[name] for name in other}:
            raise GpuOpsError(
                "inventory.host_name_taken",
                found="node %s (of %s) would be the host %s, which node %s (of %s) is already" % (
                    facts["name"], facts["created"], host, other["name"], other["created"]),
                wanted="a host for every node",
                remedy="give each its own name by `hostnames`, as `{{ %sname }}.cluster-b`" % prefix,
                option="hostnames",
            )
        for name, value in variables.items():
            self.inventory.set_variable(host, name, value)

    def _hostname(self, facts: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
        for preference in self.get_option("hostnames"):
            name = self._name_by(preference, facts, variables)
            if name and USABLE_NAME.fullmatch(name) and _is_one_pattern(name):
                return name
        raise GpuOpsError(
            "inventory.no_host_name",
            found="node %s has none of %s that can be the name of a host" % (
                facts["name"], ", ".join(self.get_option("hostnames"))),
            wanted="a name for every host",
            remedy="end `hostnames` with `name`",
            option="hostnames",
        )

    def _name_by(self, preference: str, facts: Mapping[str, Any], variables: Mapping[str, Any]) -> Optional[str]:
        kind, _separator, key = preference.partition(":")
        if preference == "name":
            return str(facts["name"])
        if "{{" in preference:
            self.templar.available_variables = variables
            try:
                found = self.templar.template(preference)
                return None if found is None else str(found)
            except AnsibleError as error:
                if self.get_option("strict"):
                    raise AnsibleParserError(
                        "the name %s of node %s: %s" % (preference, facts["name"], error)) from error
                return None
        if kind in ("label", "annotation") and key:
            return facts[kind + "s"].get(key)
        return _first_address(facts, [preference])

    def _add_to_groups(self, host: str, facts: Mapping[str, Any]) -> None:
        names = tuple(default_groups(facts))
        if names not in self._groups:
            prefix = self.get_option("group_prefix")
            self._groups[names] = [self.inventory.add_group(self._sanitize_group_name(prefix + name)) for name in names]
        for group in self._groups[names]:
            self.inventory.add_child(group, host)


def _is_one_pattern(name: str) -> bool:
    """Whether Ansible takes a name for itself alone where a play is given it: at colons it divides a pattern, and cuts
    a port off, but of an IPv6 address."""
    if ":" not in name:
        return True
    try:
        return bool(parse_address(name) == (name, None))
    except AnsibleError:
        return False


def _first_address(facts: Mapping[str, Any], types: Sequence[str]) -> Optional[str]:
    for kind in types:
        for address in facts["addresses"].get(kind, ()):
            if USABLE_NAME.fullmatch(address):
                return str(address)
    return None


def without_templates(value: Any, mark: Callable[[str], str]) -> Any:
    """The value with each text marked that Ansible would take for a template: a Node has none."""
    if isinstance(value, str):
        return mark(value) if "{" in value or value.startswith("#jinja2:") else value
    if isinstance(value, dict):
        return {key: without_templates(each, mark) for key, each in value.items()}
    if isinstance(value, list):
        return [without_templates(each, mark) for each in value]
    return value


def default_groups(facts: Mapping[str, Any]) -> List[str]:
    """The groups of a node, without their prefix."""
    groups = []
    if facts["present"]:
        groups.append("nodes")
        valued = {
            "product": facts["product"],
            "family": facts["family"],
            "mig": facts["mig"]["strategy"],
            "sharing": facts["sharing_strategy"],
            "driver": (facts["driver_version"] or "").partition(".")[0],
            "clique": facts["clique"],
        }
        groups.extend("%s_%s" % (name, value.lower()) for name, value in valued.items() if value)
        if facts["findings"]:
            groups.append("degraded")
    if not facts["ready"]:
        groups.append("not_ready")
    if facts["unschedulable"]:
        groups.append("cordoned")
    return groups
