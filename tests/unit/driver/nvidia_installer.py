# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in of NVIDIA's installer: the same file in its form, in what it takes and in what it leaves; not in what it
brings.

After the source of nvidia-installer 590.48.01: which options there are, and that any other ends it with 1
(option_table.h, nvidia-installer.c); the list below /var/lib/nvidia, its modes, numbers and order, that a file is there
before its entry is, and that files which lay there before are moved aside and come back (backup.c, command-list.c);
that kernel modules which run are unloaded unless it is told to bring none, or by the uninstaller unless it is told not
to (kernel.c, backup.c); that what was altered since stays, a link also where its file is gone
(check_backup_log_entries()), and that of a list that is torn nothing is removed (read_backup_log_file()); that it ends
with 0 whatever comes of an uninstallation. The archive unpacks with -x into a directory of its name, as NVIDIA's own
driver containers have it do. Its dkms.conf has the tokens of files.c.

Tests steer it by files in the host's root: 'stop' has the number of the file that it is killed after, before the list
has it; 'cut' has that of one after which who has called it is killed too, any other for its end; 'fails' has it end
with 1 after its second file. What it was called with is in 'called', and 'unloaded' is there where it would have
unloaded a driver.
"""
from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Dict

OPTIONS = """version help advanced-options accept-license driver-info uninstall skip-module-unload skip-module-load
 sanity expert no-questions silent x-prefix x-module-path x-library-path x-sysconfig-path opengl-prefix opengl-libdir
 wine-prefix wine-libdir compat32-chroot compat32-prefix compat32-libdir installer-prefix utility-prefix utility-libdir
 xdg-data-dir gbm-backend-dir gbm-backend-dir32 documentation-prefix application-profile-path kernel-include-path
 kernel-source-path kernel-output-path kernel-install-path proc-mount-point ui log-file-name tmpdir no-ncurses-color
 no-nvidia-modprobe kernel-name no-precompiled-interface no-abi-note no-rpms no-backup no-recursion kernel-module-only
 kernel-modules-only no-kernel-module no-kernel-modules no-x-check precompiled-kernel-interfaces-path no-nouveau-check
 run-nvidia-xconfig force-selinux selinux-chcon-type no-sigwinch-workaround no-distro-scripts no-opengl-files
 no-wine-files kernel-module-source-prefix kernel-module-source-dir no-kernel-module-source module-signing-secret-key
 module-signing-public-key module-signing-script module-signing-key-path module-signing-hash module-signing-x509-hash
 no-check-for-alternate-installs no-unified-memory no-drm no-peermem concurrency-level force-libglx-indirect
 no-libglx-indirect glvnd-egl-config-path egl-external-platform-config-path override-file-type-destination skip-depmod
 systemd-unit-prefix systemd-sleep-prefix systemd-sysconf-prefix kernel-module-type kernel-module-build-directory
 print-recommended-kernel-module-type debug"""
# Each of them may have no- before it
BOOLEANS = """disable-nouveau dkms install-libglvnd systemd allow-installation-with-running-driver rebuild-initramfs
 install-compat32-libs"""
_RUN = """\
#!/bin/sh
# This script was generated using Makeself (a stand-in of it)
case "${1-}" in
-x | --extract-only) ;;
*) echo "only -x is used here" >&2; exit 1 ;;
esac
mkdir %(name)s || exit 1
sed '1,/^ARCHIVE$/d' "$0" | base64 -d | tar -xzf - -C %(name)s
exit
ARCHIVE
"""
_INSTALLER = """\
#!/bin/sh
root=%(root)s
version=%(version)s
here=$(cd "$(dirname "$0")" && pwd)
kept=$root/var/lib/nvidia
uninstalls= opengl=yes modules=yes unloads=yes
echo "$(basename "$0") $*" >> "$root/called"
test "$(basename "$0")" != nvidia-uninstall || uninstalls=yes
for word; do
    name=${word#--}
    name=${name%%%%=*}
    case " %(options)s " in
    *" $name "*) ;;
    *) case " %(booleans)s " in
        *" ${name#no-} "*) ;;
        *) echo "ERROR: Invalid commandline, please run '$0 --help' for usage information." >&2; exit 1 ;;
        esac ;;
    esac
    case $name in
    uninstall) uninstalls=yes ;;
    no-kernel-modules | no-kernel-module) modules= ;;
    no-opengl-files) opengl= ;;
    skip-module-unload) unloads= ;;
    esac
