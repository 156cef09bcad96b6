# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's own actions."""
from __future__ import annotations

import re
from typing import Callable, Dict

from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, CommandResult, CommandTimedOut, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import PACKAGES_DOWNLOAD, Executor
from ..hardware.boot import Module, installed_module, read_module
from ..hardware.certificates import parse_certificate
from ..hardware.peer_modules import PEERMEM, peermem_uses_rdma
from ..packages import torn
from ..packages.apt import credentials, running
from ..packages.dnf import credentials as dnf_credentials
from ..packages.managers import APT, DNF, ZYPPER, manager_of_step
from ..packages.others import await_others
from . import dkms_originals, enrollment, precompiled, record_executors, runfile_executors, staging_executors
from .archive import keep_fetched, lend
from .build_log import last_lines, last_log, refuse_hampered
from .kernels import dkms_has_built, dkms_name, dkms_status, is_trusted, known_keys, remember_failure
from .peer_builds import remember_failed
from .policy import Policy
from .undisturbed import build_undisturbed

_NOTHING_BUILT = re.compile(r"\balready (?:built|installed)\b")


def finish_packages(host: Host, journal: Journal, step: Step) -> None:
    done = running.configure(host, step.parameters["argv"], step.parameters["timeout"])
    if done.rc != 0:
        raise GpuOpsError(
            "driver.packages_not_configured",
            found="packages do not configure: %s; %s" % (
                " | ".join(done.stdout.splitlines()[-3:]), last_log(host) or "no build log"),
            wanted="a package database in order",
            remedy="when the kernel module does not build, choose another version of the driver or of the kernel",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


def build_module(host: Host, journal: Journal, step: Step) -> None:
    """Build and install this one module for one kernel. What counts is the file that came, no exit code.

    A kernel that neither runs nor boots next holds up nothing: that its module does not build is remembered.
    """
    version, limit = step.change["after"]["nvidia"], step.parameters["timeout"]
    rows = dkms_status(host)
    name = dkms_name(host, rows, version) or _add_source(host, version)
    if not name:
        raise GpuOpsError(
            "driver.source_not_registered",
            found="dkms knows no driver %s" % version,
            wanted="the driver's source among the modules that dkms builds",
            remedy="see `dkms status`; reinstall the driver's package of its kernel module")
    # The kernel would not load what is there: signed by an unknown key, or left empty by a power cut
    done = install_built(host, "%s/%s" % (name, version), step.subject, limit,
                         dkms_has_built(rows, name, version, step.subject),
                         lambda: installed_module(host, step.subject).version == version)
    module = installed_module(host, step.subject)
    if module.version != version:
        refuse_hampered(host, step.subject, done, "%s/%s" % (name, version))
        if not step.parameters["essential"]:
            remember_failure(host, journal, step.subject, version)
            return
        raise GpuOpsError(
            "driver.kernel_module_not_built",
            found="the kernel module does not build for kernel %s: %s"
            % (step.subject, last_log(host, "%s/%s" % (name, version)) or last_lines(done.stderr or done.stdout)),
            wanted="module %s for the kernels that run and boot next" % version,
            remedy="choose a driver that knows this kernel, or boot another kernel; do not reboot before",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    if step.parameters["signed"]:
        for path in host.glob(module.path.rpartition("/")[0] + "/nvidia*.ko*"):
            each = read_module(host, path)
            # nvidia-fs lies there too, and is another package's
            if each.version in ("", version):
                check_signer(host, each, step)
    staging_executors.discard_used(host)
    if step.parameters.get("peer_memory") and not peermem_uses_rdma(host, step.subject):
        _tell_idle_peermem(host, journal, step)


def install_built(
    host: Host, module: str, kernel: str, limit: float, is_built: bool, is_there: Callable[[], bool]
) -> CommandResult:
    """Build and install 'name/version' for a kernel while nobody else does, anew where DKMS has it for built.

    What is installed stays where a build by force fails. Before 3.0.7 there is none (dkms, commit 8dc47a2): DKMS says
    that all is built already, and builds it once it has been removed.
    """
    def install(again: bool) -> CommandResult:
        words = [module, "-k", kernel]
        if is_built or again:
            forced = host.run(["dkms", "build", "--force", *words], check=False, timeout=limit)
            if forced.rc == 0 and _NOTHING_BUILT.search(forced.stdout):
                host.run(["dkms", "remove", *words], check=False, timeout=limit)
            else:
                words.append("--force")
            await_others(host)
        return host.run(["dkms", "install", *words], check=False, timeout=limit)

    return build_undisturbed(host, module, kernel, install, is_there)


def _tell_idle_peermem(host: Host, journal: Journal, step: Step) -> None:
    """A kernel that neither runs nor boots next holds up nothing."""
    if not step.parameters["essential"]:
        remember_failed(host, journal, step.subject, PEERMEM, step.change["after"]["nvidia"])
        return
    raise GpuOpsError(
        "driver.peer_memory_not_used",
        found="nvidia-peermem of kernel %s was built, and uses no ib_core that it could register with" % step.subject,
        wanted="an nvidia-peermem that loads: the RDMA stack that is beside this kernel is built for it",
        remedy="install DOCA-OFED or MLNX_OFED for this kernel and run again, or set `rdma` to `dmabuf`",
        option="rdma")


def check_signer(host: Host, module: Module, step: Step) -> None:
    """A key that the policy names signs all; else any that the kernel takes, or the one that waits for confirmation."""
    certificate = step.parameters["certificate"]
    data = host.read_bytes(certificate) if certificate else None
    wanted = parse_certificate(data).serial if data else ""
    if wanted and module.key == wanted:
        return
    if not step.parameters["exactly"] and is_trusted(module, known_keys(host)):
        return
    raise GpuOpsError(
        "driver.kernel_module_not_trusted",
        found="%s is signed by %s with key %s, and %s" % (
            module.path, module.signer or "nobody", module.key or "(none)",
            "%s is of key %s" % (certificate, wanted or "(none)") if step.parameters["exactly"] else
            "no enrolled key has that serial number"),
        wanted="a signature that the kernel takes under Secure Boot",
        remedy="enrol the key that DKMS signs with (`secure_boot`: `enroll`), or let DKMS sign with the enrolled one "
               "(`signing_key` and `signing_certificate`; DKMS before 3.0.4 reads neither)")


def _add_source(host: Host, version: str) -> str:
    """Make the driver's source known to DKMS, as the package's script does unless /etc/dkms/no-autoinstall keeps it
    from it (/usr/lib/dkms/common.postinst); its name, '' where there is no source."""
    ending = "-%s/dkms.conf" % version
    for path in host.glob("/usr/src/nvidia*" + ending):
        host.run(["dkms", "add", "%s/%s" % (path[len("/usr/src/"):-len(ending)], version)])
    return dkms_name(host, dkms_status(host), version)


def download_packages(host: Host, journal: Journal, step: Step) -> None:
    manager = manager_of_step(step)
    if manager is APT:
        lend(host, step.change["after"])
    try:
        manager.download(host, step)
    except CommandTimedOut:
        raise
    except CommandFailed as error:
        raise GpuOpsError(
            "driver.packages_not_fetched",
            found="not every package was fetched: %s" % error.found,
            wanted=", ".join("%s %s" % item for item in sorted(step.change["after"].items())),
            remedy="no package of this host has changed; see that the repository answers and has each file that its "
                   "index names (a mirror whose synchronization was stopped has not), and run this again",
            **error.details) from error
    keep_fetched(host, journal, step.change["after"], manager.installed(host))


def forget_repository(host: Host, journal: Journal, step: Step) -> None:
    for path in step.parameters["files"]:
        host.remove(path)


EXECUTORS: Dict[str, Executor] = {
    "dpkg.finish": finish_packages,
    **torn.EXECUTORS,
    **DNF.executors,
    **ZYPPER.executors,
    **record_executors.EXECUTORS,
    **runfile_executors.EXECUTORS,
    "dkms.build": build_module,
    **precompiled.EXECUTORS,
    **dkms_originals.EXECUTORS,
    PACKAGES_DOWNLOAD: download_packages,
    "repository.forget": forget_repository,
    **staging_executors.EXECUTORS,
    **enrollment.EXECUTORS,
}


def secret_executors(policy: Policy) -> Dict[str, Executor]:
    """Those that need what no step, plan or journal carries."""
    return {**credentials.executors(policy, {DNF.name: dnf_credentials.FORM}), **enrollment.secret_executors(policy),
            **runfile_executors.secret_executors(policy)}
