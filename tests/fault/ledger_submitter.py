"""A process that submits for as long as it is let, saying every receipt aloud; tests kill it."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from tests.unit.ledger.making import NODE, observed

from ropewalk.ledger.channel.channel import open_log


def main(home: str, first: int, threads: int) -> None:
    """Submit different envelopes from several threads and print `number height index` for each receipt."""
    with open_log(
        Path(home), "ea.core", NODE, now_ns=time.time_ns, segment_bytes=200_000, wait_s=60
    ) as ledger:
        print("ready", flush=True)

        def work(offset: int) -> None:
            number = first + offset
            while True:
                receipt = ledger.log.submit(observed(number).raw)
                sys.stdout.write(f"{number} {receipt.height} {receipt.index}\n")
                sys.stdout.flush()
                number += threads

        workers = [threading.Thread(target=work, args=(offset,), daemon=True) for offset in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
