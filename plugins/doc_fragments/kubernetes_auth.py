# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations


class ModuleDocFragment:
    """Connection options of the modules that talk to the Kubernetes API; the names are those of kubernetes.core."""

    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig, several paths as in E(KUBECONFIG), or the kubeconfig itself as a dictionary.
      - Without it the service account of the pod that Ansible runs in is used, then E(KUBECONFIG),
        then C(~/.kube/config).
      - Falls back to E(K8S_AUTH_KUBECONFIG).
    type: raw
  context:
    description: Name of a context in the kubeconfig. Falls back to E(K8S_AUTH_CONTEXT).
    type: str
  host:
    description: URL of the API server. Falls back to E(K8S_AUTH_HOST).
    type: str
  api_key:
    description: Bearer token. Falls back to E(K8S_AUTH_API_KEY).
    type: str
  username:
    description: User name for HTTP basic authentication. Falls back to E(K8S_AUTH_USERNAME).
    type: str
  password:
    description: Password for HTTP basic authentication. Falls back to E(K8S_AUTH_PASSWORD).
    type: str
  validate_certs:
    description: Whether to verify the certificate of the API server. Falls back to E(K8S_AUTH_VERIFY_SSL).
    type: bool
    aliases: [verify_ssl]
  ca_cert:
    description: Path of the certificate authority of the API server. Falls back to E(K8S_AUTH_SSL_CA_CERT).
    type: path
    aliases: [ssl_ca_cert]
  client_cert:
    description: Path of a client certificate. Falls back to E(K8S_AUTH_CERT_FILE).
    type: path
    aliases: [cert_file]
  client_key:
    description: Path of the client certificate's key. Falls back to E(K8S_AUTH_KEY_FILE).
    type: path
    aliases: [key_file]
  proxy:
    description: URL of an HTTP or SOCKS proxy. Falls back to E(K8S_AUTH_PROXY).
    type: str
  no_proxy:
    description:
      - Hosts and domains, separated by commas, that do not go through O(proxy).
      - Falls back to E(K8S_AUTH_NO_PROXY).
    type: str
  proxy_headers:
    description: Headers for the proxy.
    type: dict
    suboptions:
      proxy_basic_auth:
        description: User and password for the proxy, separated by a colon.
        type: str
      basic_auth:
        description: User and password for the API server, separated by a colon.
        type: str
      user_agent:
        description: The user agent to name.
        type: str
  persist_config:
    description:
      - Whether a refreshed token is written back to the kubeconfig.
      - Falls back to E(K8S_AUTH_PERSIST_CONFIG).
    type: bool
  impersonate_user:
    description: User to act as. Falls back to E(K8S_AUTH_IMPERSONATE_USER).
    type: str
  impersonate_groups:
    description: Groups to act as. Falls back to E(K8S_AUTH_IMPERSONATE_GROUPS).
    type: list
    elements: str
  from_variables:
    description:
      - Whether the host's variables name the cluster where the task does not, by C(gpu_cluster_kubeconfig) with
        C(gpu_cluster_context), or by C(gpu_cluster_host), and say who we are there (C(gpu_cluster_api_key),
        C(gpu_cluster_client_cert), C(gpu_cluster_client_key), C(gpu_cluster_ca_cert), C(gpu_cluster_validate_certs),
        C(gpu_cluster_impersonate_user)).
      - What neither says falls back to the environment, unless that is about another cluster.
    type: bool
    default: false
requirements:
  - kubernetes >= 24.2.0 for the Python that runs Ansible on the controller
"""

    READER = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and changes nothing in any mode.
    support: full
  diff_mode:
    description: Has nothing to show, as nothing changes.
    support: none
  idempotent:
    description: Does not change the state of the cluster.
    support: full
"""

    CHANGES = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode; the API server validates the change without storing it.
    support: full
  diff_mode:
    description: Shows the change where there is one to show.
    support: partial
    details: Evictions are listed in the result instead.
  idempotent:
    description: A second run with the same options changes nothing.
    support: full
"""
