# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an apt repository offers, read in a scratch state directory; what dpkg has installed.

A repository that is not configured yet can be asked for its versions without a change on the host: apt gets its own
lists, caches and keyring below a temporary directory, while its proxies and credentials stay those of the system.
"""
from __future__ import annotations

import base64
import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from .errors import GpuOpsError
from .host import Done, Host

APT_HELPER = "/usr/lib/apt/apt-helper"
TIMEOUT_SECONDS = 600

# apt.conf(5): hooks of the system (cleaners, notifiers) must not run for a scratch index, and the sandbox user cannot
# read root's temporary directory. Error-Mode makes an unreachable repository an error instead of a warning.
# Without a delay between tries: apt 2.6 waits for ever when what it delays shares its host with what it fetches.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::Retries::Delay "false";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Dir::State "%(scratch)s/state";
Dir::State::status "%(status)s";
Dir::Cache "%(scratch)s/cache";
Dir::Log "%(scratch)s/log";
Dir::Etc::sourcelist "%(sources)s";
Dir::Etc::sourceparts "%(scratch)s/sources.d";
Dir::Etc::preferences "%(preferences)s";
Dir::Etc::preferencesparts "%(scratch)s/preferences.d";
"""


@dataclass(frozen=True)
class Repository:
    """An apt repository as we configure it.

    uri:        where it is.
    key:        its public key, ASCII-armoured.
    keyring:    path on the host where the key will lie (.asc).
    suites:     suites, '/' for a flat repository.
    components: components, none for a flat repository.
    """

    uri: str
    key: str
    keyring: str
    suites: Tuple[str, ...] = ("/",)
    components: Tuple[str, ...] = ()

    def sources(self, signed_by: str = "") -> str:
        """The deb822 stanza, see sources.list(5)."""
        lines = ["Types: deb", "URIs: " + self.uri, "Suites: " + " ".join(self.suites)]
        if self.components:
            lines.append("Components: " + " ".join(self.components))
        lines.append("Signed-By: " + (signed_by or self.keyring))
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Simulation:
    """What apt says a transaction would do.

    installs: {package: version} that it would unpack.
    removes:  packages that it would remove.
    problem:  why it would not do it, in apt's words; '' when it would.
    """

    installs: Mapping[str, str]
    removes: Tuple[str, ...]
    problem: str = ""


class Index:
    """An open scratch index; made by index()."""

    def __init__(self, host: Host, scratch: str, uri: str) -> None:
        self._host = host
        self._scratch = scratch
        self._options = ["-c", scratch + "/apt.conf"]
        self._uri = uri

    def run(self, program: str, *words: str, check: bool = True) -> Done:
        """A program of apt (apt-get, apt-cache) on this index and the installed packages of the host."""
        return self._host.run([program, *self._options, *words], check=check, timeout=TIMEOUT_SECONDS)

    def versions(self, packages: Iterable[str], uri: str = "") -> Dict[str, List[str]]:
        """Versions on offer of each package, newest first; an empty list for a package that is not there.

        uri: count only what this repository offers.
        """
        wanted = sorted(set(packages))
        offered: Dict[str, List[str]] = {name: [] for name in wanted}
        for line in self.run("apt-cache", "madison", *wanted, check=False).stdout.splitlines():
            name, version, kind = ([word.strip() for word in line.split("|")] + ["", ""])[:3]
            if not kind.endswith("Packages") or not kind.startswith(uri.rstrip("/")):
                continue
            if name in offered and version not in offered[name]:
                offered[name].append(version)
        return offered

    def names(self, pattern: str) -> List[str]:
        """Names of packages on offer that match a regular expression as a whole."""
        listed = self.run("apt-cache", "pkgnames").stdout.split()
        return sorted(name for name in listed if re.fullmatch(pattern, name))

    def prefer(self, preferences: str) -> None:
        """Let apt_preferences(5) of this text count from now on."""
        _put(self._scratch + "/preferences.d/gpuops", preferences)

    def simulate(self, words: Iterable[str]) -> Simulation:
        """What installing these packages ('name' or 'name=version') in one transaction would do."""
        done = self.run("apt-get", "--simulate", "-q", "-y", "--no-install-recommends", "--allow-downgrades", "install",
                        *words, check=False)
        installs, removes = parse_simulation(done.stdout)
        return Simulation(installs, removes, "" if done.rc == 0 else _objection(done))

    def update(self) -> None:
        done = self.run("apt-get", "update", "-q", check=False)
        # apt before 2.1 knows no Error-Mode and only warns
        if done.rc != 0 or "Failed to fetch" in done.stderr:
            raise _unreadable(self._uri, done)


