"""The onnxruntime side of the seam between models and searches (coscap.seam): the same captions as with torch.

start.onnx   regions ─▶ pictures (keys, values, masked, gates), once a picture
step.onnx    tokens, noise, pictures, states ─▶ log-probabilities, attention, next states
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.noise import CONTEXT_NOISE, OBJECT_NOISE, Words, normal_blocks, normals, row_keys, uniforms
from coscap.runtime.candidates import candidates
from coscap.seam import Candidates, Floats, Ints, LatentValues, RegionArrays, TokenMask

Arrays = Mapping[str, NDArray[Any]]
COLUMNS = ("keys", "values", "masked", "object_keys", "object_means")  # of pictures: a column for each region
STREAMS = {"context": CONTEXT_NOISE, "object": OBJECT_NOISE}
AHEAD = {"context": 12, "object": 4}  # tokens (or objects) whose noise is made at once
LIKELIEST, GUMBEL = (
    "likeliest",
    "gumbel",
)  # how one of several values is chosen for each draw, as in coscap.models.pos


@dataclass(frozen=True)
class Given:
    """Values of one latent that are used instead of draws."""

    values: Floats  # (N, T, Z)
    lengths: Ints  # (N,) for how many tokens (or objects) they are given

    def take(self, rows: Ints) -> "Given":
        return Given(self.values[rows], self.lengths[rows])

    def or_else(self, other: "Given") -> "Given":
        """The first value of each row, that of the other where none is given."""
        own = self.lengths > 0  # (N,)
        return Given(
            np.where(own[:, None, None], self.values[:, :1], other.values), np.ones_like(self.lengths)
        )


@dataclass(frozen=True)
class GraphState:
    """N rows. `pictures` and the temperature are shared by all, everything else has a row for each."""

    pictures: Arrays  # keys, values, masked, gates: (P, ...)
    width: int  # R of the pictures as they were given; the graph sees those columns that hold a region
    temperatures: NDArray[np.float32]  # (2,) of z^m and z^o
    owners: Ints  # (N,) the picture of each row
    keys: Words  # (N,) what the noise is seeded with
    arrays: Arrays  # hidden states and latents, (N, ...)
    given: Mapping[str, Given]
    step: int = 0
    noise: Mapping[str, Floats] = field(default_factory=dict)  # of the first tokens, (N, AHEAD, width)
    history: tuple[Arrays, ...] | None = None  # latents of each token so far

    @property
    def rows(self) -> int:
        return len(self.owners)

    def select(self, rows: Ints) -> "GraphState":
        def take(arrays: Arrays) -> Arrays:
            return {name: values[rows] for name, values in arrays.items()}

        return replace(
            self,
            owners=self.owners[rows],
            keys=self.keys[rows],
            arrays=take(self.arrays),
            given={name: each.take(rows) for name, each in self.given.items()},
            noise=take(self.noise),
            history=None if self.history is None else tuple(take(each) for each in self.history),
        )

    def latents(self) -> LatentValues:
        if self.history is None:
            raise ValueError("this state does not record its latents; start it with record=True")
        lengths = np.full(self.rows, len(self.history))
        columns = {
            name: np.stack([each[name] for each in self.history], axis=1)
            for name in (self.history[0] if self.history else ())
        }  # (N, T, ...)
        context, objects = columns.get("context_z"), columns.get("object_z")
        drawn = columns.get("object_drawn")
        if drawn is None or objects is None:
            return LatentValues(lengths, context, objects)
        each = np.zeros((self.rows, int(drawn.max()), objects.shape[2]), np.float32)
        each[np.arange(self.rows)[:, None], drawn - 1] = objects  # the same value at every token of an object
        return LatentValues(lengths, context, each, object_lengths=drawn[:, -1])


class GraphStepper:
    """A model's two graphs as searches use them."""

    def __init__(self, start: Any, step: Any, manifest: Mapping[str, Any], digest: str) -> None:
        """`start` and `step` are sessions of onnxruntime, `manifest` says what the graphs need."""
        self._start, self._step = start, step
        self.digest = digest
        self._latents: dict[str, int] = manifest["latents"]  # normals that a draw of context (, object) takes
        self._states: dict[str, int] = manifest["states"]  # widths; 0: one number for each row
        self._quiet = manifest["temperature_mode"] == "scale"  # no noise is needed where the temperature is 0
        self._choice: str = manifest.get("choice", LIKELIEST)
        self._encoded = [each.name for each in start.get_outputs()]
        self._once = "context_condition" in self._encoded  # z is drawn before the first token, and stays
        self._outputs = [each.name for each in step.get_outputs()]
        self._inputs = {each.name for each in step.get_inputs()}
        self.latent_names: tuple[str, ...] = ("context", "objects")[: len(self._latents)]
        self._last: tuple[RegionArrays, Arrays] | None = None  # the pictures that were started last

    def start(
        self,
        regions: RegionArrays,
        draws: int,
        *,
        seed: int = 0,
        latent_temperature: float = 1.0,
        latents: LatentValues | None = None,
        record: bool = False,
    ) -> GraphState:
        regions = RegionArrays.of(regions)
        rows = len(regions) * draws
        pictures, given = self._pictures(regions), _given(latents, rows)
        keys = row_keys(seed, regions.keys, range(draws))
        if "context_choices" in pictures:
            chosen = self._chosen(pictures, keys[::draws], draws, latent_temperature)
            given["context"] = chosen if "context" not in given else given["context"].or_else(chosen)
        return GraphState(
            pictures=pictures,
            width=regions.mask.shape[1],
            temperatures=np.full(2, latent_temperature, np.float32),
            owners=np.repeat(np.arange(len(regions)), draws),
            keys=keys,
            arrays={
                name: np.zeros((rows, width), np.float32) if width else np.zeros(rows, np.int64)
                for name, width in self._states.items()
            },
            given=given,
            history=() if record else None,
        )

    def _chosen(self, pictures: Arrays, keys: Words, draws: int, temperature: float) -> Given:
        """A value for each draw of each picture: the likeliest ones, or those that Gumbel noise puts first."""
        logs = pictures["context_condition"]  # (P, K)
        if self._choice == GUMBEL:
            u = uniforms(keys, CONTEXT_NOISE, 0, logs.shape[1])
            logs = logs - (temperature * np.log(-np.log(u))).astype(logs.dtype)
        ranked = np.argsort(-logs, axis=1, kind="stable")
        chosen = ranked[:, np.arange(draws) % logs.shape[1]].ravel()  # (P draws,)
        return Given(pictures["context_choices"][chosen][:, None], np.ones(len(chosen), np.int64))

    def _pictures(self, regions: RegionArrays) -> Arrays:
        """What the step needs of pictures. Those of the last call are kept: what was found is rescored next."""
        last = self._last
        if last is None or last[0] is not regions:
            values = self._start.run(
                self._encoded,
                {
                    "features": np.ascontiguousarray(regions.features, np.float32),
                    "boxes": np.ascontiguousarray(regions.boxes, np.float32),
                    "labels": np.ascontiguousarray(regions.labels, np.int64),
                    "scores": np.ascontiguousarray(regions.scores, np.float32),
                    "mask": np.ascontiguousarray(regions.mask),
                },
            )
            last = self._last = regions, _trimmed(dict(zip(self._encoded, values, strict=True)))
        return last[1]

    def step(
        self,
        tokens: Ints,
        state: GraphState,
        k: int | None,
        *,
        named: Ints | None = None,
        mask: TokenMask | None = None,
    ) -> tuple[Candidates, GraphState, Floats]:
        ids, places = _distinct(tokens)
        feed: dict[str, NDArray[Any]] = {
            "ids": ids,
            "places": places,
            "owners": state.owners,
            "temperatures": state.temperatures,
            **state.pictures,
            **state.arrays,
        }
        noise = dict(state.noise)
        for name, width in self._latents.items():
            feed |= self._latent(name, width, state, noise)
        values = self._step.run(self._outputs, {name: feed[name] for name in self._inputs})
        found = dict(zip(self._outputs, values, strict=True))
        arrays = {name: found[f"next_{name}"] for name in state.arrays}
        history = state.history
        if history is not None:
            kept = {name: each for name, each in arrays.items() if name.endswith(("_z", "_drawn"))}
            history = (*history, kept)
        attention = np.zeros((len(tokens), state.width), np.float32)
        attention[:, : found["attention"].shape[1]] = found["attention"]
        after = replace(state, arrays=arrays, step=state.step + 1, noise=noise, history=history)
        return candidates(found["log_probabilities"], k, named, mask), after, attention

    def _latent(
        self, name: str, width: int, state: GraphState, made: dict[str, Floats]
    ) -> dict[str, NDArray[Any]]:
        """Noise (N, width), and values (N, Z) for the rows that `use` them, of one latent at this token; `made` keeps
        the noise that was made ahead."""
        number = state.arrays.get(
            f"{name}_drawn", state.step
        )  # (N,) where a latent is not drawn at each token
        given = state.given.get(name)
        values, use = np.zeros_like(state.arrays[f"{name}_z"]), np.zeros(state.rows, np.int64)
        if given is not None:
            number_of = np.broadcast_to(number, state.rows)
            last = np.minimum(number_of, given.values.shape[1] - 1)
            values = np.ascontiguousarray(given.values[np.arange(state.rows), last], np.float32)
            use = (number_of < given.lengths).astype(np.int64)
        needed = not use.all() and not (self._once and state.step)
        if not needed or (self._quiet and state.temperatures[0] == 0):
            noise = np.zeros((state.rows, width), np.float32)
        elif self._once or np.max(number) >= AHEAD[name]:
            noise = normals(state.keys, STREAMS[name], number, width)
        else:
            if name not in made:
                made[name] = normal_blocks(state.keys, STREAMS[name], AHEAD[name], width)
            noise = made[name][np.arange(state.rows), number]
        return {f"{name}_noise": noise, f"{name}_given": values, f"{name}_use": use}


