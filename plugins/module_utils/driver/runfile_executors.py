# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fetching NVIDIA's installer, and installing by it.

Whatever is not as expected of the file is found when it is fetched, before anything else on the host changes. From its
first file on, HALF tells that the host has half of a driver, and a copy of the installer how it goes (see runfile.py).

What is relied upon of it (nvidia-installer 535.43.02 to 590.48.01: option_table.h, nvidia-installer.c, manifest.c,
files.c; the archive around it as NVIDIA/gpu-driver-container uses it)
  sh FILE -x       unpacks into a directory of its name, below the one that it is called in
  .manifest        names version and kernel modules in its second and fourth line
  kernel, kernel-open
                   the source of the proprietary and of the open module, each with a dkms.conf whose tokens are to be
                   replaced; process_dkms_conf() does that only where the installer builds modules itself
  its end          is 0 where a driver was installed, 1 where anything went wrong
"""
from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import OPEN, PROPRIETARY
from ..core.host import CommandResult, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor
from ..hardware.runfile import MEMORY
from ..packages.managers import manager_of_step
from . import runfile, runfile_removal
from .policy import Policy
from .record import MEMORY as RECORD
from .record import of_dict
from .runfile import BESIDE, COPY, HALF, JUDGED, MARK, STORE, WORK, cached, cached_path, source_directory
from .runfile_plan import ARCHITECTURES, FETCH, FORGET, INSTALL
from .runfile_removal import clear_source, remove_source, remove_tree, remove_unlisted

_FETCHED = STORE + "/.fetched"
_DIRECTORIES = {OPEN: "kernel-open", PROPRIETARY: "kernel"}
# No modules: see runfile_plan.py. Its units are of suspend and resume, and reloading systemd for them takes GPUs from
# running containers. Packages in the way, nouveau and hooks of the distribution are judged by the plan.
_OPTIONS = ("--silent", "--no-kernel-modules", "--no-nouveau-check", "--no-x-check", "--no-rpms",
            "--no-check-for-alternate-installs", "--no-distro-scripts", "--no-systemd")
_HEADLESS = ("--no-opengl-files", "--no-wine-files")
# Known to the installer for this architecture alone
_OF_ARCHITECTURE = {"x86_64": ("--no-install-compat32-libs",)}
_TOKEN = re.compile(r"__[A-Z][A-Z_]+")
# As the installer limits itself
_JOBS = 32
# Lines before that of the first file, and types of files that are not installed (install-from-cwd.c, parse_manifest())
_FIRST_FILE = 8
_SOURCES = frozenset(("KERNEL_MODULE_SRC", "DKMS_CONF"))


class _NotUnderstood(Exception):
    """What of a file is not as it was taken for."""


def fetcher(policy: Policy) -> Executor:
    """The executor of FETCH; what the place asks for is in no step."""

    def fetch(host: Host, journal: Journal, step: Step) -> None:
        place, wanted = step.parameters["place"], step.change["after"]["sha256"]
        host.make_directory(os.path.dirname(STORE), 0o755)
        host.make_directory(STORE, 0o700)
        host.remove(_FETCHED)
        try:
            _bring(host, policy, step)
            found = host.sha256(_FETCHED)
            if found != wanted:
                raise GpuOpsError(
                    "driver.runfile_checksum_differs",
                    found="%s has sha256:%s" % (place, found), wanted="sha256:%s" % wanted,
                    remedy="see that `version` and `runfile_checksum` are of one file, and that it came whole: nothing "
                           "has been installed", option="runfile_checksum")
            host.run(["chmod", "0600", host.path(_FETCHED)])
            _judge(host, step)
            host.sync()
            _remove_names(host, wanted)
            host.rename(_FETCHED, cached_path(step.parameters["version"], wanted))
        finally:
            host.remove(_FETCHED)

    return fetch


def _bring(host: Host, policy: Policy, step: Step) -> None:
    place, timeout, manager = step.parameters["place"], step.parameters["timeout"], manager_of_step(step)
    if place.startswith("/"):
        done = host.run(["cp", host.path(place), host.path(_FETCHED)], check=False, timeout=timeout)
    else:
        done = manager.fetch(host, place, host.path(_FETCHED), policy.runfile_credentials, timeout)
    if done.rc != 0 or not host.is_file(_FETCHED):
        raise _not_fetched(place, done, manager.name)


def _judge(host: Host, step: Step) -> None:
    """Whether it is the driver that is wanted, for this machine, in a form that is known. Of the other module that it
    has the source of, too: once it is in the store nobody asks again."""
    version, arch = step.parameters["version"], step.parameters["arch"]
    with _unpacked(host, _FETCHED, JUDGED, step, version, "nothing has been installed") as unpacked:
        machine = machine_of(host.read_bytes(unpacked + "/nvidia-installer") or b"")
        if machine not in (None, ARCHITECTURES[arch]):
            raise _NotUnderstood("it is for machines of number %d (e_machine), and %s has %d" % (
                machine, arch, ARCHITECTURES[arch]))
        _names, modules = _manifest(host, unpacked, version)
        for kind, directory in _DIRECTORIES.items():
            source = "%s/%s" % (unpacked, directory)
            if kind == step.parameters["module"] or host.is_dir(source):
                _configuration(host, source, version, modules)


def machine_of(program: bytes) -> Optional[int]:
    """The machine that a program is for, as its ELF header numbers it (elf(5), e_machine); None of what is no ELF."""
    if not program.startswith(b"\x7fELF"):
        return None
    return int.from_bytes(program[18:20], "big" if program[5:6] == b"\2" else "little")


def _remove_names(host: Host, sha256_of: str) -> None:
    """A file that was taken for another version has another name, and is looked for by its own alone."""
    for name in host.list(STORE):
        if name.endswith("-%s.run" % sha256_of):
            host.remove("%s/%s" % (STORE, name))


def _not_fetched(place: str, done: CommandResult, manager: str) -> GpuOpsError:
    told = " | ".join((done.stderr or done.stdout).splitlines()[-3:]) or "it ended with %d" % done.rc
    return GpuOpsError(
        "driver.runfile_not_fetched",
        found="%s cannot be fetched: %s" % (place, told), wanted="NVIDIA's installer",
        remedy="check `runfile` and `version`, this host's network and proxy (%s's), and the space in %s" % (
            manager, STORE),
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr, option="runfile")


def install(host: Host, journal: Journal, step: Step) -> None:
    version, kind = step.change["after"]["driver"], step.parameters["module"]
    file = cached_path(version, step.parameters["sha256"])
    if not runfile.is_whole(host, version, step.parameters["sha256"]):
        host.remove(file)
        raise GpuOpsError(
            "driver.runfile_lost", found="the file that was fetched is gone or damaged: %s" % file,
            wanted="NVIDIA's installer %s" % version, remedy="run again: it is fetched anew")
    end = ("none of its files is there, and a driver whose place it was to take is gone (`state: rolled_back` brings "
           "back one that is recorded)")
    with _unpacked(host, file, WORK, step, version, end) as unpacked:
        source = "%s/%s" % (unpacked, _DIRECTORIES[kind])
        names, modules = _manifest(host, unpacked, version)
        configuration = _configuration(host, source, version, modules)
        host.write(HALF, "".join(name + "\n" for name in names), 0o600)
        try:
            _run_installer(host, unpacked, step, version)
        except BaseException:
            # As long as there is what it was copied from
            remove_unlisted(host)
            host.sync()
            raise
        _lay_source(host, source, version, kind, configuration)
        journal.remember(MEMORY, {
            "schema": runfile.SCHEMA, "version": version,
            "sha256": step.parameters["sha256"], "flavour": step.parameters["flavour"]})
        host.sync()
        host.remove(HALF)
        host.remove(COPY)
    _prune(host, journal, step.parameters["sha256"])


def _run_installer(host: Host, unpacked: str, step: Step, version: str) -> None:
    host.write_bytes(COPY, host.read_bytes(unpacked + "/nvidia-installer") or b"", 0o700)
    options = [*_OPTIONS, "--tmpdir=" + host.path(WORK)]
    if step.parameters["flavour"] == "headless":
        options += [*_HEADLESS, *_OF_ARCHITECTURE.get(step.parameters["arch"], ())]
    done = host.run([host.path(unpacked + "/nvidia-installer"), *options], check=False,
                    timeout=step.parameters["timeout"])
    there = runfile.version(host)
    if done.rc != 0 or there != version:
        raise GpuOpsError(
            "driver.runfile_not_installed",
            found="nvidia-installer ended with %d, and its list is of driver %s: %s" % (
                done.rc, there or "(none)",
                " | ".join((done.stderr or done.stdout).splitlines()[-3:]) or "it says nothing"),
            wanted="driver %s" % version,
            remedy="see /var/log/nvidia-installer.log; the next run takes away what it has left, and installs again",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)


@contextmanager
def _unpacked(host: Host, file: str, place: str, step: Step, version: str, end: str) -> Iterator[str]:
    """The directory with what is in the file, as long as it is needed. end: how the host is where that is not what it
    was taken for."""
    try:
        yield _unpack(host, file, place, step.parameters["timeout"])
    except _NotUnderstood as why:
        raise GpuOpsError(
            "driver.runfile_not_understood", found="of NVIDIA's installer: %s" % why,
            wanted="NVIDIA's installer of driver %s for %s, as it is since branch 535" % (
                version, step.parameters["arch"]),
            remedy="see that `version`, `runfile` and `runfile_checksum` are of one file; %s" % end,
            option="runfile") from None
    finally:
        remove_tree(host, place)


def _unpack(host: Host, file: str, place: str, timeout: float) -> str:
    """The directory with what is in the file."""
    remove_tree(host, place)
    host.make_directory(place, 0o700)
    done = host.run(["sh", "-c", 'cd "$1" && exec sh "$2" -x', "sh", host.path(place), host.path(file)], check=False,
                    timeout=timeout)
    found = [path.rpartition("/")[0] for path in host.glob(place + "/*/nvidia-installer")]
    if done.rc != 0 or len(found) != 1:
        raise _NotUnderstood("it does not unpack: %s" % (
            " | ".join((done.stderr or done.stdout).splitlines()[-3:]) or "it ended with %d" % done.rc))
    return found[0]


def _manifest(host: Host, unpacked: str, version: str) -> Tuple[List[str], List[str]]:
    """(names of the files, names of kernel modules) of a driver that is the one it was taken for."""
    lines = (host.read(unpacked + "/.manifest") or "").split("\n")
    told = lines[1] if len(lines) > _FIRST_FILE else ""
    if told != version:
        raise _NotUnderstood("it is of driver %s" % (told or "(none)"))
    files = (line.split() for line in lines[_FIRST_FILE:] if line.strip())
    return [os.path.basename(words[0]) for words in files if not _SOURCES.intersection(words)], lines[3].split()


def _configuration(host: Host, source: str, version: str, modules: Sequence[str]) -> str:
    """What DKMS is told of the module's source."""
    template = host.read(source + "/dkms.conf")
    if template is None or not modules:
        raise _NotUnderstood("it has no %s/dkms.conf, and modules %s" % (
            source.rpartition("/")[2], ", ".join(modules) or "(none)"))
    text = configuration_text(template, version, modules, min(os.cpu_count() or 1, _JOBS))
    left = sorted(set(_TOKEN.findall(text)))
    if left or "PACKAGE_NAME=\"nvidia\"" not in text or version not in text:
        raise _NotUnderstood("its %s/dkms.conf has %s" % (
            source.rpartition("/")[2], ", ".join(left) or "another name or version"))
    return text


