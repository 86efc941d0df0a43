"""Block sizes and resources of a launch, and into how many splits the tokens of a head are cut."""

from functools import lru_cache
from typing import NamedTuple


class Launch(NamedTuple):
    """Tokens in a block, warps and pipeline stages of a program, and programs at a time on a multiprocessor.

    ``registers`` of a thread, if the compiler is to be held to a number.
    """

    block: int
    warps: int
    stages: int
    programs: int
    registers: int | None = None


@lru_cache(maxsize=1024)
def best_split(launches: tuple[Launch, ...], n: int, programs: int, processors: int) -> tuple[Launch, int]:
    """Which launch, and into how many splits to cut the n tokens of each program, to be done first.

    Programs come in waves, as many at a time as fit. They share a multiprocessor, so that a wave takes as
    long as the tokens of all the programs on one, and a start-up worth some 128 tokens each.
    """

    def time(launch: Launch, splits: int) -> int:
        waves = -(-programs * splits // (launch.programs * processors))
        blocks = -(-n // launch.block)
        return waves * launch.programs * (-(-blocks // splits) * launch.block + 128)

    choices = [
        (time(launch, splits), splits, launch)
        for launch in launches
        for splits in range(1, max(1, 4 * launch.programs * processors // programs) + 1)
        if splits <= -(-n // launch.block)
    ]
    _, splits, launch = min(choices, key=lambda choice: choice[:2])
    return launch, splits
