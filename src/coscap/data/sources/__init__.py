"""Readers of captions: each gives a `Source`, and tells `Troubles` of every bad item."""
