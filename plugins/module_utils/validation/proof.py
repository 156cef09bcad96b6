# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a pod has proved of a node, so that not every run starts one: kept on the host until something changes there.

proof.json, root's alone:
  {'of':       a digest of all that the pod's success depends on in the cluster,
   'at':       when, seconds since the epoch, by the controller's clock,
   'evidence': what was seen,
   'changes':  a digest of the journal of our steps, and of the sockets of the kubelet and of the container runtime, as
               they were before the pod, when the host was read}
A step of ours ends it, one that was killed too, as each is written down before it begins. So does a start of the
kubelet or of the container runtime, which may have read another configuration and makes its socket anew; and the next
boot. What they were goes to the controller and comes back with the proof: what happens while the pod runs, or before
the proof is kept, ends it as well.
"""
from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import JOURNAL
from ..core.lock import DIRECTORY, GUARD
from ..core.plan import digest
from ..core.runtimes import KNOWN_RUNTIMES

PATH = DIRECTORY + "/proof.json"
KUBELET = "/var/lib/kubelet/device-plugins/kubelet.sock"
WATCHED = (JOURNAL, KUBELET, *(socket for runtime in KNOWN_RUNTIMES for socket in runtime.sockets))


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
    there = [(path, host.stat(path)) for path in WATCHED]
    return digest({path: [found.st_ino, found.st_size, found.st_mtime_ns]
                   for path, found in there if found is not None})
