# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What repositories offer, read into lists of ours, whether they are configured on the host or not.

apt gets its own lists, caches and keys, while its proxies, certificates and credentials stay those of the system. The
lists stay in /run until the next boot: whoever reads them again asks each repository whether its index has changed
(one conditional request), and fetches it only then. So they are never old, and a first installation, which plans for
several roles and again after each of them, fetches every index once.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError, HostFailed
from ...core.host import CommandResult, Host
from ...core.secrets import hidden
from ...core.waiting import wait_for
from .. import space
from ..given_key import read_given
from ..model import Credentials, Repository, RepositoryUnreadable, Simulation
from . import credentials, running
from .database import (
    ADMIN,
    archive_begins,
    archives,
    full_name,
    installed,
    interrupted,
    native,
    readable_marks,
    status,
)
from .transaction import install_words
from .versions import newest_first

APT_HELPER = "/usr/lib/apt/apt-helper"
LISTS = "/run/gpuops/apt"
OURS = "gpuops-nvidia-"
# Our files beside copies of the host's: no copy has such a name
OWN = OURS + "scratch"
TIMEOUT_SECONDS = 600
PAUSE_SECONDS = 0.2
# What lists and caches of a distribution and NVIDIA's repository hold, compressed; a smaller /run is left alone.
ROOM_BYTES = 300 * 1024 * 1024

