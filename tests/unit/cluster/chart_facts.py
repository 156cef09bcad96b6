# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Objects of a cluster as facts that can be compared, whoever has made them and however they are cut.

A fact is a name and a text. What a program does on a node counts, and not by which object it is told: settings are
worked out as the program does (flag, variable, file, default), rights are those of its account, and the configuration
of a group is looked at on a node of that group. What nothing here knows of a pod is a fact too, so that nothing is left
out.
"""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import yaml

Object = Dict[str, Any]
Facts = Dict[str, str]
# {path of a key in the configuration file: (variables of the environment, the program's own default)}
Table = Mapping[str, Tuple[Tuple[str, ...], Any]]

ABSENT = "-"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
METRICS_LABEL = "gpuops.nvidia.com/dcgm-exporter.metrics"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
CONTROL_PLANE_TAINT = {"key": "node-role.kubernetes.io/control-plane", "value": "", "effect": "NoSchedule"}
OS = {"kubernetes.io/os": "linux"}
# As node feature discovery and feature discovery label a node with a GPU
GPU_NODE = {**OS, "feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true"}
VALIDATED = {"nvidia.com/gpu.deploy." + name: "true" for name in (
    "device-plugin", "gpu-feature-discovery", "dcgm-exporter")}
MPS_CAPABLE = {"nvidia.com/mps.capable": "true"}

PROGRAMS = {
    "device_plugin": ("nvidia-device-plugin", "mps-control-daemon"),
    "gpu_feature_discovery": ("gpu-feature-discovery",),
    "node_feature_discovery": ("nfd-master", "nfd-worker", "nfd-gc", "nfd-topology-updater", "nfd-master -prune"),
    "dcgm_exporter": ("dcgm-exporter",),
}
HELPER = "config-manager"
# Facts of a program that say whether it is there at all, and where; the first is one of those that run on a GPU node
HERE = "kind"
WHERE = ("object", "runs on ")
# Kinds of objects that are compared beside the programs
OTHERS = {
    "device_plugin": ("Namespace", "RuntimeClass"),
    "gpu_feature_discovery": ("Namespace", "RuntimeClass"),
    "node_feature_discovery": ("Namespace", "CustomResourceDefinition", "PodDisruptionBudget", "NodeFeatureRule"),
    "dcgm_exporter": ("Namespace", "RuntimeClass", "Service", "ServiceMonitor", "NetworkPolicy", "Secret"),
}

# cmd/nvidia-device-plugin/main.go, cmd/gpu-feature-discovery/main.go and cmd/mps-control-daemon/main.go of v0.19.3
_OF_ALL: Table = {
    "flags.migStrategy": (("MIG_STRATEGY",), "none"),
    "flags.failOnInitError": (("FAIL_ON_INIT_ERROR",), True),
    "flags.deviceDiscoveryStrategy": (("DEVICE_DISCOVERY_STRATEGY",), "auto"),
}
_OF_THE_PLUGIN: Table = {
    **_OF_ALL,
    "flags.nvidiaDriverRoot": (("NVIDIA_DRIVER_ROOT",), "/"),
    "flags.nvidiaDevRoot": (("NVIDIA_DEV_ROOT",), "/"),
    "flags.gdrcopyEnabled": (("GDRCOPY_ENABLED",), False),
    "flags.gdsEnabled": (("GDS_ENABLED",), False),
    "flags.mofedEnabled": (("MOFED_ENABLED",), False),
    "flags.mpsRoot": (("MPS_ROOT",), ""),
    "flags.plugin.passDeviceSpecs": (("PASS_DEVICE_SPECS",), False),
    "flags.plugin.deviceListStrategy": (("DEVICE_LIST_STRATEGY",), ["envvar"]),
    "flags.plugin.deviceIDStrategy": (("DEVICE_ID_STRATEGY",), "uuid"),
    "flags.plugin.cdiAnnotationPrefix": (("CDI_ANNOTATION_PREFIX",), "cdi.k8s.io/"),
    "flags.plugin.nvidiaCTKPath": (("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"), "/usr/bin/nvidia-ctk"),
    "flags.plugin.containerDriverRoot": (("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"), "/driver-root"),
    "imex.channelIDs": (("IMEX_CHANNEL_IDS",), []),
    "imex.required": (("IMEX_REQUIRED",), False),
    "kubelet socket": (("KUBELET_SOCKET",), "/var/lib/kubelet/device-plugins/kubelet.sock"),
    "CDI feature flags": (("CDI_FEATURE_FLAGS",), []),
}
_OF_FEATURE_DISCOVERY: Table = {
    **_OF_ALL,
    "flags.useNodeFeatureAPI": (("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"), True),
    "flags.gfd.oneshot": (("GFD_ONESHOT",), False),
    "flags.gfd.noTimestamp": (("GFD_NO_TIMESTAMP",), False),
    "flags.gfd.sleepInterval": (("GFD_SLEEP_INTERVAL",), "60s"),
    "flags.gfd.outputFile": (("GFD_OUTPUT_FILE",), "/etc/kubernetes/node-feature-discovery/features.d/gfd"),
    "flags.gfd.machineTypeFile": (("GFD_MACHINE_TYPE_FILE",), "/sys/class/dmi/id/product_name"),
}
# pkg/cmd/app.go of the exporter 4.5.3-4.8.2; of its flags those that cases give by another way than the environment
_OF_THE_EXPORTER: Table = {
    "collectors": (("DCGM_EXPORTER_COLLECTORS", "-f"), "/etc/dcgm-exporter/default-counters.csv"),
    "listen": (("DCGM_EXPORTER_LISTEN", "-a"), ":9400"),
    "interval": (("DCGM_EXPORTER_INTERVAL", "-c"), 30000),
    "kubernetes": (("DCGM_EXPORTER_KUBERNETES", "-k"), False),
    "host engine": (("DCGM_REMOTE_HOSTENGINE_INFO", "-r"), ""),
    "pod labels": (("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",), False),
    "pod UID": (("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",), False),
    "resource names": (("NVIDIA_RESOURCE_NAMES",), []),
}
TABLES: Mapping[str, Table] = {
    "nvidia-device-plugin": _OF_THE_PLUGIN,
    "gpu-feature-discovery": _OF_FEATURE_DISCOVERY,
    "mps-control-daemon": {"flags.migStrategy": (("MIG_STRATEGY",), "none")},
    "dcgm-exporter": _OF_THE_EXPORTER,
}
# cmd/nfd-master, cmd/nfd-worker, pkg/nfd-worker and source/pci of v0.17.3
NFD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "nfd-master": {
        "noPublish": False, "extraLabelNs": [], "denyLabelNs": [], "resyncPeriod": "1h", "enableTaints": False,
        "nfdApiParallelism": 10, "restrictions": {}, "leaderElection": {}},
    "nfd-worker": {
        "core": {"sleepInterval": "60s", "labelSources": ["all"], "featureSources": ["all"]},
        "sources": {"pci": {"deviceClassWhitelist": ["03", "0b40", "12"], "deviceLabelFields": ["class", "vendor"]}}},
    "nfd-gc": {}, "nfd-topology-updater": {}, "nfd-master -prune": {},
}
NFD_FILES = {"nfd-master": "nfd-master.conf", "nfd-worker": "nfd-worker.conf",
             "nfd-topology-updater": "nfd-topology-updater.conf"}
# {argument of the NFD programs: the default of what it sets}
NFD_ARGUMENTS = {
    "-enable-leader-election": False, "-gc-interval": "1h", "-metrics": 8081, "-grpc-health": 8082, "-port": 8080,
    "-prune": False, "-feature-gates": "NodeFeatureGroupAPI=false",
    "-sleep-interval": "60s", "-watch-namespace": "*"}

# What the kubelet and the API server take for what is not said
POD_DEFAULTS = {
    "automountServiceAccountToken": True, "dnsPolicy": "ClusterFirst", "enableServiceLinks": True, "hostPID": False,
    "hostNetwork": False, "restartPolicy": "Always", "securityContext": {}, "shareProcessNamespace": False,
    "terminationGracePeriodSeconds": 30,
}
LABELS_OF_OBJECTS = ("app.kubernetes.io/", "helm.sh/", "role")


@dataclass(frozen=True)
class Node:
    """Where facts are looked at: a node with its labels and taints."""

    labels: Mapping[str, str]
    taints: Tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Objects:
    """The objects that somebody has made, by what they are to each other."""

    all: Sequence[Object]
    by_name: Dict[Tuple[str, str], Object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.all:
            self.by_name[each["kind"], each["metadata"]["name"]] = each

    def kind(self, *kinds: str) -> List[Object]:
        return [each for each in self.all if each["kind"] in kinds]

    def workloads(self, program: str) -> List[Object]:
        return [each for each in self.kind("DaemonSet", "Deployment", "Job") if program_of(each) == program]


def facts(objects: Sequence[Object], component: str, labels: Mapping[str, str]) -> Facts:
    """All of a component that a node with these labels meets, and what of it the cluster has."""
    known = Objects(objects)
    if _shared_by_mps(known, labels):
        labels = {**labels, **MPS_CAPABLE}
    found: Facts = {}
    for program in PROGRAMS[component]:
        for name, value in _facts_of_program(known, program, labels).items():
            found["%s: %s" % (program, name)] = value
    found.update(_facts_of_others(known, OTHERS[component]))
    return found


def differences(theirs: Facts, ours: Facts) -> Dict[str, Tuple[str, str]]:
    """{fact: (of the chart, ours)} of those that are not the same."""
    pairs = {name: (theirs.get(name, ABSENT), ours.get(name, ABSENT)) for name in sorted({*theirs, *ours})}
    # Of a program that only one of them runs, it is enough to say so
    alone = {program for program in (name.partition(": ")[0] for name in pairs)
             if (program + ": " + HERE in theirs) != (program + ": " + HERE in ours)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]
            and (name.partition(": ")[0] not in alone or name.partition(": ")[2].startswith(WHERE))}


def program_of(workload: Object) -> str:
    """What a workload is for: its container that is no helper."""
    container = _main(workload["spec"]["template"]["spec"])
    command = container.get("command") or [_repository(container["image"])]
    pruning = " -prune" if "-prune" in [*command, *container.get("args", ())] else ""
    return str(command[0]).rsplit("/", 1)[-1] + pruning


def _repository(image: str) -> str:
    return image.split("@")[0].rsplit("/", 1)[-1].split(":")[0]


def _main(pod: Object) -> Object:
    return next(each for each in pod["containers"] if _program(each) != HELPER)


def _program(container: Object) -> str:
    return str((container.get("command") or [_repository(container["image"])])[0]).rsplit("/", 1)[-1]


# Where it runs


def _facts_of_program(objects: Objects, program: str, labels: Mapping[str, str]) -> Facts:
    workloads = objects.workloads(program)
    found = {"runs on %s" % name: _times(sum(runs(each, node) for each in workloads))
             for name, node in nodes(labels).items()}
    if workloads:
        found["object"] = workloads[0]["kind"]
    here = [each for each in workloads if runs(each, nodes(labels)["a GPU node"])]
    if here:
        found.update(_facts_of_workload(objects, here[0], program, labels))
    return found


def nodes(labels: Mapping[str, str]) -> Dict[str, Node]:
    whole = {**GPU_NODE, **VALIDATED, **labels}
    return {
        "a GPU node": Node(whole),
        "a GPU node whose GPUs are tainted": Node(whole, (GPU_TAINT,)),
        "a GPU node that is not validated": Node({**GPU_NODE, **labels}),
        "a GPU node that is not labelled yet": Node({**OS, **labels}),
        "a node without GPUs": Node(OS),
        "a node of the control plane": Node(OS, (CONTROL_PLANE_TAINT,)),
    }


def _shared_by_mps(objects: Objects, labels: Mapping[str, str]) -> bool:
    """Whether feature discovery labels the node as one that MPS shares: by the configuration that both have there."""
    for program in ("nvidia-device-plugin", "gpu-feature-discovery"):
        for workload in objects.workloads(program):
            if runs(workload, nodes(labels)["a GPU node"]):
                pod = workload["spec"]["template"]["spec"]
                found = settings(objects, pod, dict(_main(pod)), program, labels)
                return found.get("setting sharing") == "mps"
    return False


def _times(number: int) -> str:
    return {0: "no", 1: "yes"}.get(number, "%d times" % number)


def runs(workload: Object, node: Node) -> bool:
    pod = workload["spec"]["template"]["spec"]
    selected = all(node.labels.get(name) == value for name, value in (pod.get("nodeSelector") or {}).items())
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution")
    terms = affinity["nodeSelectorTerms"] if affinity else None
    wanted = terms is None or any(all(_holds(each, node.labels) for each in term.get("matchExpressions", ()))
                                  for term in terms)
    return selected and wanted and all(
        any(_tolerates(each, taint) for each in pod.get("tolerations") or ()) for taint in node.taints)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    return {
        "In": value in expression.get("values", ()),
        "NotIn": value not in expression.get("values", ()),
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    same_key = toleration.get("key") in (None, taint["key"])
    same_effect = toleration.get("effect") in (None, taint["effect"])
    same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint["value"]
    return same_key and same_effect and same_value


# What it is there


def _facts_of_workload(objects: Objects, workload: Object, program: str, labels: Mapping[str, str]) -> Facts:
    spec = dict(workload["spec"])
    template = spec.pop("template")
    pod = dict(template["spec"])
    container = dict(_main(pod))
    found = {HERE: workload["kind"]}
    found.update(settings(objects, pod, container, program, labels))
    found.update(_rollout(workload["kind"], spec))
    found.update(_rights(objects, pod.get("serviceAccountName", "default")))
    found.update(_placement(pod))
    found.update(_containers(pod))
    found.update(_mounts(pod, container))
    found.update(_metadata(template.get("metadata") or {}))
    account = objects.by_name.get(("ServiceAccount", pod.pop("serviceAccountName", "default")), {})
    pod.setdefault("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
    pod["imagePullSecrets"] = ", ".join(sorted(each["name"] for each in pod.get("imagePullSecrets") or ()))
    for key, value in {**POD_DEFAULTS, **pod}.items():
        found.update(flat("pod.%s" % key, value))
    for key in ("env", "volumeMounts", "name"):
        container.pop(key, None)
    ports = {each["name"]: each["containerPort"] for each in container.get("ports") or ()}
    for key, value in {"imagePullPolicy": "IfNotPresent", **container}.items():
        if key.endswith("Probe"):
            value = _probe(value, ports)
        elif key == "ports":
            value = {each["name"]: "%d %s" % (each["containerPort"], each.get("protocol", "TCP")) for each in value}
        elif key == "securityContext":
            value = {name: each for name, each in value.items() if (name, each) != ("runAsNonRoot", False)}
        found.update(flat("container.%s" % key, value))
    return {name: value for name, value in found.items() if value not in ("", ABSENT)}


def _probe(probe: Mapping[str, Any], ports: Mapping[str, int]) -> Dict[str, Any]:
    whole = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3, **probe}
    for kind, more in (("httpGet", {"scheme": "HTTP"}), ("grpc", {}), ("tcpSocket", {})):
        if kind in whole:
            port = whole[kind]["port"]
            whole[kind] = {**more, **whole[kind], "port": ports.get(port, port)}
    return whole


def _rollout(kind: str, spec: Mapping[str, Any]) -> Facts:
    known = {key: value for key, value in spec.items()
             if key not in ("selector", "updateStrategy", "strategy") and value is not None}
    found = dict(item for key, value in {**({"replicas": 1} if kind == "Deployment" else {}), **known}.items()
                 for item in flat("workload.%s" % key, value).items())
    if kind == "DaemonSet":
        strategy = {"type": "RollingUpdate", **(spec.get("updateStrategy") or {})}
        if strategy["type"] == "RollingUpdate":
            strategy["rollingUpdate"] = {"maxUnavailable": 1, "maxSurge": 0, **(strategy.get("rollingUpdate") or {})}
        found.update(flat("workload.updateStrategy", strategy))
    return found


def _placement(pod: Object) -> Facts:
    found = {"node selector %s" % name: str(value) for name, value in (pod.pop("nodeSelector", None) or {}).items()}
    for each in pod.pop("tolerations", None) or ():
        words = [each.get("key", "everything"), each.get("operator", "Equal"), each.get("value", ""),
                 each.get("effect", "")]
        found["tolerates %s" % " ".join(word for word in words if word)] = "yes"
    for kind, affinity in (pod.pop("affinity", None) or {}).items():
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        for key, value in affinity.items():
            if value is not required:
                found["affinity %s.%s" % (kind, key)] = _text(value)
        if kind == "nodeAffinity" and required:
            for term in required["nodeSelectorTerms"]:
                found["affinity to a node with %s" % " and ".join(sorted(
                    " ".join([each["key"], each["operator"], *each.get("values", ())])
                    for each in term["matchExpressions"]))] = "yes"
        elif required:
            found["affinity %s.required" % kind] = _text(required)
    return found


def _containers(pod: Object) -> Facts:
    """Beside the one that the pod is for."""
    main = _main(pod)
    found = {}
    for word, others in (("init container", pod.pop("initContainers", None) or ()),
                         ("sidecar", [each for each in pod.pop("containers") if each is not main])):
        for each in others:
            words = [str(part).rsplit("/", 1)[-1] for part in each.get("command", ())]
            # A script has no name but its container's
            name = each["name"] if words[:1] in ([], ["sh"]) else " ".join(words)
            privileged = (each.get("securityContext") or {}).get("privileged")
            found["%s %s" % (word, name)] = "privileged" if privileged else "yes"
    return found


def _mounts(pod: Object, container: Object) -> Facts:
    """What of the host, and which secrets, the container sees, and what of the host the pod asks for besides."""
    volumes = {each["name"]: each for each in pod.pop("volumes", None) or ()}
    found, mounted = {}, set()
    for each in container.get("volumeMounts") or ():
        source = _source(volumes[each["name"]])
        mounted.add(each["name"])
        if source:
            words = [source, "read-only" if each.get("readOnly") else "read-write", each.get("mountPropagation", "")]
            found["mount %s" % each["mountPath"].rstrip("/")] = ", ".join(word for word in words if word)
    for name, volume in volumes.items():
        if name not in mounted and _source(volume):
            found["volume not mounted %s" % _source(volume)] = "yes"
    return found


def _source(volume: Object) -> str:
    """A directory of the host or a secret; configuration is compared by what it sets."""
    if "hostPath" in volume:
        path, kind = volume["hostPath"]["path"].rstrip("/") or "/", volume["hostPath"].get("type")
        return "host's %s%s" % (path, " (%s)" % kind if kind else "")
    return "Secret %s" % volume["secret"]["secretName"] if "secret" in volume else ""


def _metadata(metadata: Mapping[str, Any]) -> Facts:
    """What a user or another program can have meant; labels that name the object and checksums are not compared."""
    found = {"pod annotation %s" % name: str(value) for name, value in (metadata.get("annotations") or {}).items()
             if "checksum" not in name}
    found.update({"pod label %s" % name: str(value) for name, value in (metadata.get("labels") or {}).items()
                  if not name.startswith(LABELS_OF_OBJECTS)})
    return found


def _rights(objects: Objects, account: str) -> Facts:
    found = {}
    for binding in objects.kind("RoleBinding", "ClusterRoleBinding"):
        if not any(each["kind"] == "ServiceAccount" and each["name"] == account for each in binding["subjects"]):
            continue
        role = objects.by_name[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        where = "everywhere" if binding["kind"] == "ClusterRoleBinding" else "in the namespace"
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    name = resource + ("." + group if group else "")
                    only = " called %s" % ", ".join(rule["resourceNames"]) if rule.get("resourceNames") else ""
                    for verb in rule["verbs"]:
                        found["may %s %s%s %s" % (verb, name, only, where)] = "yes"
    return found


# What it does


def settings(objects: Objects, pod: Object, container: Object, program: str, labels: Mapping[str, str]) -> Facts:
    """What a program goes by, whichever way it is told, and the rest of its environment."""
    environment = {each["name"]: each["value"] if "value" in each else _from(each["valueFrom"])
                   for each in container.get("env") or ()}
    if program in NFD_DEFAULTS:
        found = _settings_of_nfd(objects, pod, container, program)
        own: List[str] = []
    else:
        told = dict(environment)
        words = [str(each) for each in container.pop("args", ())]
        for flag, value in zip(words, [*words[1:], ""]):
            if flag.startswith("-"):
                told[flag] = "true" if value.startswith("-") or not value else value
        table = TABLES[program]
        own = [name for names, _default in table.values() for name in names] + ["CONFIG_FILE"]
        unknown = sorted(each for each in told if each.startswith("-") and each not in own)
        found = {"argument %s" % each: str(told[each]) for each in unknown}
        if program == "dcgm-exporter":
            found.update(_settings(table, told, {}))
            collectors = found.pop("setting collectors")
            found.update(_metrics(objects, pod, container, collectors))
        else:
            document = _document(objects, pod, labels, environment)
            found.update(_settings(table, told, document))
            found.update(_sharing(document))
    for name, value in environment.items():
        if name not in own:
            found["environment %s" % name] = _text(value)
    return found


def _from(source: Mapping[str, Any]) -> str:
    return "%s of the pod" % source["fieldRef"]["fieldPath"] if "fieldRef" in source else _text(source)


def _settings(table: Table, told: Mapping[str, Any], document: Mapping[str, Any]) -> Facts:
    """A flag or a variable counts before the file, the file before the default."""
    found = {}
    for path, (names, default) in table.items():
        value = next((told[name] for name in reversed(names) if name in told), None)
        if value is None:
            value = _at(document, path)
        if isinstance(default, list):
            value = sorted(value.split(",") if isinstance(value, str) else default if value is None else value)
        elif value is None:
            value = default
        found["setting %s" % path] = _text(value).lower() if isinstance(default, bool) else _text(value)
    return found


def _at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _document(
    objects: Objects, pod: Object, labels: Mapping[str, str], environment: Mapping[str, Any]
) -> Dict[str, Any]:
    """The file that a container finds at CONFIG_FILE; with config-manager, the one that the node's label names."""
    if "CONFIG_FILE" not in environment:
        return {}
    volumes = {each["name"]: each for each in pod.get("volumes") or ()}
    managers = [each for each in pod.get("initContainers") or () if _program(each) == HELPER]
    data: Mapping[str, str]
    if managers:
        told = {each["name"]: each.get("value") for each in managers[0]["env"]}
        mount = next(each["name"] for each in managers[0]["volumeMounts"]
                     if each["mountPath"] == told["CONFIG_FILE_SRCDIR"])
        data = objects.by_name["ConfigMap", volumes[mount]["configMap"]["name"]]["data"]
        name = labels.get(CONFIG_LABEL) or told["DEFAULT_CONFIG"]
        if not name:
            name = "default" if "default" in data else next(iter(data))
        return _parsed(data[name])
    path = str(environment["CONFIG_FILE"])
    for mount in _main(pod)["volumeMounts"]:
        if path.startswith(mount["mountPath"].rstrip("/") + "/") and "configMap" in volumes[mount["name"]]:
            data = objects.by_name["ConfigMap", volumes[mount["name"]]["configMap"]["name"]]["data"]
            return _parsed(data[path.rsplit("/", 1)[-1]])
    raise AssertionError("nothing is mounted at %s" % path)


