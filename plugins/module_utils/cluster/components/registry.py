# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster's components, in the order in which they are brought."""
from __future__ import annotations

from typing import Mapping

from .dcgm_exporter import DCGM_EXPORTER
from .device_plugin import DEVICE_PLUGIN
from .gpu_feature_discovery import GPU_FEATURE_DISCOVERY
from .model import Component
from .node_feature_discovery import NODE_FEATURE_DISCOVERY

COMPONENTS: Mapping[str, Component] = {
    component.name: component
    for component in (NODE_FEATURE_DISCOVERY, GPU_FEATURE_DISCOVERY, DEVICE_PLUGIN, DCGM_EXPORTER)
}
