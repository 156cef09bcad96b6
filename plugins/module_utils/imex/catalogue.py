# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names of IMEX: its files, its programs, the driver's options for its channels.

Source: NVIDIA IMEX guide (service configuration, channels); parameters of the kernel module: nv-caps-imex.c and
nv-reg.h of NVIDIA/open-gpu-kernel-modules.
"""
from __future__ import annotations

UNIT = "nvidia-imex.service"
PROGRAM = "nvidia-imex"
CONTROL = "nvidia-imex-ctl"
READY = "READY"
CONFIGURATION = "/etc/nvidia-imex/config.cfg"
NODES_FILE = "/etc/nvidia-imex/nodes_config.cfg"

MODULE_FILE = "/etc/modprobe.d/gpuops-nvidia-imex.conf"
CHANNEL0_OPTION, COUNT_OPTION = "NVreg_CreateImexChannel0", "NVreg_ImexChannelCount"
# Of a driver whose options name no other (nv-reg.h of NVIDIA/open-gpu-kernel-modules)
DEFAULT_COUNT = "2048"
# What the loaded driver goes by, without the prefix of its options
PARAMETERS_FILE = "/proc/driver/nvidia/params"
COUNT_PARAMETER = "ImexChannelCount"
CHANNEL0 = "/dev/nvidia-caps-imex-channels/channel0"
CHANNEL_DEVICE = "nvidia-caps-imex-channels"
