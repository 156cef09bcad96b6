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
  - The configuration file must end in C(gpu_nodes.yml) or C(gpu_nodes.yaml).
  - The only permission needed is to list nodes.
requirements:
  - kubernetes >= 24.2.0
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
  include_all:
    description: Whether nodes without a GPU become hosts too. They are in no group of this plugin but C(gpu_not_ready)
      and C(gpu_cordoned).
    type: bool
    default: false
  hostnames:
    description:
      - Where the inventory name comes from, in order of preference.
      - V(name) is the name of the Node object; V(label:KEY) and V(annotation:KEY) are values of the node; any other
        word is an address type of the node.
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
"""

EXAMPLES = r"""
# The first line alone gives every GPU node of the current context. With the rest: Hopper nodes of one context, a cache,
# and groups by zone.
plugin: gpuops.nvidia.gpu_nodes
kubeconfig: ~/.kube/config
context: training
label_selector: nvidia.com/gpu.family=hopper
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/gpu_nodes
keyed_groups:
  - key: k8s_gpu_zone
    prefix: zone
compose:
  ansible_user: "'admin'"
  ansible_become: "true"
groups:
  fully_used_mig: k8s_gpu_mig.strategy == 'mixed' and not k8s_gpu_findings
"""

from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

from ..module_utils.core.errors import GpuOpsError
from ..plugin_utils.kubernetes import (
    access_from_plugin,
    describe,
    gpu_node_facts,
    read_nodes,
)

SUFFIXES = ("gpu_nodes.yml", "gpu_nodes.yaml")


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """GPU nodes as hosts."""

    NAME = "gpuops.nvidia.gpu_nodes"

    def verify_file(self, path: str) -> bool:
        return super().verify_file(path) and path.endswith(SUFFIXES)

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        try:
            nodes = self._nodes(path, cache)
            for facts in gpu_node_facts(nodes, self.get_option("include_all")):
                self._add(facts)
        except GpuOpsError as error:
            raise AnsibleParserError("%s: %s" % (path, error)) from error

    def _nodes(self, path: str, cache: bool) -> List[Dict[str, Any]]:
        """The nodes, from the cache unless it is off, being flushed or out of date."""
        access = access_from_plugin(self._templated)
        selector = self._templated("label_selector")
        # An edited file may name another cluster: what was cached for the old one must not be found again.
        key = self.get_cache_key("%s %s %s %s" % (path, describe(access), access.host, selector))
        use_cache = self.get_option("cache")
        if use_cache and cache:
            try:
                return self._cache[key]
            except KeyError:
                pass
        nodes = read_nodes(access, selector)
        if use_cache:
            self._cache[key] = nodes
        return nodes

    def _templated(self, name: str) -> Any:
        """An option whose value may be a template, so that credentials can come from a lookup."""
        value = self.get_option(name)
        return self.templar.template(value) if isinstance(value, str) else value

    def _add(self, facts: Dict[str, Any]) -> None:
        host = self._hostname(facts)
        self.inventory.add_host(host)
        prefix = self.get_option("hostvars_prefix")
        variables = {prefix + name: value for name, value in facts.items()}
        for name, value in variables.items():
            self.inventory.set_variable(host, name, value)
        address = self._first_address(facts, self.get_option("address_types"))
        if address:
            self.inventory.set_variable(host, "ansible_host", address)
            variables["ansible_host"] = address
        if self.get_option("default_groups"):
            self._add_to_groups(host, facts)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, host, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, host, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, host, strict=strict)

    def _hostname(self, facts: Dict[str, Any]) -> str:
        for preference in self.get_option("hostnames"):
            kind, _separator, key = preference.partition(":")
            if preference == "name":
                name = facts["name"]
            elif kind in ("label", "annotation") and key:
                name = facts[kind + "s"].get(key)
            else:
                name = self._first_address(facts, [preference])
            if name:
                return str(name)
        raise GpuOpsError(
            "inventory.no_host_name",
            found="node %s has none of %s" % (facts["name"], ", ".join(self.get_option("hostnames"))),
            wanted="a name for every host",
            remedy="end `hostnames` with `name`",
            option="hostnames",
        )

    @staticmethod
    def _first_address(facts: Dict[str, Any], types: List[str]) -> Optional[str]:
        for kind in types:
            if facts["addresses"].get(kind):
                return str(facts["addresses"][kind][0])
        return None

    def _add_to_groups(self, host: str, facts: Dict[str, Any]) -> None:
        prefix = self.get_option("group_prefix")
        for name in default_groups(facts):
            group = self.inventory.add_group(self._sanitize_group_name(prefix + name))
            self.inventory.add_child(group, host)


def default_groups(facts: Dict[str, Any]) -> List[str]:
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
