# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Container images of the laboratory: docker-archive files that `ctr images import` reads, and an index of them.

They carry the upstream references, so that manifests under test need no change; what is in them is the real program
where there is one, else a program that says that it is the laboratory's stand-in.
"""
from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from ..cache import BuildError, Job, Part

SOURCES = Path(__file__).resolve().parents[2] / "images"

LIBRARY_DIR = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Driver libraries and programs that a container runtime injects were linked against these.
GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
# Debian's Python, its ctypes included, was linked against these beside glibc.
OF_PYTHON = ("libexpat.so.1", "libffi.so.8", "libz.so.1")
ROOT = "root-bookworm"
# What the upstream images tell nvidia-container-runtime.
ALL_GPUS = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_DISABLE_REQUIRE=true")


class Rootfs:
    """The file tree of an image, collected first and written as one layer: same content, same bytes."""

    def __init__(self) -> None:
        self._files: Dict[str, Tuple[bytes, int]] = {}
        self._links: Dict[str, str] = {}
        self._dirs: Dict[str, int] = {}
        for path in ("etc", "root", "run", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "var"):
            self.directory(path)
        self.directory("tmp", 0o1777)
        for merged in ("bin", "sbin", "lib", "lib64"):
            self.link(merged, "usr/" + merged)
        self.link("var/run", "../run")
        self.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
        self.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
        self.text("etc/nsswitch.conf", "hosts: files dns\n")

    def directory(self, path: str, mode: int = 0o755) -> None:
        for depth in range(1, path.count("/") + 1):
            self._dirs.setdefault("/".join(path.split("/")[:depth]), 0o755)
        self._dirs[path] = mode

    def link(self, path: str, target: str) -> None:
        self._links[path] = target

    def text(self, path: str, content: str) -> None:
        self._put(path, content.encode(), 0o644)

    def program(self, path: str, source: Path) -> None:
        """A program with the loader and the libraries that it needs, if it needs any."""
        self._put(path, source.read_bytes(), 0o755)
        for library in _libraries_of(source):
            self.library(library)

    def library(self, source: Path) -> None:
        name = source.name
        self._put("%s/%s" % (LIBRARY_DIR, name), source.read_bytes(), 0o755)
        if name == LOADER:
            self.link("usr/lib64/" + LOADER, "/%s/%s" % (LIBRARY_DIR, LOADER))

    def glibc(self) -> None:
        """What injected programs and libraries of a driver need: a loader, glibc, and a place for its cache."""
        known = {path.name: path for path in _libraries_of(_dynamic_program())}
        directory = known["libc.so.6"].parent
        for name in GLIBC:
            self.library(directory / name)
        self.library(known[LOADER])
        self.text("etc/ld.so.conf", "/usr/local/lib\n/%s\n" % LIBRARY_DIR)

    def shell(self, busybox: Path) -> None:
        """A shell and the usual small programs: one static busybox under all its names."""
        self.program("usr/bin/busybox", busybox)
        names = subprocess.run([str(busybox), "--list"], stdout=subprocess.PIPE, check=True, universal_newlines=True)
        for name in names.stdout.split():
            if name != "busybox":
                self.link("usr/bin/" + name, "busybox")

    def python(self, root: Path) -> None:
        """The Python of a host's root, and its glibc: what that has been linked against."""
        program = (root / "usr/bin/python3").resolve()
        self._put("usr/bin/python3", program.read_bytes(), 0o755)
        for name in (*GLIBC, *OF_PYTHON, LOADER):
            self.library(root / LIBRARY_DIR / name)
        self.text("etc/ld.so.conf", "/usr/local/lib\n/%s\n" % LIBRARY_DIR)
        for path in sorted((root / "usr/lib" / program.name).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.parent.name != "__pycache__":
                self._put(str(path.relative_to(root)), path.read_bytes(), 0o644)

    def _put(self, path: str, content: bytes, mode: int) -> None:
        if "/" in path:
            self.directory(path.rsplit("/", 1)[0])
        self._files[path] = (content, mode)

    def layer(self) -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path, mode in sorted(self._dirs.items()):
                archive.addfile(_entry(path, tarfile.DIRTYPE, mode))
            for path, target in sorted(self._links.items()):
                entry = _entry(path, tarfile.SYMTYPE, 0o777)
                entry.linkname = target
                archive.addfile(entry)
            for path, (content, mode) in sorted(self._files.items()):
                _add_bytes(archive, path, content, mode)
        return stream.getvalue()


@dataclass(frozen=True)
class Image:
    """One image: its reference, who runs in it, and how its tree is filled."""

    reference: str
    fill: Callable[[Rootfs, Job], None]
    entrypoint: Tuple[str, ...] = ()
    command: Tuple[str, ...] = ()
    env: Tuple[str, ...] = ()
    user: str = ""
    labels: Dict[str, str] = field(default_factory=dict)
    aliases: Tuple[str, ...] = ()

    def references(self) -> List[str]:
        return [self.reference, *self.aliases]

    def file_name(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.reference.split("/", 1)[1].lower()) + ".tar"

    def write(self, directory: Path, job: Job) -> None:
        tree = Rootfs()
        self.fill(tree, job)
        layer = tree.layer()
        digest = hashlib.sha256(layer).hexdigest()
        config = json.dumps({
            "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
            "config": {"Entrypoint": list(self.entrypoint) or None, "Cmd": list(self.command) or None,
                       "Env": [SEARCH_PATH, *self.env], "User": self.user, "Labels": self.labels or None},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "gpulab"}],
        }, sort_keys=True).encode()
        config_name = hashlib.sha256(config).hexdigest() + ".json"
        layer_name = digest + "/layer.tar"
        manifest = [{"Config": config_name, "RepoTags": self.references(), "Layers": [layer_name]}]
        with tarfile.open(directory / self.file_name(), "w", format=tarfile.GNU_FORMAT) as archive:
            _add_bytes(archive, config_name, config, 0o644)
            _add_bytes(archive, layer_name, layer, 0o644)
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode(), 0o644)


