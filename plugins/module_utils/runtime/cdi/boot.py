# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a boot has to do again: /dev and /var/run are empty then, and driver or MIG layout may be others. Pure.

The unit runs before the container runtimes. A udev rule starts it once more when the driver is loaded by another hand;
it waits for the last of its modules, as the links need the major of nvidia-uvm. Neither needs a reload of systemd: a
boot reads the unit, and udev looks at its folders itself.
"""
from __future__ import annotations

from ...core.steps import managed
from . import links

UNIT = "gpuops-nvidia-cdi.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
WANTS = "/etc/systemd/system/multi-user.target.wants/" + UNIT
RULE_FILE = "/etc/udev/rules.d/71-gpuops-nvidia.rules"

RULE = managed(
    'ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia_uvm", TAG+="systemd", ENV{SYSTEMD_WANTS}+="%s"\n' % UNIT
)


def unit_text(generator: str, environment: str, spec: str, with_links: bool) -> str:
    """The unit. spec: the specification to generate, '' where the toolkit has a unit of its own for it."""
    lines = [
        "[Unit]",
        "Description=CDI specification and /dev/char links of NVIDIA GPUs",
        "After=systemd-modules-load.service gpuops-nvidia-devices.service nvidia-mig-manager.service",
        "Before=containerd.service crio.service docker.service kubelet.service",
        "ConditionPathExists=/proc/driver/nvidia/version",
        "",
        "[Service]",
        "Type=oneshot",
        "TimeoutStartSec=90s",
    ]
    if with_links:
        # What follows is worth more than the links
        lines.append("ExecStart=%s%s --quiet %s" % ("-" if spec else "", generator, " ".join(links.COMMAND)))
    if spec:
        # What is generated names the nodes that are there: nvidia-smi makes those of GPUs and MIG devices
        lines += [
            "EnvironmentFile=-%s" % environment,
            "ExecStart=-/usr/bin/nvidia-smi -L",
            "ExecStart=-%s --quiet system create-device-nodes --control-devices" % generator,
            "ExecStart=%s --quiet cdi generate --output=%s" % (generator, spec),
        ]
    return managed("\n".join(lines) + "\n\n[Install]\nWantedBy=multi-user.target\n")
