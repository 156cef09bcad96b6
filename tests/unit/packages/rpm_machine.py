# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of an rpm distribution on which the module gpu_driver works with the real package manager."""
from __future__ import annotations

import contextlib
import http.server
import json
import select
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any, Dict, Generic, Iterator, Tuple, Type, TypeVar

import pytest
from ansible.module_utils import basic
from gpu_hosts import A100, facts
from scratch_apt import keyring
from scratch_rpm import V580, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import lock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import module as module_room
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import building, catalogue, observing
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel

ARoot = TypeVar("ARoot", bound=Root)


class RpmMachine(Generic[ARoot]):
    """Each call() is one call of the module.

    os_id, os_version: what the host is.
    release, headers:  its one kernel, and the package of that kernel's headers.
    user_space:        the package that has libnvidia-ml.so.1.
    built: {kernel: (package of the module's source, version of the driver) that DKMS has built for it}: no compiler
           runs here, and what another package takes the place of goes with it.
    """

    os_id: str
    os_version: str
    release: str
    headers: str
    user_space: str

    def __init__(
        self, root: ARoot, server: http.server.HTTPServer, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.root, self.server, self.capsys, self.patch = root, server, capsys, monkeypatch
        self.url = "http://127.0.0.1:%d/" % server.server_port
        self.built: Dict[str, Tuple[str, str]] = {}
        self.loaded = ""

    def take_repository_away(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def impatient(self) -> None:
        """Its package manager gives a server up in seconds."""
        raise NotImplementedError

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Its repository accepts and never answers any more."""
        self.take_repository_away()
        self.impatient()
        with silent(self.server.server_port):
            yield

    @contextlib.contextmanager
    def beside_a_silent_one(self) -> Iterator[None]:
        """The host has another repository, which never answers, and must not be asked."""
        self.impatient()
        with silent() as listening:
            self.root.configure("silent", "http://127.0.0.1:%d/" % listening.getsockname()[1], "two")
            yield
            assert not select.select([listening], [], [], 0)[0], "it is asked"

    def bring_repository_back(self) -> None:
        self.server = serve(self.server.RequestHandlerClass, self.server.server_port)

    def mirror(self, directory: Path, lost: str = "") -> None:
        """Its repository is this one from now. lost: which files of it are not there, though the index names them: a
        part of their names."""
        self.take_repository_away()
        self.server = serve(partial(Quiet, directory=str(directory), lost=lost), self.server.server_port)

    def system(self) -> Dict[str, bytes]:
        """Every file and its bytes, without what is this collection's own, packages that were fetched, and lists."""
        return {path: content for path, content in self.root.tree().items()
                if not path.startswith(("run/", "var/lib/gpuops/", "var/cache/", "var/log/")) and "gpuops" not in path}

    def others_gave_up(self) -> None:
        """What a run of before has handed over to its controller, and never took up again, holds up nobody any more."""
        self.root.host.remove(lock.RECORD)

    def kernels(self, *_words: Any) -> Tuple[Kernel, ...]:
        there, module = self.root.installed(), self.source()
        source, built = self.built.get(self.release, ("", ""))
        fits = bool(module) and (module, catalogue.upstream(there[module])) == (source, built)
        return (Kernel(self.release, self.headers in there, built if fits else "",
                       ("Dual MIT/GPL" if "open" in module else "NVIDIA") if fits else ""),)

    def source(self) -> str:
        return next((name for name in self.root.installed() if building.loses([name])), "")

    def build(self, host: Host, journal: Journal, step: Step) -> None:
        self.built[step.subject] = (self.source(), step.change["after"]["nvidia"])

    def facts(self) -> HostFacts:
        (kernel,) = self.kernels()
        kind = "" if not kernel.module else "open" if kernel.license != "NVIDIA" else "proprietary"
        return facts(A100, os_id=self.os_id, os_version=self.os_version, kernel=self.release,
                     boot_kernel=self.release, driver_installed=kernel.module, driver_boots=kernel.module,
                     driver_userspace=catalogue.upstream(self.root.installed().get(self.user_space, "")),
                     module_installed=kind, driver_loaded=self.loaded, module_loaded=kind if self.loaded else "")

    def call(self, check: bool = False, **options: Any) -> Dict[str, Any]:
        """The module's main function; its answer."""
        given = {"version": V580, "repository_url": self.url, "repository_key": keyring("one").public,
                 "run_id": "test 1", **options, "_ansible_check_mode": check}
        self.patch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": given}).encode())
        self.patch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            module_room.run_writer(CAPABILITY, lambda host, parameters: self.facts())
        answer: Dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return answer


AMachine = TypeVar("AMachine", bound=RpmMachine[Any])


def home(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rpm keep its database where these distributions have it, whatever distribution this is."""
    (directory / "home").mkdir()
    (directory / "home/.rpmmacros").write_text("%_dbpath /var/lib/rpm\n")
    monkeypatch.setenv("HOME", str(directory / "home"))


@contextlib.contextmanager
def running(
    kind: Type[AMachine], root: Root, repository: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AMachine]:
    """A machine of that kind, which the module takes for its host; repository: NVIDIA's, served by HTTP."""
    made = kind(root, serve(partial(Quiet, directory=str(repository))), capsys, monkeypatch)
    monkeypatch.setattr(module_room, "Host", lambda: root.host)
    monkeypatch.setattr(observing, "read_kernels", made.kernels)
    executors: Any = CAPABILITY.executors
    monkeypatch.setitem(executors, "dkms.build", made.build)
    yield made
    made.take_repository_away()


def serve(handler: Any, port: int = 0) -> http.server.HTTPServer:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@contextlib.contextmanager
def silent(port: int = 0) -> Iterator[socket.socket]:
    """A server that accepts and never answers, as one behind a network that swallows packets."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(50)
        yield listening


class Quiet(http.server.SimpleHTTPRequestHandler):
    """lost: a part of the names of files that it does not find."""

    def __init__(self, *words: Any, lost: str = "", **more: Any) -> None:
        self.lost = lost
        super().__init__(*words, **more)

    def translate_path(self, path: str) -> str:
        found = super().translate_path(path)
        return found + ".lost" if self.lost and self.lost in Path(found).name else found

    def log_message(self, format: str, *words: Any) -> None:
        """Not among what the tests print."""
