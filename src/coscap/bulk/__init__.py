"""Whole collections: captions of very many pictures, on one machine or a cluster, as Parquet."""
