# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Building ahead, and taking it back. A build with its manifest is whole: that comes last, and goes first."""
from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Sequence

from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, CommandResult, CommandTimedOut, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor
from ..hardware.boot import installed_module
from ..packages.apt import database
from ..packages.managers import APT, ZYPPER, manager_of_step
from ..packages.provenance import Provenance
from ..packages.zypper import history as zypper_history
from . import archive
from .build_log import last_lines, last_log, refuse_hampered
from .kernels import remember_failure
from .record import is_archived
from .staged_build import (
    DKMS_SETTINGS,
    INPUTS,
    MODULES,
    SOURCE,
    STAGED,
    TAKE,
    directory,
    manifest,
    override_path,
    override_text,
    overrides,
    read_staged,
)
from .staging import STAGE, WITHDRAW
from .undisturbed import build_undisturbed

# Of DKMS, for a module that does not compile (dkms, report_build_problem)
_NOT_COMPILED = (7, 10)
# What kbuild reads of a kernel beside its headers, which come in one package with these
_INPUTS = ("Makefile", "Module.symvers", ".config", ".kernelvariables", "include/config/auto.conf",
           "include/generated/autoconf.h", "include/generated/compile.h", "include/generated/utsrelease.h")


def stage_module(host: Host, journal: Journal, step: Step) -> None:
    """Build a module for one kernel as DKMS would build it in the exchange, in a tree of ours.

    Nothing is signed there: DKMS signs what it takes, with the key that it has then. Work is of the lowest priority:
    GPUs and their programs are in use meanwhile. One that takes too long for a kernel that neither runs nor boots next
    holds up nothing.
    """
    discard(host, step.subject)
    try:
        _build_ahead(host, journal, step)
    except GpuOpsError as error:
        # What is left of it would hold the room that may be lacking
        discard(host, step.subject)
        if not isinstance(error, CommandTimedOut) or step.parameters["essential"]:
            raise
        remember_failure(host, journal, step.subject, step.change["after"]["nvidia"])


def _build_ahead(host: Host, journal: Journal, step: Step) -> None:
    kernel, version = step.subject, step.change["after"]["nvidia"]
    packages = step.parameters["packages"]
    place = directory(kernel)
    root, tree = place + "/work/root", place + "/work/tree"
    for made in (os.path.dirname(STAGED), STAGED, place, place + "/work", root, tree):
        host.make_directory(made, 0o755)
    for package, path in _files(host, packages).items():
        try:
            host.run(["dpkg-deb", "--extract", host.path(path), host.path(root)], timeout=600)
        except CommandFailed as error:
            damaged = archive.discard_damaged(host, {package: packages[package]})
            if not damaged:
                raise
            raise _lost("damaged, and were removed", damaged) from error
    name, why = _named(host, root, version), ""
    if name:
        argv = ["nice", "-n", "19", "dkms", "build", "--dkmstree", host.path(tree), "--sourcetree",
                host.path(root + "/usr/src"), "-m", name, "-v", version, "-k", kernel]
        made_of = ""

        def build(again: bool) -> CommandResult:
            nonlocal made_of
            if again:
                # DKMS builds nothing that it has built
                host.run(["rm", "--recursive", "--force", host.path(tree)], timeout=600)
                host.make_directory(tree, 0o755)
            made_of = _inputs(host, kernel, name, version)
            return host.run(argv, check=False, timeout=step.parameters["timeout"], env={"sign_file": "/nonexistent"})

        done = build_undisturbed(host, "%s/%s" % (name, version), kernel, build, tree=tree,
                                 has_changed=lambda: _inputs(host, kernel, name, version) != made_of)
        if done.rc != 0:
            refuse_hampered(host, kernel, done, tree=tree)
        if done.rc in _NOT_COMPILED:
            _tell_failure(host, journal, step, tree, done)
            return
        built = host.glob("%s/%s/%s/%s/*/module" % (tree, name, version, kernel))
        why = "" if done.rc == 0 and built else "dkms ended with %d (%s)" % (
            done.rc, last_lines(done.stderr or done.stdout))
    else:
        why = "%s have no /usr/src/nvidia*-%s with a dkms.conf" % (
            ", ".join("%s %s" % item for item in packages.items()), version)
    if not why and _is_of_somebody_else(host, override_path(name, version, kernel)):
        why = "%s is somebody else's" % override_path(name, version, kernel)
    if not why:
        _keep(host, kernel, name, version, built[0], made_of)
    host.run(["rm", "--recursive", "--force", host.path(place + "/work")], timeout=600)
    # Digests tell what a power cut has taken; a build that survives it is none to do again
    host.sync()
    host.write(place + "/stage.json", manifest(version, packages, why))


def _files(host: Host, packages: Mapping[str, str]) -> Dict[str, str]:
    """{package: its file}, from where apt keeps it or we do."""
    there = [(archive.STORE, name) for name in archive.kept(host)]
    there += [(database.archives_directory(host), name) for name in database.archives(host)]
    found = {name: "%s/%s" % each for name, version in packages.items() for each in reversed(there)
             if is_archived(name, version, [each[1]])}
    lost = sorted(set(packages).difference(found))
    if lost:
        raise _lost("gone", lost)
    return {name: found[name] for name in sorted(found)}


