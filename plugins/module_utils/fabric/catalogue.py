# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the fabric manager's packages bring, and what it needs of the kernel.

Source: NVIDIA Fabric Manager User Guide (configuration options, systems with NVLink 5).
"""
from __future__ import annotations

UNIT = "nvidia-fabricmanager.service"
PROGRAM = "nv-fabricmanager"
LOG = "/var/log/fabricmanager.log"
CONFIGURATION = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
# Of the guide for branch 610. The file of an installed version may have others, and lack lines for some
KEYS = frozenset("""
ABORT_CUDA_JOBS_ON_FM_EXIT ACCESS_LINK_FAILURE_MODE BIND_INTERFACE_IP DAEMONIZE DATABASE_PATH FABRIC_MODE
FABRIC_MODE_RESTART FM_CMD_BIND_INTERFACE FM_CMD_PORT_NUMBER FM_CMD_UNIX_SOCKET_PATH FM_SM_IPC_INTERFACE
FM_SM_MGMT_PORT_GUID FM_STAY_RESIDENT_ON_FAILURES LOG_APPEND_TO_LOG LOG_FILE_MAX_SIZE LOG_FILE_NAME LOG_LEVEL
LOG_USE_SYSLOG NVSWITCH_FAILURE_MODE STARTING_TCP_PORT STATE_FILE_NAME TOPOLOGY_FILE_PATH TRUNK_LINK_FAILURE_MODE
UNIX_SOCKET_PATH
""".split())
# By which another program divides the fabric among virtual machines
MODE, SHARED = "FABRIC_MODE", "1"

# The switches of NVLink 5 are reached by InfiniBand: without these the fabric manager takes the board for an older one
INFINIBAND = ("mlx5_ib", "ib_umad")
MODULES_FILE = "/etc/modules-load.d/gpuops-nvlink.conf"
# The subnet manager, and what the start script asks which port leads to the switches, each with its package
SUBNET_MANAGER = "/opt/nvidia/nvlsm/sbin/nvlsm"
PORT_STATUS = "ibstat"
# The first kernel whose own mlx5_ib reaches the switches
FIRST_KERNEL = (5, 17)
