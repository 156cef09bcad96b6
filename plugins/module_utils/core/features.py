# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NVIDIA's GPU feature discovery publishes: its file on a host, and which labels are its own. Pure.

The file has a label a line, 'nvidia.com/gpu.count=8' (internal/lm/output.go of the repository
NVIDIA/k8s-device-plugin); it is there while feature discovery runs.
"""
from __future__ import annotations

import re
from typing import Dict

FEATURE_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
# internal/lm of that repository. Not among them: nvidia.com/gpu.present, gpu.deploy.*, mig.config and mig.config.state,
# which say what is to be and not what is there
_LABEL = re.compile(
    r"nvidia\.com/(?:(?:cuda|vgpu|gfd)\..+|mig\.(?:capable|strategy)|mps\.capable|mig-.+|gpu\.(?:product|count|replicas|"
    r"sharing-strategy|memory|family|mode|machine|multiprocessors|clique|(?:compute|slices|engines)\..+))")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def is_feature(label: str) -> bool:
    """Whether a label is one that GPU feature discovery publishes."""
    return _LABEL.fullmatch(label) is not None


def parse_features(text: str) -> Dict[str, str]:
    """{label: value} of the file's text. What is no feature, or no label's value, is left out."""
    pairs = (line.strip().partition("=") for line in text.splitlines())
    return {key: value for key, _equals, value in pairs if is_feature(key) and _VALUE.fullmatch(value)}
