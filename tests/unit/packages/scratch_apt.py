# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host's dpkg and apt below a directory, and a signed repository behind a web server that keeps an access log."""
from __future__ import annotations

import base64
import email.utils
import gzip
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Package


class Keyring:
    """A signing key, made once for all tests of a process."""

    def __init__(self, name: str) -> None:
        self.home = tempfile.mkdtemp(prefix="gpuops-test-gpg-")
        self._gpg("--quick-generate-key", "%s <%s@gpuops.invalid>" % (name, name), "ed25519", "sign", "never")
        self.public = self._gpg("--armor", "--export")
        told = self._gpg("--list-keys", "--with-colons")
        self.fingerprint = next(line.split(":")[9] for line in told.splitlines() if line.startswith("fpr"))

    def _gpg(self, *words: str, stdin: Optional[str] = None) -> str:
        return subprocess.run(
            ["gpg", "--homedir", self.home, "--batch", "--quiet", "--no-autostart" if "--export" in words else "--yes",
             "--pinentry-mode", "loopback", "--passphrase", "", *words],
            input=stdin, capture_output=True, text=True, check=True).stdout

    def clearsign(self, text: str) -> str:
        return self._gpg("--clearsign", stdin=text)


@lru_cache(maxsize=None)
def keyring(name: str) -> Keyring:
    return Keyring(name)


