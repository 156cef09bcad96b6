# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Building a module beside the driver's, and unloading one."""
from __future__ import annotations

from typing import Dict, Optional

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, run_argv
from ..core.versions import version_key
from ..hardware.boot import Module, module_file, read_module
from .build_log import last_lines, last_log, refuse_hampered
from .executors import check_signer, install_built
from .kernels import dkms_has_built, dkms_status
from .peer_builds import remember_built, remember_failed
from .peers import BUILD, UNLOAD


def build_peer(host: Host, journal: Journal, step: Step) -> None:
    """Build and install one module for one kernel and the driver that it has. What counts is the file that came.

    It is built even where DKMS has it for built: that was against another driver. A kernel that neither runs nor boots
    next holds up nothing.
    """
    given = step.parameters
    release, limit = given["kernel"], given["timeout"]
    version = _source(host, given["source"])
    if not version:
        raise GpuOpsError(
            "driver.peer_source_not_registered",
            found="dkms knows no source of %s, and there is none in /usr/src" % given["source"],
            wanted="the source of %s among the modules that dkms builds" % given["module"],
            remedy="see `dkms status`; reinstall the package that brings it")
    name = "%s/%s" % (given["source"], version)
    before = _stamp(host, release, given["module"])

    def built() -> Optional[Module]:
        path = module_file(host, release, given["module"])
        is_new = bool(path) and _stamp(host, release, given["module"]) != before
        is_installed = any(row[:3] == (given["source"], version, release) and row[3].startswith("installed")
                           for row in dkms_status(host))
        module = read_module(host, path) if is_new and is_installed else None
        return module if module and module.license else None

    done = install_built(host, name, release, limit, dkms_has_built(
        dkms_status(host), given["source"], version, release), lambda: built() is not None)
    module = built()
    if module is None:
        refuse_hampered(host, release, done, name)
        if not given["essential"]:
            remember_failed(host, journal, release, given["module"], given["driver"])
            return
        raise GpuOpsError(
            "driver.peer_module_not_built",
            found="%s does not build for kernel %s: %s" % (
                given["module"], release, last_log(host, name) or last_lines(done.stderr or done.stdout)),
            wanted="%s for the kernels that run and boot next, built for driver %s" % (
                given["module"], given["driver"]),
            remedy="choose a release of its package that knows this kernel and this driver, or leave it out of the "
                   "policy",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    if given["signed"]:
        check_signer(host, module, step)
    remember_built(host, journal, release, given["module"])


def _stamp(host: Host, release: str, module: str) -> object:
    path = module_file(host, release, module)
    made = host.stat(path) if path else None
    return (made.st_ino, made.st_size, made.st_mtime_ns, made.st_ctime_ns) if made else None


def _source(host: Host, name: str) -> str:
    """The newest version of a source that is there, known to DKMS; '' without one."""
    ending, beginning = "/dkms.conf", "/usr/src/%s-" % name
    versions = sorted((path[len(beginning):-len(ending)] for path in host.glob(beginning + "*" + ending)),
                      key=version_key)
    if not versions:
        return ""
    if not any(row[:2] == (name, versions[-1]) for row in dkms_status(host)):
        host.run(["dkms", "add", "%s/%s" % (name, versions[-1])], check=False)
    return versions[-1] if any(row[:2] == (name, versions[-1]) for row in dkms_status(host)) else ""


EXECUTORS: Dict[str, Executor] = {BUILD: build_peer, UNLOAD: run_argv}