def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type = kind
    entry.mode = mode
    return entry


def _add_bytes(archive: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = _entry(path, tarfile.REGTYPE, mode)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _libraries_of(program: Path) -> List[Path]:
    """The loader and the shared libraries of a program, as the machine's own loader finds them; none if static."""
    told = subprocess.run(["ldd", str(program)], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if told.returncode != 0:
        return []
    if "not found" in told.stdout:
        raise BuildError("libraries of %s are missing on this machine:\n%s" % (program, told.stdout))
    return [Path(found) for found in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", told.stdout, re.MULTILINE)]


def _dynamic_program() -> Path:
    """Any dynamically linked program of this machine, to ask where its glibc is."""
    for name in ("ls", "true", "env"):
        found = shutil.which(name)
        if found and any(path.name == "libc.so.6" for path in _libraries_of(Path(found))):
            return Path(found)
    raise BuildError("found no dynamically linked program in PATH, wanted one to learn where glibc is: "
                     "the laboratory needs a glibc-based x86_64 machine")


def _busybox(job: Job) -> Path:
    """A static busybox: the machine's own, else unpacked from Debian's package without installing it."""
    own = shutil.which("busybox")
    if own and not _libraries_of(Path(own)):
        return Path(own)
    if shutil.which("apt-get") is None:
        raise BuildError("part images: found no static busybox and no apt-get, wanted one of them: "
                         "install busybox-static")
    scratch = job.out / ".busybox"
    scratch.mkdir(exist_ok=True)
    if not list(scratch.glob("*.deb")):
        # As root apt would hand the download to the user _apt, which may not enter a cache below /root.
        job.run(["apt-get", "-o", "APT::Sandbox::User=root", "download", "busybox-static"], cwd=scratch)
        job.run(["dpkg-deb", "--extract", next(scratch.glob("*.deb")), scratch])
    found = [path for path in (scratch / "bin/busybox", scratch / "usr/bin/busybox") if path.is_file()]
    if not found:
        raise BuildError("part images: the package busybox-static holds no busybox")
    return found[0]


def _fill_device_plugin(tree: Rootfs, job: Job) -> None:
    tree.glibc()
    tree.shell(_busybox(job))
    for program in sorted((job.part("nvidia-device-plugin") / "bin").iterdir()):
        tree.program("usr/bin/" + program.name, program)
    tree.program("usr/local/bin/nvidia-device-plugin", SOURCES / "device-plugin" / "nvidia-device-plugin")


def _fill_nfd(tree: Rootfs, job: Job) -> None:
    for program in sorted((job.part("nfd") / "bin").iterdir()):
        tree.program("usr/bin/" + program.name, program)


def _fill_dcgm(tree: Rootfs, job: Job) -> None:
    tree.glibc()
    tree.program("usr/bin/dcgm-exporter", job.part("dcgm") / "bin/dcgm-exporter")
    tree.text("etc/dcgm-exporter/default-counters.csv",
              (SOURCES.parent / "dcgm" / "default-counters.csv").read_text(encoding="utf-8"))


def _fill_pause(tree: Rootfs, job: Job) -> None:
    tree.program("pause", job.part("pause") / "bin/pause")


def _fill_tools(tree: Rootfs, job: Job) -> None:
    tree.glibc()
    tree.shell(_busybox(job))


def _fill_python(tree: Rootfs, job: Job) -> None:
    tree.shell(_busybox(job))
    tree.python(job.part(ROOT) / "root")


def _fill_cuda_sample(tree: Rootfs, job: Job) -> None:
    tree.glibc()
    tree.shell(_busybox(job))
    binary = job.out / ".vectoradd"
    job.run(["gcc", "-O2", "-Wall", "-Werror", "-o", binary, SOURCES / "cuda-sample" / "vectoradd.c", "-ldl"])
    tree.program("cuda-samples/vectorAdd", binary)


IMAGES: Tuple[Image, ...] = (
    Image("nvcr.io/nvidia/k8s-device-plugin:v0.19.3", _fill_device_plugin,
          entrypoint=("nvidia-device-plugin",), env=ALL_GPUS, user="0:0", labels={"version": "v0.19.3"}),
    Image("registry.k8s.io/nfd/node-feature-discovery:v0.17.3", _fill_nfd,
          env=("GRPC_GO_LOG_SEVERITY_LEVEL=INFO",), user="65534:65534"),
    Image("nvcr.io/nvidia/k8s/dcgm-exporter:lab-stand-in", _fill_dcgm,
          entrypoint=("/usr/bin/dcgm-exporter",), env=ALL_GPUS, labels={"gpulab": "stand-in"}),
    Image("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", _fill_cuda_sample,
          command=("/cuda-samples/vectorAdd",), env=ALL_GPUS[:2], labels={"gpulab": "stand-in"}),
    Image("registry.k8s.io/pause:3.10", _fill_pause, entrypoint=("/pause",), user="65535:65535"),
    Image("docker.io/library/gpulab-tools:1", _fill_tools, command=("sleep", "infinity"),
          labels={"gpulab": "stand-in"}),
    # The public image of Python holds the same, and more: a shell, a glibc for injected programs, and a Python.
    Image("docker.io/library/gpulab-python:1", _fill_python, command=("python3",),
          labels={"gpulab": "stand-in"}, aliases=("docker.io/library/python:3.13.5-slim-bookworm",)),
)


def build_images(job: Job) -> None:
    index: Dict[str, str] = {}
    for image in IMAGES:
        image.write(job.out, job)
        index.update((reference, image.file_name()) for reference in image.references())
    for leftover in (job.out / ".busybox", job.out / ".vectoradd"):
        _remove(leftover)
    (job.out / "index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


PARTS: Tuple[Part, ...] = (
    Part("images",
         "container images: device plugin, NFD, DCGM exporter stand-in, CUDA sample stand-in, pause, tools, Python",
         build_images, inputs=(SOURCES, SOURCES.parent / "dcgm" / "default-counters.csv"),
         needs=("nvidia-device-plugin", "nfd", "dcgm", "pause", ROOT)),
)
