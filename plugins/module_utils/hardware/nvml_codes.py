# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return codes of NVML that mean something to who asks or changes a GPU: nvml.h, nvmlReturn_t."""
from __future__ import annotations

NOT_SUPPORTED, NO_PERMISSION, LOST, RESET_REQUIRED, IN_USE, TOO_LITTLE = 3, 4, 15, 16, 19, 23
INVALID_ARGUMENT, NOT_FOUND, NO_FUNCTION, VERSION_MISMATCH, DEPRECATED = 2, 6, 13, 25, 26
# What a GPU, its driver or its library does not have
LACKING = (NOT_SUPPORTED, NO_FUNCTION, DEPRECATED)
