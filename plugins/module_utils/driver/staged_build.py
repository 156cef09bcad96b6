# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernel modules that were built ahead of an exchange: where they lie, what they were built of, whether they fit still.

DKMS builds them in a tree of their own below STAGED, and its tree of the host knows nothing of it: what the script of a
driver's package finds there of its version it removes first (dkms, /usr/lib/dkms/common.postinst), and a version
without its source makes `dkms status` fail. DKMS is given them where it would compile: an override for one version and
one kernel (dkms(8), /etc/dkms/<module>-<version>-<kernel>.conf) puts TAKE before the command that makes the module. So
it is signed, compressed, installed and accounted for as any other, whoever has DKMS build it: the package's script, a
kernel update, or we. TAKE gives them only where every digest is right; else what follows it compiles.

A directory for each kernel, `stage.json` being written last:
  stage.json      {'schema': 1, 'version', 'packages' {name: version}, 'why': why nothing can be built ahead, or ''}
  modules/        as DKMS made them: stripped, not signed
  *.sha256        of the modules, of the source as the package will unpack it, and of what else a compiler reads: the
                  kernel's configuration and symbols, and overrides that an administrator has given DKMS; their
                  names are those below the root
  work/           while it is built
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.host import Host
from ..core.steps import managed

# Not of the packages that are kept: core/progress.py looks for the log of a build below it
STAGED = "/var/cache/gpuops/staged"
SCHEMA = 1
MODULES, SOURCE, INPUTS = "modules.sha256", "source.sha256", "inputs.sha256"
DKMS_SETTINGS = "/etc/dkms"
_NAMED = re.compile(re.escape(STAGED) + r"/([^/\s]+)/take")

# Called in DKMS's build directory with DESTINATION=BUILT for each module, names without .ko. Nothing of it is there
# under its name before all of it is whole.
TAKE = managed("""\
set -eu
here=$(cd "$(dirname "$0")" && pwd)
test -e "$here/stage.json"
( cd "$here/../../../../.." &&
    sha256sum --check --quiet --strict "$here/inputs.sha256" "$here/source.sha256" "$here/modules.sha256" )
rm -rf .gpuops
for each; do
    built=${each#*=}
    mkdir -p "$(dirname ".gpuops/$built")" "$(dirname "$built")"
    for found in "$here/modules/${each%%=*}.ko" "$here/modules/${each%%=*}.ko".*; do
        case $found in
        *.ko) test -e "$found" || continue; cp "$found" ".gpuops/$built.ko" ;;
        *.ko.xz) xz -dc "$found" > ".gpuops/$built.ko" ;;
        *.ko.gz) gzip -dc "$found" > ".gpuops/$built.ko" ;;
        *.ko.zst) zstd -qdc "$found" > ".gpuops/$built.ko" ;;
        esac
    done
    test -s ".gpuops/$built.ko"
done
for each; do
    mv ".gpuops/${each#*=}.ko" "${each#*=}.ko"
done
rm -rf .gpuops
test ! -e "$here/modules/Module.symvers" || cp "$here/modules/Module.symvers" .
echo "taken from $here: built ahead"
""")

# Read by DKMS in bash, after the package's dkms.conf. What it would have run follows, as DKMS itself would begin it
# (dkms, the_make_command); DKMS may put words behind it.
_OVERRIDE = """\
# The module was built ahead for this kernel. It is taken as long as its source and this kernel are the same.
_gpuops_modules=
for _gpuops_i in "${!DEST_MODULE_LOCATION[@]}"; do
    _gpuops_built="${BUILT_MODULE_NAME[_gpuops_i]:-$PACKAGE_NAME}"
    _gpuops_place="${BUILT_MODULE_LOCATION[_gpuops_i]-}"
    _gpuops_place="${_gpuops_place:+${_gpuops_place%%/}/}"
    _gpuops_modules+=" ${DEST_MODULE_NAME[_gpuops_i]:-$_gpuops_built}=$_gpuops_place$_gpuops_built"
done
[ "${#MAKE[@]}" -gt 0 ] || MAKE[0]="make -C $kernel_source_dir M=$dkms_tree/$module/$module_version/build"
for _gpuops_i in "${!MAKE[@]}"; do
    MAKE[_gpuops_i]="${MAKE[_gpuops_i]/#make/make -j${parallel_jobs:-1} KERNELRELEASE=$kernelver}"
    MAKE[_gpuops_i]="sh %s$_gpuops_modules || ${MAKE[_gpuops_i]}"
done
"""