def build(directory: Path, name: str, version: str, depends: str = "", conflicts: str = "", script: str = "",
          size: int = 1, files: Optional[Mapping[str, bytes]] = None,
          scripts: Optional[Mapping[str, str]] = None, same: str = "") -> Path:
    """A tiny package; script is its preinst; files and scripts have more of its files and of its scripts.

    Files below etc are its configuration files. same: the architecture of one that may be there for several of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / ("%s_%s_%s.deb" % (name, version.replace(":", "%3a"), same or "all"))
    target.write_bytes(_built(name, version, depends, conflicts, script, size, tuple((files or {}).items()),
                              tuple((scripts or {}).items()), same))
    return target


@lru_cache(maxsize=None)
def _built(name: str, version: str, depends: str, conflicts: str, script: str, size: int,
           files: Tuple[Tuple[str, bytes], ...], scripts: Tuple[Tuple[str, str], ...], same: str) -> bytes:
    """Most tests of a process want the same ones."""
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made)
        (tree / "DEBIAN").mkdir()
        (tree / "usr/share" / name).mkdir(parents=True)
        (tree / "usr/share" / name / "version").write_text(version + "\n")
        fields = {"Package": name, "Version": version, "Architecture": same or "all", "Multi-Arch": same and "same",
                  "Maintainer": "t <t@gpuops.invalid>", "Installed-Size": str(size), "Depends": depends,
                  "Conflicts": conflicts, "Description": "a test"}
        (tree / "DEBIAN/control").write_text("".join("%s: %s\n" % item for item in fields.items() if item[1]))
        for path, content in files:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        conffiles = ["/" + path for path, _content in files if path.startswith("etc/")]
        if conffiles:
            (tree / "DEBIAN/conffiles").write_text("".join(path + "\n" for path in conffiles))
        for name_of_it, text in {**({"preinst": script} if script else {}), **dict(scripts)}.items():
            (tree / "DEBIAN" / name_of_it).write_text("#!/bin/sh\n%s\n" % text)
            (tree / "DEBIAN" / name_of_it).chmod(0o755)
        package = tree.with_name(tree.name + ".deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", made, str(package)], check=True, capture_output=True)
        content = package.read_bytes()
        package.unlink()
    return content


@lru_cache(maxsize=None)
def _stanza(content: bytes) -> str:
    """What an index has of a package, but for where it lies."""
    with tempfile.NamedTemporaryFile(suffix=".deb") as package:
        package.write(content)
        package.flush()
        fields = subprocess.run(["dpkg-deb", "--field", package.name], stdout=subprocess.PIPE, text=True,
                                check=True).stdout
    return "%sSize: %d\nMD5sum: %s\nSHA256: %s\n" % (
        fields, len(content), hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest())


class Repository:
    """A flat signed repository at url. requests: every GET as 'CODE path', in order."""

    def __init__(self, directory: Path, key: str = "one", password: str = "") -> None:
        self.directory = directory
        self.key = keyring(key)
        self.requests: List[str] = []
        self._published = time.time() - 10000
        self.authorized = "Basic " + base64.b64encode(password.encode()).decode() if password else ""
        directory.mkdir(parents=True, exist_ok=True)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d/" % self._server.server_port

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Nobody answers there any more."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> Any:
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *words: Any, **more: Any) -> None:
                super().__init__(*words, directory=str(outer.directory), **more)

            def do_GET(self) -> None:
                if outer.authorized and self.headers.get("Authorization") != outer.authorized:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", "Basic realm=test")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                super().do_GET()

            def log_request(self, code: Any = "-", size: Any = "-") -> None:
                outer.requests.append("%d %s" % (int(code), self.path))

        return Handler

    def add(self, name: str, version: str, **more: Any) -> None:
        build(self.directory, name, version, **more)
        self.publish()

    def publish(self, valid_until: str = "", backports: bool = False) -> None:
        packages = "\n".join("%sFilename: ./%s\n" % (_stanza(path.read_bytes()), path.relative_to(self.directory))
                             for path in sorted(self.directory.rglob("*.deb")))
        (self.directory / "Packages").write_text(packages)
        (self.directory / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))
        lines = ["Date: " + email.utils.formatdate(usegmt=True)]
        lines += ["Valid-Until: " + valid_until] if valid_until else []
        lines += ["NotAutomatic: yes", "ButAutomaticUpgrades: yes"] if backports else []
        lines += ["SHA256:"]
        for name in ("Packages", "Packages.gz"):
            data = (self.directory / name).read_bytes()
            lines.append(" %s %d %s" % (hashlib.sha256(data).hexdigest(), len(data), name))
        (self.directory / "InRelease").write_text(self.key.clearsign("\n".join(lines) + "\n"))
        # A web server tells versions of a file by the second
        self._published += 10
        for name in ("InRelease", "Packages", "Packages.gz"):
            os.utime(self.directory / name, (self._published, self._published))

    def fetched(self, name: str, code: int = 200) -> int:
        """How often a file was sent."""
        return sum(line.startswith("%d " % code) and line.rsplit("/", 1)[1].startswith(name)
                   for line in list(self.requests))


class Root:
    """A host below a directory: its dpkg database, its apt, its logs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for directory in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/auth.conf.d", "etc/apt/keyrings",
                          "etc/apt/apt.conf.d", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers",
                          "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "usr", "boot",
                          "run", "tmp"):
            (path / directory).mkdir(parents=True, exist_ok=True)
        for name in ("var/lib/dpkg/status", "var/lib/dpkg/available", "etc/apt/sources.list"):
            (path / name).touch()
        self.host = Host(str(path))

    def write(self, name: str, text: str) -> None:
        (self.path / name.lstrip("/")).write_text(text)

    def apt(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """apt-get of this host, as its administrator (or ansible.builtin.apt) calls it."""
        options = self.path / "tmp/apt.conf"
        options.write_text("\n".join((
            'Dir "%s";' % self.path,
            'Dir::State::status "%s/var/lib/dpkg/status";' % self.path,
            'DPkg::Options { "--root=%s"; "--log=%s/var/log/dpkg.log"; "--force-not-root"; '
            '"--force-script-chrootless"; };' % (self.path, self.path),
            'DPkg::Chroot-Directory "";', 'APT::Sandbox::User "root";', 'Acquire::Languages "none";', "")))
        environment = dict(os.environ, APT_CONFIG=str(options), DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
        done = subprocess.run(["apt-get", "-y", *words], env=environment, capture_output=True, text=True)
        if check and done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return done

    def install(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.apt("install", *words, check=check)

    def hold(self, name: str) -> None:
        subprocess.run(["dpkg", "--root=%s" % self.path, "--set-selections"], input=name + " hold\n", text=True,
                       check=True)

    def packages(self) -> Dict[str, Package]:
        return database.installed(self.host)

    def installed(self) -> Dict[str, str]:
        return {name: package.version for name, package in self.packages().items() if package.installed}

    def automatic(self) -> Sequence[str]:
        marks = self.path / "var/lib/apt/extended_states"
        stanzas = marks.read_text().split("\n\n") if marks.exists() else []
        return sorted(stanza.split("\n")[0].split(": ")[1] for stanza in stanzas if "Auto-Installed: 1" in stanza)

    def trust(self, repository: Repository, name: str = "other") -> None:
        """The administrator's own entry of a repository."""
        self.write("etc/apt/keyrings/%s.asc" % name, repository.key.public)
        self.write("etc/apt/sources.list.d/%s.list" % name,
                   "deb [signed-by=%s/etc/apt/keyrings/%s.asc] %s /\n" % (self.path, name, repository.url))

    def tree(self) -> Mapping[str, bytes]:
        """Every file and its bytes."""
        return {str(path.relative_to(self.path)): path.read_bytes() for path in sorted(self.path.rglob("*"))
                if path.is_file()}

    def forget(self) -> None:
        shutil.rmtree(self.path)


HOLDER = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); " \
         "sys.stdin.read()"


@contextmanager
def held(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds a lock as apt does, until its input ends."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder
        if holder.stdin is not None and not holder.stdin.closed:
            holder.stdin.close()
