# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a pod has proved of a node, so that not every run starts one: kept on the host until something changes there.

proof.json, root's alone:
  {'of':       a digest of all that the pod's success depends on in the cluster,
   'at':       when, seconds since the epoch, by the controller's clock,
   'evidence': what was seen,
   'changes':  what the journal of our steps was before the pod, when the host was read}
A step of ours ends it, one that was killed too, as each is written down before it begins; and so does the next boot.
What the journal was goes to the controller and comes back with the proof: a step that begins while the pod runs, or
before the proof is kept, ends it as well.
"""
from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import JOURNAL
from ..core.lock import DIRECTORY, GUARD

PATH = DIRECTORY + "/proof.json"


def kept_proof(host: Host) -> Dict[str, Any]:
    """The proof that still counts on this host; where there is none, what one would have to begin with.

    Empty where that may not be read.
    """
    try:
        changes = _changes(host)
        kept = json.loads(host.read(PATH) or "{}")
    except GpuOpsError:
        return {}
    except ValueError:
        kept = {}
    return kept if isinstance(kept, dict) and kept.get("changes") == changes else {"changes": changes}


def keep_proof(host: Host, proof: Mapping[str, Any], check_mode: bool) -> bool:
    """Whether the host had to be told: keep the proof, or forget what is kept where it proves nothing of the host as
    it is now."""
    text: Optional[str] = None
    if proof.get("of") and proof.get("changes") == _changes(host):
        text = json.dumps(dict(proof), sort_keys=True) + "\n"
    if host.read(PATH) == text:
        return False
    if not check_mode:
        host.make_directory(DIRECTORY, 0o700)
        # No lock is taken for a validation: those of two controllers may end at once
        with host.guard(GUARD):
            if text is None:
                host.remove(PATH)
            else:
                host.write(PATH, text, 0o600)
    return True


def _changes(host: Host) -> str:
    there = host.stat(JOURNAL)
    return "" if there is None else "%d %d %d" % (there.st_ino, there.st_size, there.st_mtime_ns)