@dataclass(frozen=True)
class StagedBuild:
    """What lies there for a kernel.

    version:  of the driver, '' where it was not finished.
    packages: {package: version} that brought its source; which kernel module it is, is in their names.
    whole:    whether it can be taken: every file as it was, and the kernel the same.
    why:      why nothing could be built ahead of these packages, '' where it was.
    """

    kernel: str
    version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    why: str = ""

    def is_for(self, version: str, packages: Mapping[str, Optional[str]]) -> bool:
        """Whether it is of this driver in these packages, and can be taken or was found impossible."""
        return self.whole and self.version == version and all(
            packages.get(name) == each for name, each in self.packages.items())


def directory(kernel: str) -> str:
    return "%s/%s" % (STAGED, kernel)


def override_path(name: str, version: str, kernel: str) -> str:
    return "%s/%s-%s-%s.conf" % (DKMS_SETTINGS, name, version, kernel)


def override_text(kernel: str) -> str:
    return managed(_OVERRIDE % (directory(kernel) + "/take"))


def overrides(host: Host) -> Dict[str, str]:
    """{path: kernel} of our overrides."""
    found = {}
    for path in host.glob(DKMS_SETTINGS + "/*.conf"):
        named = _NAMED.search(host.read(path) or "")
        if named:
            found[path] = named.group(1)
    return found


def manifest(version: str, packages: Mapping[str, str], why: str = "") -> str:
    return json.dumps({"schema": SCHEMA, "version": version, "packages": dict(packages), "why": why}, sort_keys=True)


def read_staged(host: Host) -> Tuple[StagedBuild, ...]:
    """What was built ahead, a finished one or not, for each kernel that anything of it is left of."""
    theirs = overrides(host)
    return tuple(_read(host, kernel, [path for path in theirs if theirs[path] == kernel])
                 for kernel in sorted({*host.list(STAGED), *theirs.values()}))


def _read(host: Host, kernel: str, settings: Sequence[str]) -> StagedBuild:
    told = _told(host, kernel)
    if told is None:
        return StagedBuild(kernel)
    whole = bool(told["why"]) or (
        [host.read(path) for path in settings] == [override_text(kernel)]
        and host.read(directory(kernel) + "/take") == TAKE
        and is_right(host, kernel, INPUTS) and is_right(host, kernel, MODULES))
    return StagedBuild(kernel, told["version"], dict(told["packages"]), whole, told["why"])


def _told(host: Host, kernel: str) -> Optional[Dict[str, Any]]:
    try:
        told = json.loads(host.read(directory(kernel) + "/stage.json") or "")
        is_known = told["schema"] == SCHEMA and told["version"] and told["packages"] and "why" in told
        return dict(told) if is_known else None
    except (KeyError, TypeError, ValueError):
        return None


def is_right(host: Host, kernel: str, digests: str) -> bool:
    """Whether all files that digests were taken of are as they were."""
    return host.run(["sh", "-c", 'cd "$1" && sha256sum --check --quiet --strict "$2"', "sh", host.path("/"),
                     host.path("%s/%s" % (directory(kernel), digests))], check=False).rc == 0


def lacking_tools(host: Host) -> Tuple[str, ...]:
    """What is not installed of what builds a module."""
    lacks: List[str] = [name for name in ("dkms", "make") if host.which(name) is None]
    compilers = [name for name in ("gcc", "cc", "clang") if host.which(name)] or host.glob("/usr/bin/gcc-[0-9]*")
    return tuple(lacks if compilers else [*lacks, "compiler"])
