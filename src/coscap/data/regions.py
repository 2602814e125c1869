"""Published regions into a store of ours, where a file may have bad pictures."""

from pathlib import Path

from coscap.data.records import Troubles
from coscap.errors import UserError
from coscap.progress import track
from coscap.vision.published import Store
from coscap.vision.store import StoreWriter


def convert(source: Store, out: str | Path, troubles: Troubles) -> int:
    """Write all pictures of `source`; the first bad one stops, or is left out and counted. Gives their number."""
    with StoreWriter(out, source.recipe) as writer:
        for position in track(range(len(source)), "converting regions", unit="pictures"):
            try:
                regions = source.at(position)
            except UserError as error:
                troubles.report("bad regions", str(error).rstrip("."))
                continue
            writer.add(int(source.ids[position]), regions)
        return len(writer)
