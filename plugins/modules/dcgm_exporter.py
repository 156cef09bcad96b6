#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_exporter
short_description: Run NVIDIA's DCGM exporter in the clusters of a play
version_added: 0.1.0
description:
  - Serves metrics of the GPUs of validated nodes, with the pod that uses each.
  - With O(from_variables) it serves every cluster that a host of the play names, once each, and refuses hosts of one
    cluster that say different things. Runs on the controller; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.cluster_component
  - gpuops.nvidia.cluster_component.task
  - gpuops.nvidia.cluster_component.from_variables
  - gpuops.nvidia.cluster_component.attributes
  - gpuops.nvidia.cluster_component.pods
options:
  image:
    description:
      - The image; C(image) of the chart. What is not named keeps its default, so that a mirror needs its repository
        alone.
    type: dict
    default:
      repository: nvcr.io/nvidia/k8s/dcgm-exporter
      tag: 4.5.3-4.8.2-distroless
      digest: ""
    suboptions:
      repository:
        description: Registry and path.
        type: str
        default: nvcr.io/nvidia/k8s/dcgm-exporter
      tag:
        description: Tag.
        type: str
        default: 4.5.3-4.8.2-distroless
      digest:
        description: Digest, as C(sha256:0123...). Where given, it decides instead of the tag.
        type: str
        default: ""
  node_selector:
    description:
      - Labels of the nodes that it runs on; C(nodeSelector) of the chart. The role node_maintenance sets the default
        one once a node was validated.
    type: dict
    default:
      nvidia.com/gpu.deploy.dcgm-exporter: "true"
  tolerations:
    description: Taints that its pods tolerate; C(tolerations) of the charts.
    type: list
    elements: dict
    default:
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      - key: CriticalAddonsOnly
        operator: Exists
  update_strategy:
    description: How a new version comes to the nodes, merged with the default; C(updateStrategy) of the chart.
    type: dict
    default:
      type: RollingUpdate
      rollingUpdate:
        maxUnavailable: 10%
  resources:
    description:
      - Requests and limits of its container, merged with the default, which suits eight GPUs; C(resources) of the
        chart.
    type: dict
    default:
      requests:
        cpu: 100m
        memory: 256Mi
      limits:
        memory: 1Gi
  port:
    description: Port of the metrics, in the pod and of the Service; C(service.port) of the chart.
    type: int
    default: 9400
  interval_ms:
    description: Milliseconds between two collections; E(DCGM_EXPORTER_INTERVAL) of the exporter.
    type: int
    default: 30000
  kubelet_root:
    description: The kubelet's root directory on the nodes; C(kubeletPath) of the chart is below it.
    type: path
    default: /var/lib/kubelet
  resource_names:
    description:
      - Further resource names that pods hold GPUs by, such as C(nvidia.com/gpu.shared); E(NVIDIA_RESOURCE_NAMES) of the
        exporter. Needed where the device plugin's sharing has C(renameByDefault), or the metrics lose their pods.
    type: list
    elements: str
    default: []
  env:
    description: Further environment variables of the exporter; C(extraEnv) of the chart.
    type: dict
    default: {}
  host_engine:
    description:
      - Address of a DCGM host engine, as HOST:PORT; E(DCGM_REMOTE_HOSTENGINE_INFO) of the exporter. Empty runs the one
        inside the exporter.
    type: str
    default: ""
  metrics:
    description:
      - The fields to collect, a line of the exporter's CSV file each; C(customMetrics) of the chart. The list of the
        image lacks ECC, NVLink errors and the counts of Xids and clock events, without which alerts on them never fire.
    type: list
    elements: dict
    default:
      - {field: DCGM_FI_DEV_SM_CLOCK, type: gauge, help: "SM clock frequency (in MHz)"}
      - {field: DCGM_FI_DEV_MEM_CLOCK, type: gauge, help: "Memory clock frequency (in MHz)"}
      - {field: DCGM_FI_DEV_GPU_TEMP, type: gauge, help: "GPU temperature (in C)"}
      - {field: DCGM_FI_DEV_MEMORY_TEMP, type: gauge, help: "Memory temperature (in C)"}
      - {field: DCGM_FI_DEV_POWER_USAGE, type: gauge, help: "Power draw (in W)"}
      - {field: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, type: counter, help: "Energy since boot (in mJ)"}
      - {field: DCGM_FI_DEV_PCIE_REPLAY_COUNTER, type: counter, help: "PCIe retries"}
      - {field: DCGM_FI_DEV_GPU_UTIL, type: gauge, help: "GPU utilization (in %)"}
      - {field: DCGM_FI_DEV_MEM_COPY_UTIL, type: gauge, help: "Memory utilization (in %)"}
      - {field: DCGM_FI_DEV_ENC_UTIL, type: gauge, help: "Encoder utilization (in %)"}
      - {field: DCGM_FI_DEV_DEC_UTIL, type: gauge, help: "Decoder utilization (in %)"}
      - {field: DCGM_FI_DEV_XID_ERRORS, type: gauge, help: "Last Xid error"}
      - {field: DCGM_EXP_XID_ERRORS_COUNT, type: gauge, help: "Xid errors within the window by code"}
      - {field: DCGM_EXP_CLOCK_EVENTS_COUNT, type: gauge, help: "Clock events within the window by reason"}
      - {field: DCGM_FI_DEV_FB_FREE, type: gauge, help: "Free frame buffer memory (in MiB)"}
      - {field: DCGM_FI_DEV_FB_USED, type: gauge, help: "Used frame buffer memory (in MiB)"}
      - {field: DCGM_FI_DEV_FB_RESERVED, type: gauge, help: "Reserved frame buffer memory (in MiB)"}
      - {field: DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, type: counter, help: "Single-bit volatile ECC errors"}
      - {field: DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, type: counter, help: "Double-bit volatile ECC errors"}
      - {field: DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, type: counter, help: "Single-bit persistent ECC errors"}
      - {field: DCGM_FI_DEV_ECC_DBE_AGG_TOTAL, type: counter, help: "Double-bit persistent ECC errors"}
      - {field: DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, type: counter, help: "Uncorrectable remaps of rows"}
      - {field: DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, type: counter, help: "Correctable remaps of rows"}
      - {field: DCGM_FI_DEV_ROW_REMAP_FAILURE, type: gauge, help: "Whether remapping of rows has failed"}
      - {field: DCGM_FI_DEV_ROW_REMAP_PENDING, type: gauge, help: "Whether rows are remapped at the next reset"}
      - {field: DCGM_FI_DEV_FABRIC_MANAGER_STATUS, type: gauge, help: "How far the GPU is in its NVLink fabric"}
      - {field: DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, type: counter, help: "NVLink bandwidth of all lanes"}
      - {field: DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, type: counter, help: "NVLink retries"}
      - {field: DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, type: counter, help: "NVLink recoveries"}
      - {field: DCGM_FI_PROF_GR_ENGINE_ACTIVE, type: gauge, help: "Share of time with the engine active"}
      - {field: DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, type: gauge, help: "Share of cycles with tensor work"}
      - {field: DCGM_FI_PROF_DRAM_ACTIVE, type: gauge, help: "Share of cycles with memory traffic"}
      - {field: DCGM_FI_PROF_PCIE_TX_BYTES, type: gauge, help: "Bytes sent over PCIe per second"}
      - {field: DCGM_FI_PROF_PCIE_RX_BYTES, type: gauge, help: "Bytes received over PCIe per second"}
      - {field: DCGM_FI_DRIVER_VERSION, type: label, help: "Driver version"}
    suboptions:
      field:
        description: Name of the field.
        type: str
        required: true
      type:
        description: What it is for Prometheus.
        type: str
        required: true
        choices: [gauge, counter, label]
      help:
        description: What it says, without a comma.
        type: str
        required: true
  metric_sets:
    description:
      - Other lists of metrics by name, for the nodes whose label C(gpuops.nvidia.com/dcgm-exporter.metrics) names one.
        The role node_maintenance sets it to the host's C(dcgm_exporter_metric_set_name).
    type: dict
    default: {}
  allow_unknown_metrics:
    description:
      - Whether O(metrics) and O(metric_sets) may name what neither DCGM 4.5.3 nor the exporter of the default O(image)
        knows, for images of a newer release. The exporter does not start with a name that it does not know itself.
    type: bool
    default: false
  pod_labels_in_metrics:
    description:
      - Whether metrics carry the labels of the pod, for which the exporter may read pods; C(kubernetes.enablePodLabels)
        of the chart.
    type: bool
    default: false
  pod_uid_in_metrics:
    description:
      - Whether metrics carry the UID of the pod, for which the exporter may read pods; C(kubernetes.enablePodUID) of
        the chart.
    type: bool
    default: false
  scrape_annotations:
    description: Whether its Service carries the annotations C(prometheus.io/scrape), C(prometheus.io/port) and a path.
    type: bool
    default: false
  service_monitor:
    description:
      - A ServiceMonitor, for the Prometheus Operator, whose custom resource has to be there; C(serviceMonitor) of the
        chart.
    type: dict
    default:
      enabled: false
      interval: 15s
      scrape_timeout: 10s
      honor_labels: false
      labels: {}
      relabelings: []
      metric_relabelings: []
      endpoint: {}
    suboptions:
      enabled:
        description: Whether there is one.
        type: bool
        default: false
      interval:
        description: Time between two scrapes.
        type: str
        default: 15s
      scrape_timeout:
        description: How long one may take.
        type: str
        default: 10s
      honor_labels:
        description: Whether labels of the metrics win over those of the scrape; C(honorLabels).
        type: bool
        default: false
      labels:
        description: Its labels, by which Prometheus finds it; C(additionalLabels) of the chart.
        type: dict
        default: {}
      relabelings:
        description: Relabelings before the scrape.
        type: list
        elements: dict
        default: []
      metric_relabelings:
        description: Relabelings of what was scraped; C(metricRelabelings).
        type: list
        elements: dict
        default: []
      endpoint:
        description: Further keys of its endpoint, merged in, as C(tlsConfig) or C(basicAuth).
        type: dict
        default: {}
  tls_secret:
    description:
      - Name of a Secret in O(namespace) with C(tls.crt) and C(tls.key), by which metrics are served over HTTPS;
        C(tlsServerConfig) of the chart.
    type: str
    default: ""
  web_config_secret:
    description:
      - Name of a Secret in O(namespace) with a C(web-config.yaml) of the exporter toolkit, for users and passwords;
        C(basicAuth) of the chart. It says all, so that O(tls_secret) is only mounted then.
    type: str
    default: ""
  network_policy:
    description: Whether a NetworkPolicy lets in nothing but scrapes; C(networkPolicy) of the chart.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Serve metrics to Prometheus
  gpuops.nvidia.dcgm_exporter:
    service_monitor:
      enabled: true
      labels:
        release: prometheus
