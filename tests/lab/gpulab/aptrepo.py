# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian packages and signed apt repositories, made with dpkg-deb and gpg alone.

Nothing here knows what is inside a package: `Deb` says it, `pack` writes the file, `index_flat` and `index_suite`
make a directory of files into a repository that apt accepts with Signed-By.
"""
from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

from gpulab.cache import Job, Part

# A fixed time keeps packages byte-equal between two builds from the same inputs.
EPOCH = 1767225600
RELEASE_DATE = "Thu, 01 Jan 2026 00:00:00 UTC"

PUBLIC_KEY = "gpulab.pub"
_SECRET_KEY = "gpulab.secret"
_KEY_OWNER = "gpulab package signing <packages@gpulab.invalid>"


@dataclass(frozen=True)
class File:
    """A file in a package: its content, or the path of a built file to copy."""

    content: Union[bytes, str, Path]
    mode: int = 0o644


@dataclass(frozen=True)
class Deb:
    """What one binary package is; relations are written as in a control file."""

    name: str
    version: str
    summary: str
    details: str = ""
    architecture: str = "amd64"
    section: str = "utils"
    source: str = ""
    depends: Tuple[str, ...] = ()
    recommends: Tuple[str, ...] = ()
    provides: Tuple[str, ...] = ()
    conflicts: Tuple[str, ...] = ()
    replaces: Tuple[str, ...] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    triggers: Tuple[str, ...] = ()

    def control(self, installed_kib: int) -> str:
        fields = {
            "Package": self.name,
            "Source": self.source,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "gpulab <packages@gpulab.invalid>",
            "Installed-Size": str(installed_kib),
            "Depends": ", ".join(self.depends),
            "Recommends": ", ".join(self.recommends),
            "Provides": ", ".join(self.provides),
            "Conflicts": ", ".join(self.conflicts),
            "Replaces": ", ".join(self.replaces),
            "Section": self.section,
            "Priority": "optional",
            "Description": self.summary + "".join("\n %s" % (line or ".") for line in self.details.splitlines()),
        }
        return "".join("%s: %s\n" % (key, value) for key, value in fields.items() if value)


def pack(job: Job, deb: Deb, directory: Path) -> Path:
    """Write `deb` into `directory` and return the file, named as repositories name it (without the epoch)."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / ("%s_%s_%s.deb" % (deb.name, deb.version.split(":", 1)[-1], deb.architecture))
    with tempfile.TemporaryDirectory(prefix="gpulab-deb-") as name:
        tree = Path(name)
        tree.chmod(0o755)
        size = _fill(tree, deb)
        _write_control(tree / "DEBIAN", deb, size)
        job.run(["dpkg-deb", "--root-owner-group", "--uniform-compression", "-Zgzip", "-z6", "--build", tree, target],
                env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})
    return target


def _fill(tree: Path, deb: Deb) -> int:
    """Lay the package's files out; return their size in KiB."""
    size = 0
    for name, item in deb.files.items():
        path = _place(tree, name)
        if isinstance(item.content, Path):
            shutil.copyfile(item.content, path)
        else:
            path.write_bytes(item.content.encode() if isinstance(item.content, str) else item.content)
        path.chmod(item.mode)
        size += path.stat().st_size
    for name, target in deb.links.items():
        _place(tree, name).symlink_to(target)
    return size // 1024 + 1


def _place(tree: Path, name: str) -> Path:
    path = tree / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write_control(directory: Path, deb: Deb, installed_kib: int) -> None:
    directory.mkdir()
    (directory / "control").write_text(deb.control(installed_kib))
    # Debian policy 10.7: what a package puts under /etc is the administrator's to change.
    conffiles = sorted(name for name in deb.files if name.startswith("/etc/"))
    if conffiles:
        (directory / "conffiles").write_text("".join("%s\n" % name for name in conffiles))
    if deb.triggers:
        (directory / "triggers").write_text("".join("%s\n" % line for line in deb.triggers))
    for name, text in deb.scripts.items():
        script = directory / name
        script.write_text(text)
        script.chmod(0o755)


def index_flat(job: Job, key: Path, root: Path, release: Mapping[str, str]) -> None:
    """Make the directory `root` with its .deb files a signed flat repository (``Suites: /``)."""
    _write_packages(root, _stanzas(root, sorted(root.glob("*.deb"))))
    _write_release(job, key, root, release, ["Packages", "Packages.gz"])