@contextlib.contextmanager
def index(
    host: Host, repositories: Sequence[Repository], beside_system: bool = False, leave_out: Sequence[str] = ()
) -> Iterator[Index]:
    """The fresh indexes of repositories, in a temporary directory that goes with the context.

    beside_system: read the host's own sources and preferences too, so that whole transactions can be simulated.
    leave_out:     those of the host's own files that the repositories stand for.

    Raises GpuOpsError that names the repository when one cannot be reached or its signature is not by its key.
    """
    uris = " ".join(repository.uri for repository in repositories) or "a source of /etc/apt"
    with tempfile.TemporaryDirectory(prefix="gpuops-apt-") as scratch:
        for folder in ("state/lists/partial", "cache/archives/partial", "log", "sources.d", "preferences.d"):
            os.makedirs(os.path.join(scratch, folder))
        stanzas = []
        for number, repository in enumerate(repositories):
            signed_by = repository.keyring
            if repository.key:
                signed_by = "%s/%d.asc" % (scratch, number)
                _put(signed_by, repository.key)
            stanzas.append(repository.sources(signed_by=signed_by))
        if stanzas:
            _put(scratch + "/sources.d/gpuops.sources", "\n".join(stanzas))
        if beside_system:
            for folder, copies in (("sources.list.d", "sources.d"), ("preferences.d", "preferences.d")):
                _copy(host, "/etc/apt/" + folder, "%s/%s" % (scratch, copies), leave_out)
        _put(scratch + "/apt.conf", _CONFIGURATION % {
            "scratch": scratch,
            "status": host.path("/var/lib/dpkg/status"),
            "sources": host.path("/etc/apt/sources.list") if beside_system else scratch + "/none",
            "preferences": host.path("/etc/apt/preferences") if beside_system else scratch + "/none",
        })
        opened = Index(host, scratch, uris)
        opened.update()
        yield opened


def available(host: Host, repository: Repository, packages: Iterable[str]) -> Dict[str, List[str]]:
    """Versions of packages that a repository offers, newest first, whether it is configured on the host or not."""
    with index(host, [repository]) as opened:
        return opened.versions(packages)


def read_key(host: Host, key: str) -> str:
    """A repository's public key, ASCII-armoured, from a URL, from a path on the host or given as armoured text."""
    if "-----BEGIN PGP" in key:
        return key.strip() + "\n"
    data = host.read_bytes(re.sub(r"^file:(//)?", "", key)) if key.startswith(("/", "file:")) else _fetch(host, key)
    if data is None:
        raise GpuOpsError(
            found="no file %s on this host" % key,
            wanted="the repository's public key",
            remedy="give the key as a URL, as a path on the host, or as ASCII-armoured text",
        )
    return armoured(data)


def armoured(key: bytes) -> str:
    """An OpenPGP public key in ASCII armour (RFC 4880, section 6.2); armoured keys stay as they are."""
    if b"-----BEGIN PGP PUBLIC KEY BLOCK-----" in key:
        return key.decode("ascii", "replace").replace("\r\n", "\n").strip() + "\n"
    if not key or not key[0] & 0x80:
        raise GpuOpsError(
            found="%d bytes that are no OpenPGP public key" % len(key),
            wanted="a repository's public key, binary or ASCII-armoured",
            remedy="check the key's address: a proxy or a login page may have answered in its place",
        )
    body = base64.b64encode(key).decode()
    lines = [body[start:start + 64] for start in range(0, len(body), 64)]
    check = base64.b64encode(_crc24(key).to_bytes(3, "big")).decode()
    return "\n".join(
        ["-----BEGIN PGP PUBLIC KEY BLOCK-----", "", *lines, "=" + check, "-----END PGP PUBLIC KEY BLOCK-----", ""]
    )