"""

RETURN = r"""
# From docs/results.yml
clusters:
  description: What became of each cluster, also of one that failed.
  returned: always, unless the options are malformed
  type: list
  elements: dict
  contains:
    name: {description: How its hosts name it., type: str, returned: success}
    hosts: {description: The play's hosts that name it., type: list, elements: str, returned: success}
    changed: {description: Whether it is changed., type: bool, returned: success}
    failed: {description: Whether it failed or was refused., type: bool, returned: success}
    msg: {description: "As C(msg) of the task.", type: str, returned: failure}
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
    refusals: {description: "As RV(refusals).", type: list, elements: dict, returned: failure}
    status: {description: "As RV(status).", type: int, returned: failure}
    plan:
      description:
        - What is changed and why, the same in check mode, in the form of RV(gpuops.nvidia.gpu_plan#module:plan). Its
          steps create, change, adopt, replace, prune or remove an object.
      type: dict
      returned: once it is planned
    text: {description: The plan for a person., type: str, returned: once it is planned}
    saved_as: {description: File of the plan., type: str, returned: "with O(save_to), once it is planned"}
    not_ready:
      description: Nodes that are not ready, whose pods were not waited for.
      type: list
      elements: str
      returned: once it is applied
text:
  description: The plans of all clusters for a person; empty where nothing is planned.
  returned: always, unless the options are malformed
  type: str
status:
  description: HTTP status of the API server's answer.
  returned: failure, where the API server answered with an error
  type: int
code:
  description: Which refusal or failure it is. Stable; C(docs/refusals.md) lists them all.
  returned: failure
  type: str
  sample: driver.version_not_offered
found:
  description: What is there, when the module refuses or fails.
  returned: failure
  type: str
wanted:
  description: What was asked for, when the module refuses or fails.
  returned: failure
  type: str
remedy:
  description: What to do, when the module refuses or fails.
  returned: failure
  type: str
option:
  description: The option, or the role's variable, that RV(remedy) is about; empty where it is about none.
  returned: failure
  type: str
refusals:
  description: Every reason to refuse or fail; the first is the one that C(msg) tells in full.
  returned: failure
  type: list
  elements: dict
  contains:
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
"""
