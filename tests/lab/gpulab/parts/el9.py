# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The root of an EL 9 host: with dnf, which Debian has in EL 9's version."""
from __future__ import annotations

from typing import Tuple

from ..cache import Part
from .el9_rpms import KERNEL, REGISTERED
from .rpm_root import Image

# A real one is the machine's; the boot loader takes whatever precedes the release for one
ENTRY = "5f0c1d3a9b8e4f6f8a7b6c5d4e3f2a1b-%s" % KERNEL
_LOADER_ENTRY = """\
title Rocky Linux ({0}) 9.7 (Blue Onyx)
version {0}
linux /vmlinuz-{0}
initrd /initramfs-{0}.img
options root=/dev/vda1 ro crashkernel=1G-4G:192M
grub_class rocky
"""

PARTS: Tuple[Part, ...] = (Image(
    name="el9", title="EL 9", repositories="rpm-el9", registered=REGISTERED, kernel=KERNEL,
    added=("dnf", "python3-dnf", "dnf-plugins-core", "rpm", "dracut-core", "curl"),
    initramfs="/boot/initramfs-%s.img" % KERNEL, key="/etc/pki/rpm-gpg/RPM-GPG-KEY-gpulab",
    texts={"/boot/loader/entries/%s.conf" % ENTRY: _LOADER_ENTRY.format(KERNEL),
           "/boot/grub2/grubenv": ("# GRUB Environment Block\nsaved_entry=%s\n" % ENTRY).ljust(1024, "#")},
    links={"/usr/lib/modules/%s/build" % KERNEL: "/usr/src/kernels/" + KERNEL,
           "/usr/lib/modules/%s/source" % KERNEL: "build"}).part(),)