def _distinct(tokens: Ints) -> tuple[Ints, Ints]:
    """The tokens that occur, rising, and the place of each among them; for a few of them faster than np.unique."""
    given = tokens.tolist()
    ids = sorted(set(given))
    place = {token: at for at, token in enumerate(ids)}
    return np.array(ids, np.int64), np.array([place[token] for token in given], np.int64)


def _given(latents: LatentValues | None, rows: int) -> dict[str, Given]:
    if latents is None:
        return {}
    if len(latents.lengths) != rows:
        raise ValueError(f"{len(latents.lengths)} rows of latents for {rows} rows to decode")
    found = {}
    if latents.context is not None:
        found["context"] = Given(latents.context, latents.lengths)
    if latents.objects is not None:
        counted = latents.object_lengths
        found["object"] = Given(latents.objects, latents.lengths if counted is None else counted)
    return found


def _trimmed(pictures: dict[str, NDArray[Any]]) -> Arrays:
    """Without the last columns that no picture has a region in."""
    used = np.isfinite(pictures["masked"]).any(axis=0)  # (R,)
    width = int(np.flatnonzero(used).max()) + 1
    if width == len(used):
        return pictures
    columns = [each for each in COLUMNS if each in pictures]
    return pictures | {name: np.ascontiguousarray(pictures[name][:, :width]) for name in columns}
