# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to wait for something that only asking tells."""
from __future__ import annotations

import time
from typing import Callable, Tuple, TypeVar

Answer = TypeVar("Answer")
FIRST_PAUSE_SECONDS = 0.05


def wait_for(
    ask: Callable[[], Answer],
    judge: Callable[[Answer], bool],
    limit: float,
    pause: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Tuple[Answer, bool]:
    """(the last answer, whether judge took it): asked at once, then until it is taken or the time is over.

    limit, pause: seconds; pauses grow with the time that has passed, from 0.05 up to pause. The last question is asked
    when the time is over: a process that got no processor for a while has not missed what came meanwhile.
    """
    began = clock()
    while True:
        passed = clock() - began
        answer = ask()
        taken = judge(answer)
        if taken or passed >= limit:
            return answer, taken
        growing = min(pause, FIRST_PAUSE_SECONDS + passed / 10)
        sleep(max(FIRST_PAUSE_SECONDS, min(growing, began + limit - clock())))
