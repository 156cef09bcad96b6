# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster's components, in the order in which they are brought."""
from __future__ import annotations

from typing import Mapping, Tuple

from .dcgm_exporter import DCGM_EXPORTER
from .device_plugin import DEVICE_PLUGIN
from .gpu_feature_discovery import GPU_FEATURE_DISCOVERY
from .gpu_monitoring.component import GPU_MONITORING
from .model import Component
from .node_feature_discovery import NODE_FEATURE_DISCOVERY

COMPONENTS: Mapping[str, Component] = {
    component.name: component
    for component in (NODE_FEATURE_DISCOVERY, GPU_FEATURE_DISCOVERY, DEVICE_PLUGIN, DCGM_EXPORTER, GPU_MONITORING)
}
# What a GPU node is no GPU node without. Monitoring has a form for each cluster, so somebody has to choose one.
BY_DEFAULT: Tuple[str, ...] = tuple(name for name in COMPONENTS if name != GPU_MONITORING.name)
