# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a pod has proved of a node, so that not every run starts one: kept on the host until something changes there.

proof.json, root's alone:
  {'proof':   {'of': a digest of all that the pod's success depends on in the cluster, 'at': when, seconds since the
              epoch, by the controller's clock, 'evidence': what was seen},
   'changes': what the journal of our steps was then}
A step of ours ends it, one that was killed too, as each is written down before it begins; and so does the next boot.
"""
from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import JOURNAL
from ..core.lock import DIRECTORY

PATH = DIRECTORY + "/proof.json"


def kept_proof(host: Host) -> Dict[str, Any]:
    """The proof that still counts on this host; empty where there is none, or where it may not be read."""
    try:
        kept = json.loads(host.read(PATH) or "{}")
    except (GpuOpsError, ValueError):
        return {}
    if not isinstance(kept, dict) or kept.get("changes") != _changes(host):
        return {}
    proof = kept.get("proof")
    return proof if isinstance(proof, dict) else {}


def keep_proof(host: Host, proof: Mapping[str, Any], check_mode: bool) -> bool:
    """Whether the host had to be told: keep the proof, or forget what is kept where it is empty."""
    text: Optional[str] = None
    if proof:
        text = json.dumps({"changes": _changes(host), "proof": dict(proof)}, sort_keys=True) + "\n"
    if host.read(PATH) == text:
        return False
    if not check_mode and text is not None:
        host.make_directory(DIRECTORY, 0o700)
        host.write(PATH, text, 0o600)
    elif not check_mode:
        host.remove(PATH)
    return True


def _changes(host: Host) -> str:
    there = host.stat(JOURNAL)
    return "" if there is None else "%d %d %d" % (there.st_ino, there.st_size, there.st_mtime_ns)
