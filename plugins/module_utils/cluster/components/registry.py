# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What gpuops brings into a cluster, in the grammar of a host: observe, plan, apply, verify.

COMPONENTS has them in the order in which they are brought, each a value (model.py) whose objects are made by pure
functions of its options. The engine is the same for all: observation.py lists what is there, once for all components
of a cluster; planner.py makes a Plan of it, a step for each object that is to be created, changed, adopted, replaced,
pruned or removed; carrying_out.py does the steps and awaits the rollout.

Ours is what the server's own book of fields says that gpuops has applied (fields.py); the label app.kubernetes.io/
managed-by is only how it is found. What others say in an object of ours stays, unless we say it too. What all
components share, the Namespace and the RuntimeClass, comes with the first of them and goes with the last; a Namespace
or a CustomResourceDefinition in which anything of others is left (occupants.py) never goes. A cluster in which all is
as it should be is asked for one list of each kind (kinds.py) and for nothing else.
"""
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