# apt.conf(5): hooks of the system (cleaners, notifiers) must not run for a scratch index, whose lists and archives are
# not where the system has its own, and the sandbox user cannot read root's directories. Without a delay between tries:
# apt 2.6 waits for ever when what it delays shares its host with what it fetches. A foreign source that cannot be read
# is a warning, see Index.update.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Get::List-Cleanup "false";
APT::Sandbox::User "root";
Acquire::GzipIndexes "true";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::Retries::Delay "false";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Dir "%(root)s";
Dir::State "%(lists)s/state";
Dir::State::status "%(status)s";
Dir::State::extended_states "%(marks)s";
Dir::State::lists "lists";
Dir::Cache "%(lists)s/cache";
Dir::Cache::archives "archives";
Dir::Log "%(scratch)s/log";
Dir::Etc::sourcelist "%(sources)s";
Dir::Etc::sourceparts "%(scratch)s/sources.d";
Dir::Etc::preferences "%(preferences)s";
Dir::Etc::preferencesparts "%(scratch)s/preferences.d";
Dir::Etc::netrcparts "%(scratch)s/auth.d";
"""

_SUMMARY = "Some index files failed to download"
_UNPARSED = "The list of sources could not be read"
# An errno in apt's words that no source is named with
_OF_THIS_HOST = re.compile(r"E:(?!.*://).* \(\d+: [^()]+\)$")


@dataclass(frozen=True)
class Preference:
    """What apt_preferences(5), releases that come only when asked for (backports) and phased updates make of a package.

    candidate:  version that apt would install, '' for none.
    priorities: {version: its priority}, the installed one included.
    """

    candidate: str
    priorities: Mapping[str, int]


class Index:
    """Open lists; made by index().

    unread: what could not be read of sources that are not ours, in apt's words.
    """

    # apt passes over what it cannot read
    without: Tuple[str, ...] = ()

    def __init__(self, host: Host, scratch: str, repositories: Sequence[Repository], files: str = "") -> None:
        self._host = host
        self._scratch = scratch
        self._options = ["-c", scratch + "/apt.conf"]
        self._repositories = repositories
        self._files = _named(files)
        self.unread: Tuple[str, ...] = ()

    def run(self, program: str, *words: str) -> CommandResult:
        """A program of apt (apt-get, apt-cache) on these lists and the installed packages of the host."""
        return self._host.run([program, *self._options, *words], check=False, timeout=TIMEOUT_SECONDS)

    def versions(self, packages: Iterable[str], uri: str = "") -> Dict[str, List[str]]:
        """Versions on offer of each package, newest first; an empty list for a package that is not there.

        uri: count only what this repository offers.
        """
        wanted = sorted(set(packages))
        offered: Dict[str, List[str]] = {name: [] for name in wanted}
        if not wanted:
            return offered
        for line in self.run("apt-cache", "madison", *wanted).stdout.splitlines():
            name, version, kind = ([word.strip() for word in line.split("|")] + ["", ""])[:3]
            if not kind.endswith("Packages") or not kind.startswith(uri.rstrip("/")):
                continue
            if name in offered and version not in offered[name]:
                offered[name].append(version)
        return {name: newest_first(found) for name, found in offered.items()}

    def preference(self, packages: Iterable[str]) -> Dict[str, Preference]:
        """What apt itself would choose of each package; those that it does not know are left out."""
        wanted = sorted(set(packages))
        return parse_policy(self.run("apt-cache", "policy", *wanted).stdout) if wanted else {}

    def prefer(self, preferences: str) -> None:
        """Let apt_preferences(5) of this text count from now on, '' for those of the host alone."""
        _put("%s/preferences.d/%s" % (self._scratch, OWN), preferences)

    def hold(self, files: Mapping[str, Optional[str]]) -> None:
        """See manager.Index.hold()."""
        self.prefer("\n".join(text for text in files.values() if text))

    def suppose_unpacked(self, packages: Mapping[str, str]) -> None:
        """Let the host count from now on as it will be once dpkg has unpacked these versions, and configured none."""
        supposed = {}
        for name, version in packages.items():
            stanza = self.run("apt-cache", "show", "%s=%s" % (name, version)).stdout.split("\n\n")[0].strip()
            if stanza:
                supposed[name] = "Status: install ok unpacked\n" + stanza
        _put(self._scratch + "/status", status(self._host, supposed))
        self._options = [*self._options, "-o", "Dir::State::status=%s/status" % self._scratch]

    def simulate(self, request: Mapping[str, str], allow_downgrade: bool = False) -> Simulation:
        """What this transaction would do, under the options that it will have."""
        return self.simulate_without(request, (), allow_downgrade)

    def simulate_without(
        self, request: Mapping[str, str], gone: Sequence[str], allow_downgrade: bool = False
    ) -> Simulation:
        """The same, where these packages go with it."""
        done = self.run("apt-get", "--simulate", "-q",
                        *install_words({**request, **dict.fromkeys(gone)}, allow_downgrade))
        told = simulated(done, native(self._host))
        download, unpacked = (0, 0) if told.problem else self._sizes(told.installs)
        return replace(told, request=dict(request), allow_downgrade=allow_downgrade, download=download,
                       unpacked=unpacked, leaves=tuple(gone))

    def simulate_removal(self, packages: Iterable[str]) -> Simulation:
        """What else would go if these packages went."""
        there = installed(self._host)
        wanted = sorted(name for name in set(packages) if name in there and there[name].there)
        done = self.run("apt-get", "--simulate", "-q", "-y", "remove", *wanted)
        return replace(simulated(done, native(self._host)), request={name: there[name].version for name in wanted})

    def missing(self) -> Dict[str, str]:
        """{package: version} that what a stopped transaction has unpacked depends on, and that is not there.

        apt refuses a request that leaves it out: it takes no names and a repair of its own in one transaction.
        """
        return parse_simulation(self.run("apt-get", "--simulate", "-q", "-y", "--fix-broken", "install").stdout,
                                native(self._host))[0]

    def _sizes(self, installs: Mapping[str, str]) -> Tuple[int, int]:
        """Bytes to fetch, of what is on the host already none, and bytes unpacked, as their index has them."""
        if not installs:
            return 0, 0
        listed = self.run("apt-cache", "show", *("%s=%s" % item for item in sorted(installs.items()))).stdout
        fetched = tuple(name.lower() for name in archives(self._host))
        found: Dict[Tuple[str, str], Tuple[int, int]] = {}
        for stanza in listed.split("\n\n"):
            fields = dict(re.findall(r"(?m)^(Package|Version|Size|Installed-Size): *(\S+)", stanza))
            if "Package" in fields:
                package = fields["Package"], fields.get("Version", "")
                there = package in self._files or any(
                    name.startswith(archive_begins(*package).lower()) for name in fetched)
                found[package] = (0 if there else int(fields.get("Size", 0)),
                                  1024 * int(fields.get("Installed-Size", 0)))
        return sum(size for size, _unpacked in found.values()), sum(size for _download, size in found.values())

    def update(self) -> None:
        """Read what has changed. Raises GpuOpsError that names a repository of ours that cannot be read."""
        # The apt-get of a reader that was killed lives on, and has our lists' lock
        done = running.unlocked(lambda: self.run("apt-get", "update", "-q"))
        told = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
        for repository in self._repositories:
            about = [line for line in told if re.search(re.escape(repository.uri.rstrip("/")) + r"(/|\s|'|$)", line)]
            if any(_is_failure(line) for line in about):
                raise unreadable(repository.uri, done, about)
        self.unread = tuple(hidden(line[2:].strip()) for line in told if _is_failure(line) and _SUMMARY not in line)
        if any(_UNPARSED in line for line in told) or (done.rc != 0 and not self.unread):
            failed = unreadable("a source of /etc/apt", done, told)
            raise GpuOpsError.because(failed.refusals, **failed.details)
        failures = [line for line in told if _OF_THIS_HOST.match(line)]
        if failures:
            raise GpuOpsError(
                "packages.lists_not_written",
                found="apt cannot write its lists: %s" % " | ".join(failures[:3]),
                wanted="lists of packages as they are now",
                remedy="free space where it says so (`df -h`, `df -i`), or see `dmesg`; and run again",
                cmd=list(done.argv), rc=done.rc, stderr=done.stderr,
            )


@contextlib.contextmanager
def index(
    host: Host, repositories: Sequence[Repository], beside_system: bool = False, files: str = ""
) -> Iterator[Index]:
    """The indexes of repositories as they are now.

    beside_system: read the host's own sources and preferences too, so that whole transactions can be simulated. Our
                   own files among them do not count: the repositories, and Index.prefer, stand for them.
    files:         the index of package files that lie on the host; they count as a repository that is trusted.

    Raises GpuOpsError that names the repository when one of ours cannot be reached or is not signed by its key.
    """
    with host.scratch() as scratch, _lists(host, scratch) as lists:
        for directory in ("log", "sources.d", "preferences.d", "auth.d"):
            os.makedirs(os.path.join(scratch, directory))
        _put_sources(lists, scratch, [*repositories, *_of_files(lists, files)])
        _put_credentials(host, scratch, repositories)
        if beside_system:
            _copy(host, "/etc/apt/sources.list.d", scratch + "/sources.d", (".list", ".sources"))
            _copy(host, "/etc/apt/preferences.d", scratch + "/preferences.d")
        _put(scratch + "/apt.conf", _CONFIGURATION % {
            "root": host.path("/"),
            "lists": lists,
            "scratch": scratch,
            "status": host.path(ADMIN + "/status"),
            "marks": readable_marks(host),
            "sources": host.path("/etc/apt/sources.list") if beside_system else scratch + "/none",
            "preferences": host.path("/etc/apt/preferences") if beside_system else scratch + "/none",
        })
        opened = Index(host, scratch, repositories, files)
        if interrupted(host):
            opened.suppose_unpacked({})
        opened.update()
        yield opened


def fetch(host: Host, url: str, told: Optional[Credentials] = None) -> bytes:
    """A file by URL, through apt's own proxies, certificates and credentials, or those that are told."""
    with host.scratch() as scratch:
        target = scratch + "/key"
        done = download(host, url, target, told, TIMEOUT_SECONDS)
        if done.rc != 0 or not os.path.isfile(target):
            raise unreadable(url, done, [])
        with open(target, "rb") as handle:
            return handle.read()


