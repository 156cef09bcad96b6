# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where pods have their configuration file from: a ConfigMap of their own, or NVIDIA's config-manager. Pure.

config-manager (cmd/config-manager of the repository NVIDIA/k8s-device-plugin) runs beside a program in its pods: it
links the file that the label of its Node names to where the program reads, and sends the program SIGHUP. So one
DaemonSet serves nodes of all groups.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ...core.errors import GpuOpsError
from ..plugin_config import CONFIG_LABEL
from .common import (
    CONFINED,
    Object,
    Parameters,
    as_yaml,
    checksum,
    cluster_role,
    config_map,
    config_volume,
    container,
    environment,
    field,
    mount,
    rule,
)
from .groups import Group

PROGRAM = "config-manager"
FILE = "config.yaml"
DIRECTORY = "/config"
AVAILABLE = "/available-configs"
# What the file is called that nodes without the label have: where no default is named, config-manager looks for this
DEFAULT_NAME = "default"
# As NVIDIA's chart has them. None is ever tried, as a default is named
FALLBACK_STRATEGIES = "named,single"
SIGHUP = "1"


@dataclass(frozen=True)
class ConfigSource:
    """What a pod has so that its program finds its configuration at /config/config.yaml.

    annotations:      make new pods of a change.
    token:            whether a container of the pod talks to the API server.
    shares_processes: whether the pod's containers see each other's processes.
    """

    annotations: Mapping[str, str]
    volumes: Tuple[Dict[str, Any], ...]
    mounts: Tuple[Dict[str, Any], ...]
    init_containers: Tuple[Dict[str, Any], ...] = ()
    sidecars: Tuple[Dict[str, Any], ...] = ()
    token: bool = False
    shares_processes: bool = False


def configured(app: str, image: str, parameters: Parameters, groups: Sequence[Group]
               ) -> Tuple[List[Object], List[Tuple[Group, ConfigSource]]]:
    """(the objects that hold the configurations, each DaemonSet's nodes with where its pods have theirs from).

    Raises GpuOpsError where, with the config-manager, a group has the name under which its file would be the base's.
    """
    if parameters["config_manager"]:
        return _objects_of_config_manager(app, parameters, groups), [
            (groups[0].everywhere(), _by_config_manager(app, image, parameters, groups))]
    return [_own_config_map(group, app, parameters) for group in groups], [
        (group, _own_config(group, app)) for group in groups]


def _own_config(group: Group, app: str) -> ConfigSource:
    """Of pods that all have one configuration, from the ConfigMap of their group."""
    return ConfigSource(checksum(group.value), (config_volume("config", group.called(app)),),
                        (mount("config", DIRECTORY, read_only=True),))


def _own_config_map(group: Group, app: str, parameters: Parameters) -> Object:
    return config_map(group.called(app), parameters, {FILE: as_yaml(group.value)})


def _by_config_manager(app: str, image: str, parameters: Parameters, groups: Sequence[Group]) -> ConfigSource:
    """Of pods whose Node's label names which of the groups' configurations they have.

    app: the program, as its container starts it: config-manager finds a process by exactly that.
    """
    links = mount("config", DIRECTORY)
    files = mount("available-configs", AVAILABLE, read_only=True)
    helper = container(PROGRAM, image, parameters, command=[PROGRAM], volumeMounts=[files, links])
    told: Dict[str, Any] = {
        "NODE_NAME": field("spec.nodeName"), "NODE_LABEL": CONFIG_LABEL, "CONFIG_FILE_SRCDIR": AVAILABLE,
        "CONFIG_FILE_DST": "%s/%s" % (DIRECTORY, FILE), "DEFAULT_CONFIG": DEFAULT_NAME,
        "FALLBACK_STRATEGIES": FALLBACK_STRATEGIES}
    first = {
        **helper, "name": PROGRAM + "-init",
        "env": environment({**told, "ONESHOT": "true", "SEND_SIGNAL": "false"}),
        "securityContext": CONFINED,
    }
    beside = {
        **helper,
        "env": environment({**told, "ONESHOT": "false", "SEND_SIGNAL": "true", "SIGNAL": SIGHUP,
                            "PROCESS_TO_SIGNAL": app}),
        # AppArmor's and SELinux' profiles of containers let none that they confine signal a privileged one
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
    }
    return ConfigSource(
        checksum(_files(groups)),
        (config_volume("available-configs", _name(app)), {"name": "config", "emptyDir": {}}),
        (files, {**links, "readOnly": True}), (first,), (beside,), token=True, shares_processes=True)


def _objects_of_config_manager(app: str, parameters: Parameters, groups: Sequence[Group]) -> List[Object]:
    """The ConfigMap with the configurations of all groups, and the right to see Nodes.

    Raises GpuOpsError where a group has the name under which its file would be the base's.
    """
    if DEFAULT_NAME in groups[0].others:
        raise GpuOpsError(
            "cluster.config_named_default", found="`configs` has a configuration named %s" % DEFAULT_NAME,
            wanted="with `config_manager` another name: by that one nodes without the label %s have `config`"
            % CONFIG_LABEL, remedy="rename it in `configs` and in that label of its nodes", option="configs")
    # It looks at its own Node alone, by a list with a field selector; RBAC cannot say so.
    return [*cluster_role(app, parameters, [rule("", ["nodes"], ["list", "watch"])]),
            config_map(_name(app), parameters, _files(groups))]


def _name(app: str) -> str:
    """As the chart's. Not that of a configuration of its own: of pods that still have that one, the file would go."""
    return app + "-configs"


def _files(groups: Sequence[Group]) -> Dict[str, str]:
    return {group.name or DEFAULT_NAME: as_yaml(group.value) for group in groups}