def installed(host: Host, packages: Iterable[str]) -> Dict[str, Optional[str]]:
    """Installed version of each package, None when it is not installed (configuration left behind counts as not)."""
    wanted = sorted(set(packages))
    versions: Dict[str, Optional[str]] = dict.fromkeys(wanted)
    if not wanted or not host.which("dpkg-query"):
        return versions
    done = host.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *wanted], check=False
    )
    for line in done.stdout.splitlines():
        status, name, version = (line.split(" ", 2) + ["", ""])[:3]
        if status == "installed":
            versions[name] = version
    return versions


def removable(host: Host, packages: Iterable[str]) -> Tuple[str, ...]:
    """Those of our packages that can go without taking a package with them that is not ours.

    A dependency that our transaction brought in may serve a package that somebody installed since.
    """
    brought = set(packages)
    ours = tuple(sorted(name for name, version in installed(host, brought).items() if version is not None))
    # What never came to be configured is ours too, and goes along.
    if not ours or _removed_with(host, ours) <= brought:
        return ours
    return tuple(name for name in ours if _removed_with(host, [name]) <= brought)


def _removed_with(host: Host, packages: Sequence[str]) -> Set[str]:
    """Packages that apt would remove together with these."""
    done = host.run(["apt-get", "-s", "-q", "-o", "Debug::NoLocking=1", "remove", *packages], check=False)
    return {line.split()[1].split(":")[0] for line in done.stdout.splitlines() if line.startswith(("Remv ", "Purg "))}


def parse_simulation(output: str) -> Tuple[Dict[str, str], Tuple[str, ...]]:
    """({package: version} to unpack, packages to remove) of what 'apt-get --simulate' prints."""
    unpacked = re.findall(r"^Inst ([^\s:]+)(?::\S+)? (?:\[[^\]]*\] )?\((\S+) ", output, re.MULTILINE)
    removed = re.findall(r"^(?:Remv|Purg) ([^\s:]+)", output, re.MULTILINE)
    return dict(unpacked), tuple(sorted(set(removed)))


def _objection(done: Done) -> str:
    """Unmet dependencies, then apt's errors."""
    lines = done.stdout.splitlines()
    unmet = [" ".join(line.split()) for line in lines if re.search(r" : .*(Depends|Conflicts)", line)]
    return " | ".join(unmet + [line[2:].strip() for line in done.stderr.splitlines() if line.startswith("E:")])


def _copy(host: Host, origin: str, target: str, leave_out: Sequence[str]) -> None:
    for name in host.list(origin):
        path = "%s/%s" % (origin, name)
        if path not in leave_out:
            _put("%s/%s" % (target, name), host.read(path) or "")


def _fetch(host: Host, url: str) -> bytes:
    """A file by URL, through apt's own proxies, certificates and credentials."""
    with tempfile.TemporaryDirectory(prefix="gpuops-key-") as scratch:
        target = scratch + "/key"
        done = host.run(
            [APT_HELPER, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20",
             "-o", "Acquire::https::Timeout=20", "download-file", url, target],
            check=False,
        )
        if done.rc != 0 or not os.path.isfile(target):
            raise _unreadable(url, done)
        with open(target, "rb") as handle:
            return handle.read()


def _unreadable(uri: str, done: Done) -> GpuOpsError:
    told = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or done.stderr.splitlines()
    return GpuOpsError(
        found="%s cannot be read: %s" % (uri, " | ".join(told[:3]) or "no output"),
        wanted="a repository that answers and is signed by the key given for it",
        remedy="check address, key, proxy (apt's own settings are used) and network of this host, or name a mirror",
        cmd=list(done.argv),
        rc=done.rc,
        stderr=done.stderr,
    )


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)


def _crc24(data: bytes) -> int:
    """RFC 4880, section 6.1."""
    value = 0xB704CE
    for byte in data:
        value ^= byte << 16
        for _bit in range(8):
            value <<= 1
            if value & 0x1000000:
                value ^= 0x1864CFB
    return value & 0xFFFFFF
