# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The package repositories of a lab, served over HTTP on the bridge address as a mirror in a machine room would be."""
from __future__ import annotations

import json
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from .network import PACKAGES_PORT, Network
from .processes import Daemon


class Repositories:
    """The server process of one lab."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.daemon = Daemon("packages", directory)
        self.roots_file = directory / "roots.json"

    def start(self, repositories: Mapping[str, Path]) -> None:
        """Serve each directory below its name; a server that runs is restarted only when these differ."""
        words = ["%s=%s" % pair for pair in sorted(repositories.items())]
        wanted = json.dumps(words)
        self.roots_file.parent.mkdir(parents=True, exist_ok=True)
        if not self.roots_file.is_file() or self.roots_file.read_text() != wanted:
            self.daemon.stop()
            self.roots_file.write_text(wanted)
        self.daemon.start([sys.executable, "-m", "gpulab.repositories", self.network.controller, *words],
                          {"PYTHONPATH": str(Path(__file__).resolve().parents[1])})

    def served(self) -> Dict[str, Path]:
        pairs = (word.partition("=") for word in json.loads(self.roots_file.read_text()))
        return {name: Path(directory) for name, _, directory in pairs}

    def stop(self) -> None:
        self.daemon.stop()


class _Handler(SimpleHTTPRequestHandler):
    """Files of several directories, told apart by the first word of the path."""

    protocol_version = "HTTP/1.1"
    repositories: Dict[str, Path] = {}

    def translate_path(self, path: str) -> str:
        words = [word for word in unquote(urlsplit(path).path).split("/") if word not in ("", ".", "..")]
        top = self.repositories.get(words[0]) if words else None
        return str(top.joinpath(*words[1:])) if top else "/nonexistent"

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write("%s %s\n" % (self.address_string(), format % args))


def main(address: str, words: Sequence[str]) -> None:
    pairs = (word.partition("=") for word in words)
    _Handler.repositories = {name: Path(directory) for name, _, directory in pairs}
    server = ThreadingHTTPServer((address, PACKAGES_PORT), _Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
