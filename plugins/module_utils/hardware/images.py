# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Systems whose image carries everything: how each is told, what it is called, and what brings a driver there.

Sources: os-release(5) as each system ships it, ostree(1) and bootc(8) (their files of a booted system), the pages of
Flatcar ("NVIDIA GPUs"), Talos ("NVIDIA GPU"), Bottlerocket (variants), Google's Container-Optimized OS ("Run instances
with GPU accelerators", "Security overview": /etc is stateless), transactional-update(8), the NixOS manual.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Tuple

from ..core.host import Host


@dataclass(frozen=True)
class ImageSystem:
    """A system whose programs come as an image.

    name:      for people.
    remedy:    what brings a driver there, to be read after "Do:".
    ids:       ID of its os-release; any of them.
    variants:  VARIANT_ID that is needed beside the ID; () where the ID tells it alone.
    files:     paths that are all there on it; () where os-release tells it alone.
    keeps_etc: whether what is written below /etc is there after the next boot.
    """

    name: str
    remedy: str
    ids: Tuple[str, ...] = ()
    variants: Tuple[str, ...] = ()
    files: Tuple[str, ...] = ()
    keeps_etc: bool = True

    def tells(self, host: Host, release: Mapping[str, str]) -> str:
        """What it is told by on this host, '' where it is another system."""
        told = []
        if self.ids:
            if release.get("ID") not in self.ids:
                return ""
            told.append("os-release ID=%s" % release["ID"])
        if self.variants:
            if release.get("VARIANT_ID") not in self.variants:
                return ""
            told.append("VARIANT_ID=%s" % release["VARIANT_ID"])
        if not all(host.exists(path) for path in self.files):
            return ""
        return ", ".join([*told, *self.files])


READ_ONLY = ImageSystem(
    "a system with a read-only /usr",
    "bring the driver in by what makes this system's image, or mount /usr writable")

# The first one that is told counts: what is said of one system comes before what is said of its kind.
IMAGE_SYSTEMS: Tuple[ImageSystem, ...] = (
    ImageSystem(
        "NixOS", "set `hardware.nvidia` and `services.xserver.videoDrivers = [ \"nvidia\" ]` in the system's "
        "configuration, and run `nixos-rebuild switch`", ids=("nixos",), keeps_etc=False),
    ImageSystem(
        "Talos Linux", "make an image with NVIDIA's system extensions (nvidia-open-gpu-kernel-modules and "
        "nvidia-container-toolkit), and run `talosctl upgrade`", ids=("talos",), keeps_etc=False),
    ImageSystem(
        "Bottlerocket", "take the variant that carries the driver (its name ends in `-nvidia`)", ids=("bottlerocket",),
        keeps_etc=False),
    ImageSystem(
        "Container-Optimized OS", "run `cos-extensions install gpu`, or on GKE let the node pool install the driver",
        ids=("cos",), keeps_etc=False),
    ImageSystem(
        "Flatcar Container Linux", "name its extension with the driver in `/etc/flatcar/enabled-sysext.conf`, or merge "
        "one of your own (systemd-sysext), and reboot", ids=("flatcar",)),
    ImageSystem(
        "Red Hat Enterprise Linux CoreOS", "let NVIDIA's GPU Operator run its driver container there, or layer the "
        "driver into the node's image (`osImageURL` of a MachineConfig)", ids=("rhcos",)),
    ImageSystem(
        "Red Hat Enterprise Linux CoreOS", "let NVIDIA's GPU Operator run its driver container there, or layer the "
        "driver into the node's image (`osImageURL` of a MachineConfig)", ids=("rhel",), variants=("coreos",)),
    ImageSystem(
        "Fedora CoreOS", "build the driver into a container image made from Fedora CoreOS, and run "
        "`rpm-ostree rebase` or `bootc switch`", ids=("fedora",), variants=("coreos",)),
    ImageSystem(
        "a system booted from a container image (bootc)", "build the driver into that image, and run `bootc upgrade` "
        "or `bootc switch`", files=("/run/ostree-booted", "/usr/lib/bootc")),
    ImageSystem(
        "a system booted from an ostree commit", "add the driver as a layer (`rpm-ostree install`) and reboot, or "
        "build it into the commit", files=("/run/ostree-booted",)),
    *(ImageSystem(
        name, "run `transactional-update pkg install` with the driver's packages, and reboot into the new snapshot",
        ids=ids, files=files)
      for name, ids, files in (
          ("SUSE Linux Enterprise Micro", ("sle-micro", "sl-micro", "suse-microos"), ()),
          ("openSUSE MicroOS", ("opensuse-microos", "opensuse-leap-micro"), ()),
          ("a system that transactional-update changes", (), ("/usr/sbin/transactional-update",)))),
)


def image_of(host: Host, release: Mapping[str, str]) -> Tuple[str, ImageSystem]:
    """(what tells it, the system) where packages cannot be installed into the running system, else ('', one that says
    nothing). release: os-release(5) as a dictionary."""
    for system in IMAGE_SYSTEMS:
        told = system.tells(host, release)
        if told:
            return told, system
    if host.is_read_only("/usr"):
        return "/usr is mounted read-only", READ_ONLY
    return "", ImageSystem("", "")
