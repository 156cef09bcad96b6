# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""RPM packages and signed repositories, made with rpmbuild, rpmsign and createrepo_c.

Nothing here knows what is inside a package: `Rpm` says it, `pack` builds many at once, `index` makes a directory of
files into a repository, with module streams where there are some.
"""
from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from gpulab import aptrepo
from gpulab.aptrepo import File
from gpulab.cache import Job

ARCH = "x86_64"
# Dependencies are those that are written down: the laboratory's roots have their libraries from somewhere else.
_MACROS: Mapping[str, str] = {
    "debug_package": "%{nil}", "__os_install_post": "%{nil}", "_build_id_links": "none", "dist": "%{nil}",
    "_binary_payload": "w1.gzdio", "_buildhost": "packages.gpulab", "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
}


@dataclass(frozen=True)
class Rpm:
    """What one binary package is; relations are written as in a spec.

    directories: those that are its own and go with it.
    ghosts:      files that its scripts make and that go with it.
    scripts:     {'post', 'preun', 'postun' ...: text for /bin/sh}
    """

    name: str
    version: str
    summary: str
    release: str = "1"
    epoch: int = 0
    details: str = "Simulated: the laboratory's stand-in under the name of a real package."
    requires: Tuple[str, ...] = ()
    recommends: Tuple[str, ...] = ()
    provides: Tuple[str, ...] = ()
    conflicts: Tuple[str, ...] = ()
    obsoletes: Tuple[str, ...] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Tuple[str, ...] = ()
    ghosts: Tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def nevra(self) -> str:
        """As module streams name it, always with the epoch."""
        return "%s-%d:%s-%s.%s" % (self.name, self.epoch, self.version, self.release, ARCH)

    @property
    def file_name(self) -> str:
        return "%s-%s-%s.%s.rpm" % (self.name, self.version, self.release, ARCH)

    def header(self) -> List[str]:
        relations = (("Requires", self.requires), ("Recommends", self.recommends), ("Provides", self.provides),
                     ("Conflicts", self.conflicts), ("Obsoletes", self.obsoletes))
        return ["Version: " + self.version, "Release: " + self.release,
                *(["Epoch: %d" % self.epoch] if self.epoch else []),
                "Summary: " + self.summary, "License: GPL-3.0-or-later", "AutoReqProv: no",
                *("%s: %s" % (title, word) for title, words in relations for word in words)]

    def sections(self) -> List[str]:
        lines = ["%%description -n %s" % self.name, self.details]
        for kind, text in self.scripts.items():
            # A percent sign would be rpm's macro
            lines += ["%%%s -n %s" % (kind, self.name), text.replace("%", "%%")]
        lines.append("%%files -n %s" % self.name)
        for path, item in sorted(self.files.items()):
            kind = "%config(noreplace) " if path.startswith("/etc/") else ""
            lines.append("%s%%attr(%04o, root, root) %s" % (kind, item.mode, path))
        return [*lines, *("%dir " + path for path in self.directories), *("%ghost " + path for path in self.ghosts),
                *sorted(self.links)]


def spec(packages: Sequence[Rpm], tree: Path) -> str:
    """One spec whose packages are all but the main one, since that gives every one its own epoch and version."""
    lines = ["Name: gpulab", "Version: 1", "Release: 1", "Summary: laboratory", "License: GPL-3.0-or-later",
             "%description", "Laboratory."]
    for each in packages:
        lines += ["%%package -n %s" % each.name, *each.header()]
    lines += ["%install", "cp -a %s/. %%{buildroot}/" % tree]
    for each in packages:
        lines += each.sections()
    return "\n".join(lines) + "\n"


def pack(job: Job, packages: Sequence[Rpm], directory: Path) -> None:
    """Build packages into `directory` with one rpmbuild; files that several have are the same in all of them."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpulab-rpm-") as name:
        top = Path(name)
        tree = top / "tree"
        tree.mkdir()
        for each in packages:
            aptrepo._fill(tree, aptrepo.Deb(each.name, each.version, each.summary, files=each.files, links=each.links))
        (top / "packages.spec").write_text(spec(packages, tree))
        words = [word for item in {**_MACROS, "_topdir": str(top)}.items() for word in ("--define", "%s %s" % item)]
        job.run(["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", ARCH, *words, top / "packages.spec"],
                env={**os.environ, "SOURCE_DATE_EPOCH": str(aptrepo.EPOCH)})
        for made in sorted((top / "RPMS" / ARCH).glob("*.rpm")):
            shutil.move(str(made), directory / made.name)


def sign(job: Job, key: Path, files: Sequence[Path]) -> None:
    with aptrepo._Keyring(job, key) as keyring:
        environment = keyring._environment()
        job.run(["rpmsign", "--addsign", "--define", "__gpg %s" % shutil.which("gpg"),
                 "--define", "_gpg_path %s" % environment["GNUPGHOME"], "--define", "_gpg_name gpulab package signing",
                 "--define", "_gpg_sign_cmd_extra_args --batch --pinentry-mode loopback --passphrase ''", *files],
                env=environment)


def index(job: Job, key: Path, root: Path, modules: str = "") -> None:
    """Make the directory `root` with its signed .rpm files a repository; modules: text of its modules.yaml."""
    job.run(["createrepo_c", "--quiet", "--revision", str(aptrepo.EPOCH), root])
    if modules:
        document = root / "modules.yaml"
        document.write_text(modules)
        job.run(["modifyrepo_c", "--mdtype=modules", document, root / "repodata"])
        document.unlink()
    with aptrepo._Keyring(job, key) as keyring:
        index_file = root / "repodata/repomd.xml"
        keyring.run("--armor", "--detach-sign", "--output", index_file.with_name("repomd.xml.asc"), index_file)


def modulemd(name: str, streams: Mapping[str, Sequence[Rpm]], default: str, packages: Sequence[str],
             platform: str) -> str:
    """modules.yaml of one module: what each stream has, which is the default, and what a profile installs.

    JSON is YAML. The form is libmodulemd's: Modulemd Document Format, version 2, and its defaults, version 1.
    """
    documents: List[Dict[str, object]] = [{
        "document": "modulemd", "version": 2, "data": {
            "name": name, "stream": stream, "version": 20260101000000, "context": "gpulab00", "arch": ARCH,
            "summary": "NVIDIA driver", "description": "NVIDIA driver", "license": {"module": ["MIT"]},
            "dependencies": [{"requires": {"platform": [platform]}}],
            "profiles": {"default": {"rpms": list(packages)}},
            "artifacts": {"rpms": [each.nevra for each in members]}}} for stream, members in streams.items()]
    documents.append({"document": "modulemd-defaults", "version": 1, "data": {
        "module": name, "stream": default, "profiles": {default: ["default"]}}})
    return "".join("---\n%s\n...\n" % json.dumps(document) for document in documents)
