# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Edits of a container runtime's files made as the executors make them, without a journal's steps around them."""
from __future__ import annotations

import json
from typing import Any, Iterable


def make(kind: Any, host: Any, edits: Iterable[Any]) -> None:
    """Each edit is worked out again on the file, from parameters that have been through JSON."""
    for edit in edits:
        text = edit.after
        if edit.parameters:
            text = kind.edited(edit.path, host.read(edit.path), json.loads(json.dumps(edit.parameters)))
            assert text == edit.after
        if text is None:
            host.remove(edit.path)
        else:
            host.write(edit.path, text)