done

uninstall() {
    test "$(sed -n '$=' "$kept/log" 2> /dev/null || echo 0)" -ge 2 2> /dev/null || {
        echo "There is no NVIDIA driver currently installed."
        return
    }
    if test "$(stat -c %%a "$kept") $(stat -c %%a "$kept/log")" != "700 600"; then
        echo "ERROR: The permissions of $kept have been changed" >&2
        return
    fi
    # All entries are read and looked at before the first of them goes
    : > "$kept/.goes"
    sed 1,2d "$kept/log" | while read -r entry; do
        number=${entry%%%%:*} path=${entry#*: }
        read -r told || exit 1
        case $number in
        0) test -e "$root$path" && test "$(readlink "$root$path")" = "$told" ;;
        1) test "$(cksum < "$root$path" 2> /dev/null | cut -d ' ' -f 1)" = "$told" ;;
        *) test "$(cksum < "$kept/$number" 2> /dev/null | cut -d ' ' -f 1)" = "${told%%%% *}" ;;
        esac || continue
        printf '%%s %%s\\n' "$number" "$path" >> "$kept/.goes"
    done || {
        echo "ERROR: Error while parsing '$kept/log'." >&2
        rm "$kept/.goes"
        return
    }
    there=$(sed -n '1s/.*(\\(.*\\))$/\\1/p' "$kept/log")
    if test -e "$root/var/lib/dkms/nvidia/$there"; then
        dkms remove -m nvidia -v "$there" --all > /dev/null
    fi
    while read -r number path; do
        test "$number" -ge 2 || rm "$root$path"
    done < "$kept/.goes"
    while read -r number path; do
        test "$number" -lt 100 || mv "$kept/$number" "$root$path"
    done < "$kept/.goes"
    sort -r "$kept/dirs" 2> /dev/null | while read -r made; do
        rmdir "$root$made" 2> /dev/null
    done
    rm -r "$kept"
    test -z "$unloads" || touch "$root/unloaded"
}

place() { # type name
    case $1 in
    INSTALLER_BINARY | UTILITY_BINARY | NVIDIA_MODPROBE | UTILITY_BIN_SYMLINK) echo "/usr/bin/$2" ;;
    FIRMWARE) echo "/lib/firmware/nvidia/$version/$2" ;;
    GLX_CLIENT_LIB) test -z "$opengl" || echo "%(libraries)s/$2" ;;
    CUDA_LIB | UTILITY_LIB | CUDA_SYMLINK | UTILITY_LIB_SYMLINK) echo "%(libraries)s/$2" ;;
    esac
}

directory() { # of a file: made, and noted where it was not there
    test -d "$root$1" && return
    directory "$(dirname "$1")"
    mkdir "$root$1"
    echo "$1" >> "$kept/dirs"
}

install() {
    test -z "$modules" || touch "$root/unloaded"
    # What it finds it has uninstall itself, which unloads
    test ! -x "$root/usr/bin/nvidia-uninstall" || "$root/usr/bin/nvidia-uninstall" -s
    rm -rf "$kept"
    mkdir -p "$kept" && chmod 700 "$kept"
    (umask 177; echo "1.0-$(echo "$version" | tr -d .) ($version)"; echo "NVIDIA Accelerated Graphics Driver") \\
        > "$kept/log"
    chmod 600 "$kept/log"
    number=100
    sed 1,8d "$here/.manifest" | while read -r name _mode type _rest; do
        path=$(place "$type" "$name")
        test -n "$path" && test -e "$root$path" || continue
        crc=$(cksum < "$root$path" | cut -d ' ' -f 1)
        mv "$root$path" "$kept/$number"
        printf '%%s: %%s\\n%%s 100644 0 0\\n' "$number" "$path" "$crc" >> "$kept/log"
        number=$((number + 1))
    done
    count=0
    sed 1,8d "$here/.manifest" | grep -v SYMLINK > "$here/.files"
    while read -r name mode type _rest; do
        path=$(place "$type" "$name")
        test -n "$path" || continue
        directory "$(dirname "$path")"
        cp "$here/$name" "$root$path" && chmod "$mode" "$root$path"
        count=$((count + 1))
        test ! -e "$root/stop" || test "$(cat "$root/stop")" != "$count" || kill -9 $$
        test ! -e "$root/cut" || test "$(cat "$root/cut")" != "$count" || kill -9 $PPID $$
        printf '1: %%s\\n%%s\\n' "$path" "$(cksum < "$root$path" | cut -d ' ' -f 1)" >> "$kept/log"
        if test -e "$root/fails" && test "$count" -ge 2; then
            echo "ERROR: Installation has failed." >&2
            exit 1
        fi
    done < "$here/.files"
    rm "$here/.files"
    sed 1,8d "$here/.manifest" | grep SYMLINK | while read -r name _mode type rest; do
        path=$(place "$type" "$name")
        ln -s "${rest##* }" "$root$path"
        printf '0: %%s\\n%%s\\n' "$path" "${rest##* }" >> "$kept/log"
    done
    test ! -e "$root/cut" || kill -9 $PPID $$
    test -n "$root" || ldconfig
}

