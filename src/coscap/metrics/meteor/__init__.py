"""METEOR 1.5, our own: normaliser, word tables, aligner, score. The official jar is there for those who ask."""

from coscap.metrics.meteor.scorer import Meteor, corpus_score, scores

__all__ = ["Meteor", "corpus_score", "scores"]
