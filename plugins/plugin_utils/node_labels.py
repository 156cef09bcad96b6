# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Labels of a Node as a task says them. Pure."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping


@dataclass(frozen=True)
class LabelTexts:
    """there: with their values; gone: keys of choices that the host does not make any more."""

    there: Dict[str, str]
    gone: List[str]


def label_texts(labels: Mapping[str, Any], choices: Mapping[str, Any]) -> LabelTexts:
    """A choice without a value is taken away: a host that chooses no longer has what the others have."""
    chosen = {key: _text(value) for key, value in choices.items()}
    return LabelTexts({**{key: _text(value) for key, value in labels.items()},
                       **{key: value for key, value in chosen.items() if value}},
                      [key for key, value in chosen.items() if not value])


def _text(value: Any) -> str:
    """YAML's true is meant as the label value "true", and nothing as none."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