def download(host: Host, url: str, target: str, told: Optional[Credentials], timeout: float) -> CommandResult:
    """Fetch a file into a real path, as fetch() does; apt-helper's end tells whether it came."""
    with host.scratch() as scratch:
        os.makedirs(scratch + "/auth.d")
        _put_credentials(host, scratch, [Repository(url, "", "", credentials=told)])
        return host.run(
            [APT_HELPER, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20",
             "-o", "Acquire::https::Timeout=20", "-o", "Dir::Etc::netrcparts=%s/auth.d" % scratch,
             "download-file", url, target],
            check=False, timeout=timeout)


def read_key(host: Host, key: str, told: Optional[Credentials] = None) -> str:
    """A repository's public key, armoured from what was read of it: a URL, a path on the host or armoured text."""
    return read_given(host, key, lambda url: fetch(host, url, told))


def simulated(done: CommandResult, native_architecture: str) -> Simulation:
    """Pure: what 'apt-get --simulate' says that it would do."""
    installs, removes, before = parse_simulation(done.stdout, native_architecture)
    return Simulation(installs, removes, "" if done.rc == 0 else _objection(done), before, held=_held(done.stdout))


def parse_simulation(
    output: str, native_architecture: str = ""
) -> Tuple[Dict[str, str], Tuple[str, ...], Dict[str, str]]:
    """({package: version} to unpack, packages to remove, {package: version before}) of 'apt-get --simulate'."""
    installs: Dict[str, str] = {}
    before: Dict[str, str] = {}
    removes = set()
    for verb, name, old, new in re.findall(
        r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+) [^)]*\))?", output, re.MULTILINE
    ):
        bare, colon, arch = name.partition(":")
        name = full_name(bare, arch, native_architecture or "none") if colon else bare
        if old:
            before[name] = old
        if verb == "Inst":
            installs[name] = new
        else:
            removes.add(name)
    return installs, tuple(sorted(removes)), before