if test -n "$uninstalls"; then uninstall; else install; fi
exit 0
"""
_MANIFEST = """\
NVIDIA Accelerated Graphics Driver for Linux-%(arch)s
%(version)s
nvidia.ko
nvidia nvidia-uvm
-
-
-
-
nvidia-installer 0755 INSTALLER_BINARY
nvidia-smi 0755 UTILITY_BINARY
nvidia-modprobe 0755 NVIDIA_MODPROBE
libcuda.so.%(version)s 0755 CUDA_LIB NATIVE ./
libnvidia-ml.so.%(version)s 0755 UTILITY_LIB NATIVE
libGLX_nvidia.so.%(version)s 0755 GLX_CLIENT_LIB NATIVE
gsp_ga10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1
nvidia-uninstall 0000 UTILITY_BIN_SYMLINK nvidia-installer
libcuda.so.1 0000 CUDA_SYMLINK NATIVE ./ libcuda.so.%(version)s
libnvidia-ml.so.1 0000 UTILITY_LIB_SYMLINK NATIVE libnvidia-ml.so.%(version)s
"""
DKMS_CONF = """\
PACKAGE_NAME="nvidia"
PACKAGE_VERSION="__VERSION_STRING"
AUTOINSTALL="yes"

MAKE[0]="'make' -j__JOBS NV_EXCLUDE_BUILD_MODULES='__EXCLUDE_MODULES' KERNEL_UNAME=${kernelver} modules"

# The list of kernel modules will be generated by nvidia-installer at runtime.
__DKMS_MODULES
"""


def installer(path: Path, version: str, root: str, arch: str = "x86_64", libraries: str = "", **changed: str) -> str:
    """Write it, and tell its SHA-256. root: the host's, '' for '/'. libraries: where the distribution has them, '' for
    Debian's place. changed: {name of a file in it, '/' as '__': text,
    a character a byte}, '' where it is not in it."""
    words = {"version": version, "root": root, "arch": arch, "name": "NVIDIA-Linux-%s-%s" % (arch, version),
             "libraries": libraries or "/usr/lib/%s-linux-gnu" % arch,
             "options": " ".join(OPTIONS.split()), "booleans": " ".join(BOOLEANS.split())}
    files: Dict[str, str] = {
        "nvidia-installer": _INSTALLER % words, ".manifest": _MANIFEST % words,
        "nvidia-smi": "#!/bin/sh\n", "nvidia-modprobe": "#!/bin/sh\n", "gsp_ga10x.bin": "firmware " + version,
        **{"%s.so.%s" % (name, version): name + version for name in ("libcuda", "libnvidia-ml", "libGLX_nvidia")},
        **{"%s/%s" % (each, name): text for each in ("kernel", "kernel-open") for name, text in (
            ("dkms.conf", DKMS_CONF), ("Kbuild", "# of %s\n" % each), ("nvidia/nv.c", "/* %s */\n" % version))}}
    files.update({name.replace("__", "/"): text for name, text in changed.items()})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            if text:
                told = tarfile.TarInfo("./" + name)
                told.size, told.mode = len(text), 0o755 if name.startswith("nvidia-") else 0o644
                archive.addfile(told, io.BytesIO(text.encode("latin-1")))
    path.write_bytes((_RUN % words).encode() + base64.encodebytes(packed.getvalue()))
    return hashlib.sha256(path.read_bytes()).hexdigest()
