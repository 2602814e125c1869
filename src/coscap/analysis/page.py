"""The page of an analysis: what was done, the figures and the numbers."""

from coscap.analysis.run import Analysis
from coscap.analysis.variance import PARTS
from coscap.pages import table

_PART = {"context": "z^m alone", "objects": "z^o alone", "both": "only both together"}
_KIND = {
    "context": "context words (slots for objects)",
    "objects": "objects named",
    "caption": "whole caption (CIDEr's vector)",
    "looks": "regions looked at",
}
_HELD = {"context": "z^m of A", "objects": "z^o of A", "neither": "nothing of A"}


def page(found: Analysis, images: str, command: str) -> str:
    """Markdown; `images`: where the figures are, relative to the page."""
    return "\n\n".join([*_head(found, command), *_variance(found, images), *_swaps(found, images),
                        *_ways(found, images)]) + "\n"  # fmt: skip


def _head(found: Analysis, command: str) -> list[str]:
    return [
        "# What the two latents do",
        f"COS-CVAE splits its latent space: z^m is to hold how a scene is described, z^o which objects. Here the "
        f"latents of a trained model (weights `{found.weights[:12]}`) are taken apart: swapped between pictures, moved "
        f"one by one, and their noise varied in full crosses. Numbers are of {found.pictures:,} pictures of "
        f"`{found.split}` (swaps: {found.swaps['context'].pairs:,}); the photographs shown are the repository's own.",
        _in_short(found),
        f"<!-- not run: it needs a trained run -->\n```sh\n{command}\n```",
    ]


def _in_short(found: Analysis) -> str:
    """The main numbers as sentences."""
    words, named = found.shares["context"].within, found.shares["objects"].within
    held, free = found.swaps["context"], found.swaps["neither"]
    other = found.swaps["objects"]

    def share(part: tuple[float, float, float]) -> str:
        return f"{100 * part[0]:.1f} %"

    return (
        f"**In short.** At a fixed picture, z^m alone decides {share(words['context'])} of the variance of the context "
        f"words and z^o alone {share(words['objects'])}; of the objects named it is {share(named['context'])} and "
        f"{share(named['objects'])}. The rest needs both. The z^m of another picture's caption brings "
        f"{100 * held.context_kept:.1f} % of its context along ({100 * free.context_kept:.1f} % without it), and "
        f"{100 * held.true_of_b:.0f} % of the objects named are true of the picture at hand "
        f"({100 * free.true_of_b:.0f} % without it). The z^o of another brings {100 * other.objects_kept:.1f} % of its "
        f"object words along ({100 * free.objects_kept:.1f} %), and {100 * other.true_of_b:.0f} % are true."
    )


def _variance(found: Analysis, images: str) -> list[str]:
    rows = []
    for kind, shares in found.shares.items():
        # The regions of two pictures have nothing in common, so pictures cannot be compared by them.
        row = [_KIND[kind], "–" if kind == "looks" else _percent(shares.picture)]
        rows.append(row + [_percent(shares.within[part]) for part in PARTS])
    return [
        "## How much of the captions' variance each latent explains",
        f"For each picture, {found.count} noises of z^m are crossed with {found.count} noises of z^o; all "
        f"{found.count**2} captions are written with the likeliest word at each step, so that nothing else is random. "
        "The variance of what stands for the caption then falls into three parts that add up: what the noise of z^m "
        "decides whatever z^o does, what z^o decides whatever z^m does, and what only both together decide (estimated "
        "without bias by a two-way analysis of variance). A word that differs changes all that follow, so much is "
        "decided only together; z^m has a hand in the first and the third part, z^o in the second and the third. In "
        "brackets 95 % intervals of a bootstrap over pictures.",
        f"![Shares of variance]({images}/analysis-variance.png)",
        table(["", "the picture, of all", *(f"{_PART[part]}, at a fixed picture" for part in PARTS)], rows),
    ]


def _swaps(found: Analysis, images: str) -> list[str]:
    rows = [
        [_HELD[held], *(f"{100 * value:.1f} %" for value in (
            each.context_kept, each.objects_kept, each.true_of_b, each.true_of_a))]
        for held, each in found.swaps.items()
    ]  # fmt: skip
    head = [
        "held",
        "context of A's caption kept",
        "object words kept",
        "objects true of B",
        "objects true of A",
    ]
    figure = [
        f"![Contexts of one photograph on others]({images}/analysis-swap.png)",
        "Blue words are context, red-brown ones objects. On the diagonal (grey) the caption meets its own photograph.",
    ]
    return [
        "## Contexts and objects swapped between pictures",
        "A caption of picture A is drawn and its latents are read at every word. Picture B is then captioned with "
        "one of them held at these values; the other is drawn from B's own prior. An object is true of a picture if "
        "one of its human captions names it.",
        table(head, rows),
        *(figure if found.photos else []),
    ]


def _ways(found: Analysis, images: str) -> list[str]:
    rows = []
    for name, each in found.activity.items():
        active = each.kl > 0.01
        rows.append([
            "z^m" if name == "context" else "z^o",
            f"{each.kl.sum():.2f}",
            f"{int(active.sum())} of {len(each.kl)}",
            f"{100 * each.changed_context[active].mean():.0f} %" if active.any() else "–",
            f"{100 * each.changed_objects[active].mean():.0f} %" if active.any() else "–",
        ])  # fmt: skip
    head = [
        "",
        "nats a word",
        "dimensions above 0.01 nats",
        "context words replaced",
        "object words replaced",
    ]
    between = [
        "## From one draw to another",
        "The noise of the first draw is turned into that of the second in equal steps: of z^m, of z^o, and of both. "
        "Grey captions repeat the one above.",
        *(
            f"![Captions of {name} between two draws]({images}/analysis-turn-{name}.png)"
            for name in found.photos
        ),
    ]
    return [
        "## One dimension at a time",
        "All noise is 0, and one dimension is moved at every word. Replaced: the share of words (Jaccard) in which the "
        "caption at -2 or +2 deviations differs from that at 0, mean over the dimensions above 0.01 nats.",
        table(head, rows),
        f"![Activity of the dimensions]({images}/analysis-activity.png)",
        *(f"![Captions of {name} while dimensions move]({images}/analysis-dimensions-{name}.png)"
          for name in found.photos),
        *(between if found.photos else []),
    ]  # fmt: skip


def _percent(triple: tuple[float, float, float]) -> str:
    value, low, high = (100 * each for each in triple)
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
