"""All that makes the models fast, behind plain signatures.

A model reads like the paper and calls the functions of this package; `tests/models_plain.py` has each of them once more
in a few slow lines of autograd, and the tests exchange one for the other.

packing         captions of different lengths without padding
recurrent       LSTM, GRU and the latents' recurrence over packed captions, with hand-written backward passes
decoder_cell    the decoder's cell (training, search and export), its loop over packed captions and its gradient
cross_entropy   vocabulary layer and loss in one, a part of the words at a time
rows            what rows that are decoded together share: pictures, tokens, transposed weights
gates           input projections whose picture part is computed once a picture
memory          keep freed memory for the next training step
"""

from coscap.models.kernels.cross_entropy import cross_entropy
from coscap.models.kernels.decoder_cell import (
    CellInputs,
    CellRegions,
    CellState,
    CellWeights,
    Tape,
    decoder_cell,
    decoder_loop,
)
from coscap.models.kernels.gates import InputGates, uniform
from coscap.models.kernels.memory import keep_freed_memory
from coscap.models.kernels.packing import Packing
from coscap.models.kernels.recurrent import (
    full,
    full_precision,
    gru,
    is_low,
    latent_recurrence,
    lstm,
    lstm_cell,
)
from coscap.models.kernels.rows import MANY, RowGroups, TransposedCopies, TransposedViews, UniqueTokens

__all__ = [
    "MANY",
    "CellInputs",
    "CellRegions",
    "CellState",
    "CellWeights",
    "InputGates",
    "Packing",
    "RowGroups",
    "Tape",
    "TransposedCopies",
    "TransposedViews",
    "UniqueTokens",
    "cross_entropy",
    "decoder_cell",
    "decoder_loop",
    "full",
    "full_precision",
    "gru",
    "is_low",
    "keep_freed_memory",
    "latent_recurrence",
    "lstm",
    "lstm_cell",
    "uniform",
]