def configuration_text(template: str, version: str, modules: Sequence[str], jobs: int) -> str:
    """As the installer makes it (files.c, process_dkms_conf())."""
    listed = "".join('BUILT_MODULE_NAME[%d]="%s"\nDEST_MODULE_LOCATION[%d]="/kernel/drivers/video"\n' % (
        number, name, number) for number, name in enumerate(modules))
    for token, value in (("__VERSION_STRING", version), ("__DKMS_MODULES", listed), ("__JOBS", str(jobs)),
                         ("__EXCLUDE_MODULES", ""), ("will be generated", "was generated")):
        template = template.replace(token, value)
    return template


def _lay_source(host: Host, source: str, version: str, kind: str, configuration: str) -> None:
    """Where DKMS looks for it; under its name only once all of it is there."""
    clear_source(host, version)
    host.run(["cp", "--recursive", "--no-preserve=ownership", host.path(source), host.path(BESIDE)], timeout=600)
    host.write(BESIDE + "/dkms.conf", configuration)
    host.write("%s/%s" % (BESIDE, MARK), kind + "\n")
    host.sync()
    host.rename(BESIDE, source_directory(version))


def _prune(host: Host, journal: Journal, *stays: str) -> None:
    """What is neither installed nor recorded goes."""
    record = of_dict(journal.recall(RECORD))
    kept = {*stays, *([record.runfile.get("sha256", "")] if record else ())}
    for each, version in cached(host).items():
        if each not in kept:
            host.remove(cached_path(version, each))


def forget(host: Host, journal: Journal, step: Step) -> None:
    """The memory, by which the next run would do it once more, goes last."""
    for version in step.parameters["sources"]:
        remove_source(host, version)
    for tree in (BESIDE, STORE):
        remove_tree(host, tree)
    host.remove_empty_dir(os.path.dirname(STORE))
    if "driver" in step.change["before"]:
        journal.remember(MEMORY, {})


def secret_executors(policy: Policy) -> Dict[str, Executor]:
    return {FETCH: fetcher(policy)}


EXECUTORS: Dict[str, Executor] = {**runfile_removal.EXECUTORS, INSTALL: install, FORGET: forget}
