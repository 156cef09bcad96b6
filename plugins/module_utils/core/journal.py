# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was done on this host, and what was there before: /var/lib/gpuops.

  journal.jsonl   one line an event of a step: started, done, satisfied, failed, superseded
  originals.json  {path: {'capability', 'mode', 'uid', 'gid', 'content' (base64) or None when the file was absent,
                  'folders' (directories that did not exist)}}, written before the first change of a path
  packages.json   {capability: {package: version}}: packages that our transactions brought in

The directory is for root alone: originals may hold registry credentials.
"""
from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .host import Host
from .plan import Step

STATE = "/var/lib/gpuops"


@dataclass(frozen=True)
class Original:
    """A file as it was before our first change of it; content is None when it was absent."""

    path: str
    capability: str
    content: Optional[bytes]
    mode: int
    uid: int
    gid: int
    folders: Tuple[str, ...]


class Journal:
    """The host's record of applied steps, original files and packages."""

    def __init__(self, host: Host) -> None:
        self.host = host

    # steps

    def note(self, event: str, step: Step, plan: str, **more: Any) -> None:
        """Append an event of a step; it is on the disk when this returns."""
        self._make_folder()
        line = {"time": round(time.time(), 3), "event": event, "plan": plan, "step": step.to_dict()}
        line.update(more)
        self.host.append(STATE + "/journal.jsonl", json.dumps(line, sort_keys=True) + "\n")

    def events(self) -> List[Dict[str, Any]]:
        """All events, oldest first; a last line that a crash cut short is left out."""
        events = []
        for line in (self.host.read(STATE + "/journal.jsonl") or "").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    def unfinished(self, capability: str) -> List[Dict[str, Any]]:
        """'started' events of a capability's steps that no later event has closed."""
        waiting: Dict[str, Dict[str, Any]] = {}
        for event in self.events():
            if event["step"]["capability"] != capability:
                continue
            if event["event"] == "started":
                waiting[event["step"]["id"]] = event
            else:
                waiting.pop(event["step"]["id"], None)
        return list(waiting.values())

    # originals

    def keep_original(self, capability: str, path: str) -> None:
        """Record a file as it is now, unless an earlier change of ours recorded it already."""
        originals = self._load("originals.json")
        if path in originals:
            return
        content = self.host.read_bytes(path)
        stat = self.host.stat(path)
        originals[path] = {
            "capability": capability,
            "content": None if content is None else base64.b64encode(content).decode(),
            "mode": 0 if stat is None else stat.st_mode & 0o7777,
            "uid": 0 if stat is None else stat.st_uid,
            "gid": 0 if stat is None else stat.st_gid,
            "folders": _missing_folders(self.host, path),
        }
        self._save("originals.json", originals)

    def originals(self, capability: str) -> List[Original]:
        return [
            Original(
                path=path,
                capability=kept["capability"],
                content=None if kept["content"] is None else base64.b64decode(kept["content"]),
                mode=kept["mode"],
                uid=kept["uid"],
                gid=kept["gid"],
                folders=tuple(kept["folders"]),
            )
            for path, kept in sorted(self._load("originals.json").items())
            if kept["capability"] == capability
        ]

    def forget_original(self, path: str) -> None:
        originals = self._load("originals.json")
        if originals.pop(path, None) is not None:
            self._save("originals.json", originals)

    def restore(self, path: str) -> None:
        """Put a file back, bytes, mode and owner, remove it if it was absent, and forget its record."""
        kept = self._load("originals.json").get(path)
        if kept is None:
            return
        if kept["content"] is None:
            self.host.remove(path)
            for folder in reversed(kept["folders"]):
                self.host.remove_empty_dir(folder)
        else:
            self.host.write_bytes(path, base64.b64decode(kept["content"]), kept["mode"])
            os.chown(self.host.path(path), kept["uid"], kept["gid"])
            os.chmod(self.host.path(path), kept["mode"])
        self.forget_original(path)

    # packages

    def packages(self, capability: str) -> Dict[str, str]:
        """Packages that our transactions for a capability brought in, dependencies included."""
        return dict(self._load("packages.json").get(capability, {}))

    def set_packages(self, capability: str, packages: Mapping[str, str]) -> None:
        known = self._load("packages.json")
        known[capability] = dict(packages)
        if not packages:
            known.pop(capability)
        self._save("packages.json", known)

    # notes of capabilities

    def recall(self, capability: str) -> Dict[str, Any]:
        """What a capability wrote down for its next run (see remember)."""
        return dict(self._load("memory.json").get(capability, {}))

    def remember(self, capability: str, facts: Mapping[str, Any]) -> None:
        memory = self._load("memory.json")
        if facts:
            memory[capability] = dict(facts)
        else:
            memory.pop(capability, None)
        self._save("memory.json", memory)

    def _make_folder(self) -> None:
        os.makedirs(self.host.path(STATE), mode=0o700, exist_ok=True)

    def _load(self, name: str) -> Dict[str, Any]:
        text = self.host.read("%s/%s" % (STATE, name))
        return json.loads(text) if text else {}

    def _save(self, name: str, data: Mapping[str, Any]) -> None:
        self._make_folder()
        self.host.write("%s/%s" % (STATE, name), json.dumps(data, sort_keys=True, indent=1) + "\n", mode=0o600)


def _missing_folders(host: Host, path: str) -> List[str]:
    missing = []
    folder = os.path.dirname(path)
    while folder not in ("/", "") and not host.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return list(reversed(missing))
