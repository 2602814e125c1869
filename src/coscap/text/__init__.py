"""What a caption is: its tokens, its objects, its context with slots, and the vocabulary of its units."""

from coscap.text.objects import ObjectClass, ObjectClasses, load_classes
from coscap.text.ptb import tokenise, tokenise_all
from coscap.text.slots import Split, fill, split
from coscap.text.vocabulary import Vocabulary

__all__ = [
    "ObjectClass",
    "ObjectClasses",
    "Split",
    "Vocabulary",
    "fill",
    "load_classes",
    "split",
    "tokenise",
    "tokenise_all",
]