def _lost(how: str, files: Sequence[str]) -> GpuOpsError:
    return GpuOpsError(
        "driver.staged_archive_lost",
        found="package files that were fetched are %s: %s" % (how, ", ".join(files)),
        wanted="the files that the plan was made from, in %s" % archive.STORE,
        remedy="run again: they are fetched anew")


def _named(host: Host, root: str, version: str) -> str:
    """The name under which DKMS knows an unpacked driver, '' where there is none."""
    ending = "-%s/dkms.conf" % version
    return next((path[len(root + "/usr/src/"):-len(ending)]
                 for path in host.glob("%s/usr/src/nvidia*%s" % (root, ending))), "")


def _is_of_somebody_else(host: Host, path: str) -> bool:
    return host.exists(path) and path not in overrides(host)


def _tell_failure(host: Host, journal: Journal, step: Step, tree: str, done: CommandResult) -> None:
    """A kernel that neither runs nor boots next holds up nothing."""
    kernel, version = step.subject, step.change["after"]["nvidia"]
    told = last_log(host, tree=tree) or last_lines(done.stderr or done.stdout)
    if not step.parameters["essential"]:
        discard(host, kernel)
        remember_failure(host, journal, kernel, version)
        return
    raise GpuOpsError(
        "driver.kernel_module_not_built_ahead",
        found="the kernel module does not build for kernel %s: %s" % (kernel, told),
        wanted="module %s for the kernels that run and boot next" % version,
        remedy="choose a driver that knows this kernel, or boot another kernel; the driver that is there is untouched",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)


def _inputs(host: Host, kernel: str, name: str, version: str) -> str:
    """Digests of what a compiler reads beside the source, as sha256sum writes them; some of it may be on its way."""
    headers = ["/lib/modules/%s/build/%s" % (kernel, each) for each in _INPUTS]
    settings = ["%s/%s.conf" % (DKMS_SETTINGS, each) for each in (name, "%s-%s" % (name, version))]
    return host.run(
        ["sh", "-c", 'cd "$1" && shift && sha256sum "$@"', "sh", host.path("/"),
         *[path[1:] for path in (*headers, *settings) if host.is_file(path)]], check=False).stdout


def _keep(host: Host, kernel: str, name: str, version: str, built: str, made_of: str) -> None:
    """Take the modules out of the tree that they were built in, with the digests of what they were built of.

    made_of: digests of what is not the source, from before the build: what came later made another module.
    """
    place = directory(kernel)
    host.rename(built, place + "/modules")
    source = "usr/src/%s-%s" % (name, version)
    digests = {MODULES: ("/", place[1:] + "/modules"), SOURCE: (place + "/work/root", source)}
    for digest, (above, below) in digests.items():
        host.write("%s/%s" % (place, digest), host.run(
            ["sh", "-c", 'cd "$1" && find "$2" -type f -print0 | sort -z | xargs -0 sha256sum', "sh",
             host.path(above), below], timeout=600).stdout)
    host.write("%s/%s" % (place, INPUTS), made_of)
    host.write(place + "/take", TAKE, 0o755)
    host.write(override_path(name, version, kernel), override_text(kernel))


def discard(host: Host, kernel: str) -> None:
    """Have DKMS compile for a kernel, and remove what was built ahead for it."""
    for path, each in overrides(host).items():
        if each == kernel:
            host.remove(path)
    host.remove(directory(kernel) + "/stage.json")
    host.run(["rm", "--recursive", "--force", host.path(directory(kernel))], timeout=600)
    for above in (STAGED, os.path.dirname(STAGED)):
        host.remove_empty_dir(above)


def discard_used(host: Host) -> None:
    """Remove what was built ahead for kernels that have it."""
    for build in read_staged(host):
        if build.version and installed_module(host, build.kernel).version == build.version:
            discard(host, build.kernel)


def withdraw(host: Host, journal: Journal, step: Step) -> None:
    discard(host, step.subject)


class Books(Provenance):
    """A transaction finds the packages that were staged, and what it has taken of what was built ahead goes with it; so
    do files that have kept it from its end.
    """

    def opened(self, host: Host, step: Step, done: Sequence[str] = ()) -> Dict[str, Any]:
        if manager_of_step(step) is APT:
            archive.lend(host, step.change["after"])
        return super().opened(host, step, done)

    def settle(self, host: Host, journal: Journal, step: Step, opened: Mapping[str, Any]) -> None:
        super().settle(host, journal, step, opened)
        discard_used(host)
        if manager_of_step(step) is ZYPPER:
            # A killed module has not
            zypper_history.end(host, journal)
        if manager_of_step(step) is APT:
            there = APT.installed(host)
            lacks = {name: version for name, version in step.change["after"].items()
                     if version is not None and not (name in there and there[name].version == version)}
            if lacks:
                archive.discard_damaged(host, lacks)

    def failed(self, host: Host, step: Step) -> str:
        """The compiler's words, where a package of the transaction does not configure."""
        there = manager_of_step(step).installed(host)
        unfinished = sorted(name for name in step.change["after"] if name in there and there[name].unfinished)
        log = last_log(host) if unfinished else ""
        return "%s not configured; the build that failed last: %s" % (", ".join(unfinished), log) if log else ""


EXECUTORS: Dict[str, Executor] = {
    STAGE: stage_module,
    WITHDRAW: withdraw,
}
