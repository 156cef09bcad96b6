# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the objects of all components share."""
from __future__ import annotations

from typing import List

from .model import Object, Parameters


def shared_objects(parameters: Parameters) -> List[Object]:
    """The Namespace and the RuntimeClass."""
    labels = {"app.kubernetes.io/part-of": "gpuops", "app.kubernetes.io/managed-by": "gpuops"}
    levels = {"pod-security.kubernetes.io/%s" % mode: "privileged" for mode in ("enforce", "audit", "warn")}
    return [
        {"apiVersion": "v1", "kind": "Namespace",
         "metadata": {"name": parameters["namespace"], "labels": {**labels, **levels}}},
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
         "metadata": {"name": parameters["runtime_class"], "labels": dict(labels)},
         "handler": parameters["runtime_handler"]},
    ]