def index_suite(job: Job, key: Path, root: Path, suite: str, debs: Iterable[Path], release: Mapping[str, str],
                component: str = "main") -> None:
    """Add ``dists/<suite>/<component>`` to the repository `root`, holding `debs` (files below `root`)."""
    directory = root / "dists" / suite
    binary = directory / component / "binary-amd64"
    binary.mkdir(parents=True)
    _write_packages(binary, _stanzas(root, sorted(debs)))
    fields = {**release, "Codename": suite, "Components": component, "Architectures": "amd64"}
    _write_release(job, key, directory, fields,
                   ["%s/binary-amd64/%s" % (component, name) for name in ("Packages", "Packages.gz")])


def _stanzas(root: Path, debs: Sequence[Path]) -> str:
    return "\n".join(_stanza(root, deb) for deb in debs)


def _stanza(root: Path, deb: Path) -> str:
    control = subprocess.run(["dpkg-deb", "-f", str(deb)], check=True, stdout=subprocess.PIPE, text=True).stdout
    data = deb.read_bytes()
    where = "Filename: %s\nSize: %d\nMD5sum: %s\nSHA256: %s\n" % (
        "./%s" % deb.name if deb.parent == root else deb.relative_to(root), len(data),
        hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest())
    head, separator, description = control.rstrip("\n").partition("\nDescription:")
    return "%s\n%s%s\n" % (head, where, (separator + description).lstrip("\n"))


def _write_packages(directory: Path, text: str) -> None:
    (directory / "Packages").write_text(text)
    (directory / "Packages.gz").write_bytes(gzip.compress(text.encode(), mtime=EPOCH))


def _write_release(job: Job, key: Path, directory: Path, fields: Mapping[str, str], indexes: Sequence[str]) -> None:
    lines = ["%s: %s" % (name, value) for name, value in {**fields, "Date": RELEASE_DATE}.items()]
    for title, algorithm in (("MD5Sum", "md5"), ("SHA256", "sha256")):
        lines.append("%s:" % title)
        for index in indexes:
            data = (directory / index).read_bytes()
            lines.append(" %s %d %s" % (hashlib.new(algorithm, data).hexdigest(), len(data), index))
    release = directory / "Release"
    release.write_text("\n".join(lines) + "\n")
    with _Keyring(job, key) as keyring:
        keyring.run("--armor", "--detach-sign", "--output", directory / "Release.gpg", release)
        keyring.run("--clearsign", "--output", directory / "InRelease", release)


class _Keyring:
    """A short-lived GNUPGHOME: gpg-agent's socket needs a short path, and no agent may outlive the build."""

    def __init__(self, job: Job, key: Optional[Path] = None) -> None:
        self._job = job
        self._key = key
        self._home = Path()

    def __enter__(self) -> "_Keyring":
        self._home = Path(tempfile.mkdtemp(prefix="gpulab-gpg-"))
        if self._key:
            self.run("--import", self._key / _SECRET_KEY)
        return self

    def __exit__(self, *unused: object) -> None:
        subprocess.run(["gpgconf", "--kill", "all"], env=self._environment(), check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(self._home, ignore_errors=True)

    def run(self, *words: Union[str, Path]) -> None:
        self._job.run(["gpg", "--batch", "--yes", "--pinentry-mode", "loopback", "--passphrase", "", *words],
                      env=self._environment())

    def _environment(self) -> Dict[str, str]:
        return {**os.environ, "GNUPGHOME": str(self._home)}


def _make_key(job: Job) -> None:
    with _Keyring(job) as keyring:
        keyring.run("--quick-generate-key", _KEY_OWNER, "ed25519", "sign", "never")
        keyring.run("--armor", "--output", job.out / PUBLIC_KEY, "--export")
        keyring.run("--armor", "--output", job.out / _SECRET_KEY, "--export-secret-keys")
    (job.out / _SECRET_KEY).chmod(0o600)


KEY_PART = Part(name="apt-key", title="signing key of the local package repositories", build=_make_key)


def publish_key(key: Path, target: Path) -> None:
    """Put the public key (ASCII armoured) where hosts fetch it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(key / PUBLIC_KEY, target)
