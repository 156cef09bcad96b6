# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An environment for a release of ansible-core is made once, however many want it."""
from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import List, Sequence, Union

import cores


def test_two_who_want_it_at_once_make_it_once(tmp_path: Path) -> None:
    made: List[str] = []

    def run(argv: Sequence[Union[str, Path]]) -> None:
        made.append(str(argv[1]))
        if argv[1] == "-m":
            Path(argv[3]).mkdir()
        time.sleep(0.1)

    def want() -> None:
        cores.environment(tmp_path, "2.21", "python3.12", [], run)

    several = [threading.Thread(target=want) for _each in range(3)]
    for each in several:
        each.start()
    for each in several:
        each.join()
    assert made == ["-m", "install"]
