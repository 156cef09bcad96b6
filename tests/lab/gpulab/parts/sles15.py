# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The root of a SLES 15 host: with Debian's zypper and libzypp."""
from __future__ import annotations

from typing import Tuple

from ..cache import Part
from .rpm_root import Image
from .sles15_rpms import KERNEL, REGISTERED

# What grub2-mkconfig makes of one kernel, as far as it matters
_GRUB = """\
load_env
set default="0"
menuentry 'SLES 15-SP7'  --class sles --class gnu-linux $menuentry_id_option 'gnulinux-simple' {{
    linux    /boot/vmlinuz-{0} root=/dev/vda1 splash=silent quiet
    initrd    /boot/initrd-{0}
}}
submenu 'Advanced options for SLES 15-SP7' --hotkey=1 $menuentry_id_option 'gnulinux-advanced' {{
    menuentry 'SLES 15-SP7, with Linux {0}' --class sles $menuentry_id_option 'gnulinux-{0}-advanced' {{
        linux    /boot/vmlinuz-{0} root=/dev/vda1 splash=silent quiet
        initrd    /boot/initrd-{0}
    }}
}}
"""

PARTS: Tuple[Part, ...] = (Image(
    name="sles15", title="SLES 15", repositories="rpm-sles15", registered=REGISTERED, kernel=KERNEL,
    added=("zypper", "rpm", "python3-rpm", "dracut-core", "curl"),
    initramfs="/boot/initrd-" + KERNEL, key="/usr/lib/rpm/gnupg/keys/gpg-pubkey-gpulab.asc",
    texts={"/boot/grub2/grub.cfg": _GRUB.format(KERNEL)},
    links={"/boot/vmlinuz": "vmlinuz-" + KERNEL, "/boot/initrd": "initrd-" + KERNEL}).part(),)
