# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The options of the validation, and which of them its half on the host needs."""
from __future__ import annotations

from typing import Any, Dict

from .compute.levels import NAMES, QUICK

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent", "proved"], "default": "present"},
    "scope": {"type": "list", "elements": "str", "choices": ["host", "cluster"], "default": ["host"]},
    "compute": {"type": "str", "choices": list(NAMES), "default": QUICK},
    "expected_gpus": {"type": "int"},
    "expected_resources": {"type": "dict", "default": {}},
    "devices": {"type": "dict", "default": {}},
    "device_plugin_config": {"type": "dict", "default": {"flags": {"migStrategy": "mixed"}}},
    "device_plugin_version": {"type": "str", "default": "v0.19.3"},
    "handler": {"type": "str", "default": "nvidia"},
    "runtime_class": {"type": "str"},
    "status_files": {"type": "bool", "default": True},
    "hosts": {"type": "list", "elements": "str"},
    "node_name": {"type": "str"},
    "resource": {"type": "str", "default": "nvidia.com/gpu"},
    "pod": {"type": "bool", "default": True},
    "pod_image": {"type": "str", "default": "docker.io/library/python:3.13.5-slim-bookworm"},
    "pod_namespace": {"type": "str", "default": "default"},
    "pod_tolerations": {"type": "list", "elements": "dict", "default": []},
    "pod_trusted_for": {"type": "int", "default": 0},
    "proof": {"type": "dict", "default": {}},
    "startup_taint": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 120},
    "from_variables": {"type": "bool", "default": False},
}
# All that the host gets to know. A credential for the API server is not among it.
OF_HOST = ("state", "compute", "expected_gpus", "handler", "proof", "status_files")
