# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names of a licensed vGPU guest. Source: NVIDIA Virtual GPU Client Licensing User Guide (clients on Linux)."""
from __future__ import annotations

from typing import Dict

UNIT = "nvidia-gridd.service"
CONFIGURATION = "/etc/nvidia/gridd.conf"
TOKENS = "/etc/nvidia/ClientConfigToken"
# The service reads files of this beginning and end alone
TOKEN_PATTERN = TOKENS + "/client_configuration_token*.tok"
TOKEN_FILE = TOKENS + "/client_configuration_token_gpuops.tok"

FEATURE = "FeatureType"
# In place of a token, of a license server that is named by its address
SERVER = "ServerAddress"
# Of who names no feature
VGPU = "1"
# {value of FEATURE: what is asked for}
FEATURES: Dict[int, str] = {
    0: "no license",
    1: "vGPU",
    2: "RTX Virtual Workstation",
    4: "Virtual Compute Server",
}