def parse_policy(output: str) -> Dict[str, Preference]:
    """{package: preference} of 'apt-cache policy'."""
    found: Dict[str, Preference] = {}
    for block in re.split(r"^(?=\S)", output, flags=re.MULTILINE):
        name, _colon, rest = block.partition(":\n")
        candidate = re.search(r"^  Candidate: (\S+)$", rest, re.MULTILINE)
        if candidate:
            versions = re.findall(r"^ (?:\*\*\*|   ) (\S+) (-?\d+)", rest, re.MULTILINE)
            found[name] = Preference(candidate.group(1).replace("(none)", ""),
                                     {version: int(priority) for version, priority in versions})
    return found


def unreadable(uri: str, done: CommandResult, told: Sequence[str]) -> RepositoryUnreadable:
    lines = [line for line in told or done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    return RepositoryUnreadable(
        "packages.repository_unreadable",
        found="%s cannot be read: %s" % (uri, " | ".join(lines[:3] or done.stderr.splitlines()[:3]) or "no output"),
        wanted="a repository that answers and is signed by the key given for it",
        remedy="check address, key, credentials, proxy (apt's own settings are used) and network of this host, or name "
               "a mirror",
        cmd=list(done.argv),
        rc=done.rc,
        stderr=done.stderr,
    )


@contextlib.contextmanager
def _lists(host: Host, scratch: str) -> Iterator[str]:
    """The directory of our lists, for us alone as long as the context lasts."""
    directory = host.path(LISTS)
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            lock = stack.enter_context(open(directory + "/lock", "a+", encoding="ascii"))
        except OSError:
            # Whoever is not root reads his own lists and forgets them
            directory = scratch + "/lists"
        else:
            _lock(lock.fileno(), directory)
            if host.free(LISTS) + space.held_by(host, LISTS) < ROOM_BYTES:
                directory = scratch + "/lists"
        for name in ("state/lists/partial", "cache/archives/partial", "keys"):
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        yield directory


def _lock(descriptor: int, directory: str) -> None:
    def lock() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    _answer, ours = wait_for(lock, bool, TIMEOUT_SECONDS, PAUSE_SECONDS)
    if not ours:
        raise GpuOpsError(
            "packages.lists_locked",
            found="another run has been reading package indexes in %s for %d s" % (directory, TIMEOUT_SECONDS),
            wanted="the lists for one run at a time",
            remedy="see what it waits for (`fuser %s/lock`), and run again" % directory,
        )


def _put_sources(lists: str, scratch: str, repositories: Sequence[Repository]) -> None:
    """Our repositories; each key lies under its own hash, so that an index is never checked with another one."""
    stanzas = []
    for repository in repositories:
        signed_by = repository.keyring
        if repository.key:
            signed_by = "%s/keys/%s.asc" % (lists, hashlib.sha256(repository.key.encode()).hexdigest()[:20])
            _put(signed_by, repository.key)
        stanzas.append(repository.sources(signed_by=signed_by))
    if stanzas:
        _put("%s/sources.d/%s.sources" % (scratch, OWN), "\n".join(stanzas))


def _of_files(lists: str, files: str) -> List[Repository]:
    """A repository with this index, which stays where it is, so that apt has one list of it and not one a call."""
    if not files:
        return []
    os.makedirs(lists + "/files", exist_ok=True)
    _put(lists + "/files/Packages", files)
    return [Repository("file:%s/files/" % lists, "", "", is_trusted=True)]


def _put_credentials(host: Host, scratch: str, repositories: Sequence[Repository]) -> None:
    """Ours, and those of others on the host; the scratch directory is its owner's alone."""
    ours = [credentials.text(each.uri, each.credentials) for each in repositories if each.credentials]
    if ours:
        _put("%s/auth.d/%s.conf" % (scratch, OWN), "".join(ours))
    _copy(host, credentials.DIRECTORY, scratch + "/auth.d", (".conf",))


def _copy(host: Host, origin: str, target: str, endings: Tuple[str, ...] = ("",)) -> None:
    """The files of others in a directory of apt."""
    for name in host.list(origin):
        path = "%s/%s" % (origin, name)
        if name.startswith(OURS) or not name.endswith(endings) or host.is_dir(path):
            continue
        text = host.read(path)
        if text is not None:
            _put("%s/%s" % (target, name), text)


def _named(index: str) -> FrozenSet[Tuple[str, str]]:
    """(package, version) of every stanza of an index."""
    fields = (dict(re.findall(r"(?m)^(Package|Version): *(\S+)", stanza)) for stanza in index.split("\n\n"))
    return frozenset((each["Package"], each["Version"]) for each in fields if len(each) == 2)


def _is_failure(line: str) -> bool:
    """Whether a line of apt says that an index was not read; it also warns of weak keys and of odd entries."""
    return bool(re.match(r"E:", line) or re.match(
        r"W:.*(Failed to fetch|failed to download|could not be (verified|downloaded)|is not signed|GPG error|is expired"
        r"|not available|NO_PUBKEY|error occurred during the signature verification)", line))


def _objection(done: CommandResult) -> str:
    """Unmet dependencies, then apt's errors."""
    lines = done.stdout.splitlines()
    unmet = [" ".join(line.split()) for line in lines if re.search(r" : .*(Depends|Conflicts)", line)]
    return " | ".join(unmet + [line[2:].strip() for line in done.stderr.splitlines() if line.startswith("E:")])


def _held(output: str) -> Tuple[str, ...]:
    """Names in apt's list of held packages that would be changed."""
    listed = re.search(r"^The following held packages will be changed:\n((?:  .*\n)+)", output, re.MULTILINE)
    return tuple(sorted(listed.group(1).split())) if listed else ()


def _put(path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(text)
    except OSError as error:
        raise HostFailed.of(error, path, "written", os.path.dirname(path)) from error
