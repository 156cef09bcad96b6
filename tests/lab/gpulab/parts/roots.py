# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Debian roots that hosts boot from: a minimal server with a kernel, sshd and containerd, nothing of NVIDIA's."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Tuple

from ..cache import BuildError, Job, Part

ROOT_PACKAGES: Tuple[str, ...] = (
    "systemd", "systemd-sysv", "dbus", "udev",
    "openssh-server", "sudo", "python3", "python3-apt",
    "containerd", "runc", "containernetworking-plugins",
    "iproute2", "iptables", "kmod", "pciutils", "procps",
    "ca-certificates", "gnupg", "zstd",
    "linux-image-amd64", "initramfs-tools",
)

# A machine room's minimal image leaves these out too; they are two thirds of the small files.
LEFT_OUT: Tuple[str, ...] = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")

# The programs that talk to the kernel about modules; the simulated silicon answers in their place.
MODULE_PROGRAMS: Tuple[str, ...] = ("modprobe", "rmmod", "insmod")

# Units that only cost boot time in a host without a console, a clock of its own or a way to the internet.
MASKED_UNITS: Tuple[str, ...] = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
    "dpkg-db-backup.timer", "man-db.timer", "getty.target", "console-getty.service", "systemd-timesyncd.service",
    "systemd-resolved.service", "systemd-networkd.service", "systemd-networkd-wait-online.service",
    "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-hwdb-update.service",
    "systemd-update-utmp.service", "systemd-pstore.service", "systemd-modules-load.service", "modprobe@.service",
)


def root_part(suite: str) -> Part:
    return Part(
        name="root-%s" % suite,
        title="Debian %s root (mmdebstrap)" % suite,
        build=lambda job: _build_root(job, suite),
        inputs=(suite, *ROOT_PACKAGES, *LEFT_OUT, *MODULE_PROGRAMS, *MASKED_UNITS),
    )


def _build_root(job: Job, suite: str) -> None:
    scratch = job.out / "sources"
    scratch.mkdir()
    argv: List[str] = ["mmdebstrap", "--variant=minbase", "--format=directory",
                       "--include=%s" % ",".join(ROOT_PACKAGES)]
    for pattern in LEFT_OUT:
        argv.append("--dpkgopt=path-exclude=%s" % pattern)
    argv.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    for option in _apt_options():
        argv.append("--aptopt=%s" % option)
    root = job.out / "root"
    job.run([*argv, suite, root, *_apt_sources(scratch, suite)])
    shutil.rmtree(scratch)
    _divert_module_programs(job, root)
    _tidy(root)


def _apt_sources(scratch: Path, suite: str) -> List[str]:
    """The mirrors of the machine that builds, turned to the wanted suite; none: mmdebstrap takes its default."""
    native = _os_release().get("VERSION_CODENAME", "")
    sources: List[str] = []
    for directory, pattern in ((Path("/etc/apt"), "sources.list"), (Path("/etc/apt/sources.list.d"), "*.sources"),
                               (Path("/etc/apt/sources.list.d"), "*.list")):
        for path in sorted(directory.glob(pattern)):
            text = path.read_text()
            if native and native in text and "debian" in text:
                copy = scratch / path.name
                copy.write_text(text.replace(native, suite))
                sources.append(str(copy))
    return sources


def _os_release() -> Dict[str, str]:
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {key: value.strip('"') for key, _, value in pairs if key}


def _apt_options() -> List[str]:
    """How this machine reaches its mirror (proxies, certificates, credentials), for the apt that fills the root."""
    dump = subprocess.run(["apt-config", "dump"], stdout=subprocess.PIPE, check=True, text=True).stdout
    options = [line.strip() for line in dump.splitlines()
               if line.startswith("Acquire::") and not line.rstrip().endswith('"";')
               and line.split("::")[1].split(" ")[0] in ("http", "https", "Check-Valid-Until", "Check-Date")]
    return [*options, 'Dir::Etc::netrcparts "/etc/apt/auth.conf.d/";', 'Dir::Etc::netrc "/etc/apt/auth.conf";']


def _divert_module_programs(job: Job, root: Path) -> None:
    """Put the stand-ins where modprobe and friends are; the real ones stay usable as ``<name>.kmod``.

    kmod decides what to do by the name it is called by, so the real links move to a directory of their own and keep
    their names.
    """
    (root / "usr/lib/kmod.distrib").mkdir()
    # Since Debian 13 the package has them below /usr, and a diversion is of a name, not of a file
    listed = (root / "var/lib/dpkg/info/kmod.list").read_text().split()
    for name in MODULE_PROGRAMS:
        (path,) = (path for path in ("/sbin/" + name, "/usr/sbin/" + name) if path in listed)
        job.run(["chroot", root, "dpkg-divert", "--local", "--rename", "--divert",
                 "/usr/lib/kmod.distrib/%s" % name, "--add", path])
        moved = root / "usr/lib/kmod.distrib" / name
        # Relative since Debian 13
        program = os.path.normpath(os.path.join("/usr/sbin", moved.readlink()))
        moved.unlink()
        moved.symlink_to(program)
        (root / "usr/sbin" / name).symlink_to("/usr/lib/gpusim/bin/%s" % name)
        wrapper = root / "usr/sbin" / ("%s.kmod" % name)
        wrapper.write_text('#!/bin/sh\nexec /usr/lib/kmod.distrib/%s "$@"\n' % name)
        wrapper.chmod(0o755)


def _tidy(root: Path) -> None:
    """Remove what belongs to the build, not to a host: mirrors, proxies, keys, identities, caches."""
    for pattern in ("etc/apt/sources.list", "etc/apt/sources.list.d/*", "etc/apt/apt.conf.d/99mmdebstrap",
                    "etc/apt/auth.conf.d/*", "etc/ssh/ssh_host_*", "etc/machine-id", "var/lib/dbus/machine-id",
                    "etc/resolv.conf", "etc/hostname", "etc/hosts", "var/log/*.log", "var/log/apt/*"):
        for path in root.glob(pattern):
            path.unlink()
    for pattern in ("var/lib/apt/lists/*", "var/cache/apt/*"):
        for path in root.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in MASKED_UNITS:
        (root / "etc/systemd/system" / name).symlink_to("/dev/null")
    if not list((root / "boot").glob("vmlinuz-*")):
        raise BuildError("the root has no kernel in /boot: linux-image-amd64 was not configured")


PARTS: Tuple[Part, ...] = (root_part("bookworm"), root_part("trixie"))