def _parsed(text: str) -> Dict[str, Any]:
    return dict(yaml.safe_load(text) or {})


def _sharing(document: Mapping[str, Any]) -> Facts:
    """api/config/v1/sharing.go: of both, MPS counts, and refuses more than one by itself."""
    sharing = document.get("sharing") or {}
    kind = next((each for each in ("mps", "timeSlicing") if sharing.get(each)), None)
    if kind is None:
        return {}
    block = sharing[kind]
    found = {"setting sharing": kind, "setting sharing.renamed": _text(bool(block.get("renameByDefault")))}
    more = block.get("failRequestsGreaterThanOne", kind == "mps")
    found["setting sharing.refuses more than one"] = _text(more)
    for each in block["resources"]:
        name = each["name"] if "/" in each["name"] else "nvidia.com/" + each["name"]
        found["setting sharing of %s" % name] = str(each["replicas"])
    return found


def _metrics(objects: Objects, pod: Object, container: Object, collectors: str) -> Facts:
    """The fields of the file that the exporter reads: mounted, or by name that of the image."""
    volumes = {each["name"]: each for each in pod.get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        source = volumes[mount["name"]].get("configMap")
        if source is None or not collectors.startswith(mount["mountPath"]):
            continue
        data = objects.by_name["ConfigMap", source["name"]]["data"]
        keys = {each["path"]: each["key"] for each in source.get("items", ())}
        file = collectors.rsplit("/", 1)[-1]
        lines = [line.strip() for line in data[keys.get(file, file)].splitlines()]
        rows = [[part.strip() for part in line.split(",", 2)] for line in lines if line and not line.startswith("#")]
        return {"metric %s" % row[0]: row[1] for row in rows}
    return {"metrics": "the image's %s" % collectors}


def _settings_of_nfd(objects: Objects, pod: Object, container: Object, program: str) -> Facts:
    document: Dict[str, Any] = {}
    file = NFD_FILES.get(program)
    for volume in pod.get("volumes") or ():
        if "configMap" in volume and file:
            config_map = objects.by_name["ConfigMap", volume["configMap"]["name"]]
            document = yaml.safe_load(config_map["data"][file]) or {}
    found = _flat_settings("setting ", NFD_DEFAULTS[program], document)
    told: Dict[str, str] = {}
    command = list(container.get("command") or ())
    container["command"] = command[:1]
    for word in (*command[1:], *container.pop("args", ())):
        name, _equals, value = str(word).partition("=")
        told[name] = value or "true"
    arguments: Dict[str, Any] = {**NFD_ARGUMENTS, **told}
    found.update({"argument %s" % name: _text(value) for name, value in arguments.items()})
    return found


def _flat_settings(prefix: str, defaults: Mapping[str, Any], document: Mapping[str, Any]) -> Facts:
    found: Facts = {}
    for key in {**defaults, **document}:
        default, value = defaults.get(key), document.get(key)
        if isinstance(default, Mapping) or isinstance(value, Mapping):
            found.update(_flat_settings("%s%s." % (prefix, key), default or {}, value or {}))
        else:
            value = default if value is None else value
            found[prefix + key] = _text(sorted(value) if isinstance(value, list) else value)
    return found


# What the cluster has beside


def _facts_of_others(objects: Objects, kinds: Sequence[str]) -> Facts:
    found: Facts = {}
    for each in objects.kind(*kinds):
        kind, spec, metadata = each["kind"], dict(each.get("spec") or {}), each["metadata"]
        if kind == "CustomResourceDefinition":
            found["definition of %s" % metadata["name"]] = _definition(spec)
        elif kind in ("Service", "ServiceMonitor", "NetworkPolicy"):
            found[kind] = "yes"
            found.update(flat(kind, _of_what_it_is(kind, spec)))
            found.update({"%s label %s" % (kind, name): value for name, value in metadata["labels"].items()
                          if not name.startswith((*LABELS_OF_OBJECTS, "gpuops.nvidia.com/"))})
        else:
            found["%s %s" % (kind, metadata["name"])] = "yes"
    return found


def _of_what_it_is(kind: str, spec: Mapping[str, Any]) -> Dict[str, Any]:
    """What it selects are our own pods either way; ports by their names."""
    whole = {key: value for key, value in spec.items()
             if key not in ("selector", "namespaceSelector", "podSelector")}
    if kind == "Service":
        ports = {each["name"]: "%d %s" % (each["port"], each.get("protocol", "TCP")) for each in spec["ports"]}
        return {"type": "ClusterIP", "internalTrafficPolicy": "Cluster", **whole, "ports": ports}
    if kind == "ServiceMonitor":
        whole["endpoints"] = {each["port"]: each for each in spec["endpoints"]}
    return whole


def _definition(spec: Mapping[str, Any]) -> str:
    """Versions, and what their schemas say without the words for people."""
    versions = [each["name"] for each in spec["versions"]]
    schemas = _wordless([each["schema"] for each in spec["versions"]])
    return "%s, schema %s" % (", ".join(versions), hashlib.sha256(_text(schemas).encode()).hexdigest()[:8])


def _wordless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _wordless(each) for key, each in value.items()
                if not (key == "description" and isinstance(each, str))}
    return [_wordless(each) for each in value] if isinstance(value, list) else value


# Texts


def flat(prefix: str, value: Any) -> Facts:
    """A value as facts, a mapping as one of each of its keys."""
    if isinstance(value, Mapping):
        return dict(item for key, each in value.items() for item in flat("%s.%s" % (prefix, key), each).items())
    return dict(_leaf(prefix, value))


def _leaf(prefix: str, value: Any) -> Iterator[Tuple[str, str]]:
    if value is not None and value != []:
        yield prefix, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list) and all(not isinstance(each, (Mapping, list)) for each in value):
        return ", ".join(str(each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
