# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""JSON as API servers write it, less what is long and read by nobody, before it is parsed. Pure.

Of the text of a Node, two thirds are the names of its images, and much of the rest says who has set which field
(metadata.managedFields). To parse them takes as long as all else that is done with a list of nodes.
"""
from __future__ import annotations

from typing import List, Sequence

QUOTE, ESCAPE, END = b'"', b"\\", b"}]"


def without(text: bytes, names: Sequence[str]) -> bytes:
    """The text with the lists of these names empty that have objects in them. names: of keys, anywhere in the text.

    A list whose end is in doubt, or that is not written without blanks, stays as it is. A name and a bracket in a text
    are neither: the quotes there are escaped.
    """
    for name in names:
        text = _without(text, b'"%s":[' % name.encode())
    return text


def _without(text: bytes, beginning: bytes) -> bytes:
    parts: List[bytes] = []
    kept = 0
    start = text.find(beginning)
    while start >= 0:
        inside = start + len(beginning)
        end = text.find(END, inside)
        # As an escape before it, or a key that ends with the name, would have it
        if end >= 0 and text[start - 1:start] in (b",", b"{") and text[inside:inside + 1] == b"{" and _is_whole(
                text[inside:end]):
            parts.append(text[kept:inside])
            kept = inside = end + 1
        start = text.find(beginning, inside)
    return b"".join([*parts, text[kept:]]) if parts else text


def _is_whole(text: bytes) -> bool:
    """Whether each string that begins in it ends in it; False where nobody can say so at a glance."""
    quotes = text.count(QUOTE)
    if ESCAPE in text:
        if ESCAPE * 2 in text:
            return False
        quotes -= text.count(ESCAPE + QUOTE)
    return quotes % 2 == 0
