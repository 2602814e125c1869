"""How the tokens of a caption are chosen, on NumPy: latent sampling, beam, diverse and constrained beam search.

`coscap.search.generate.generate` is the way in. Nothing is imported here: the command reads `coscap.search.config` for
its options, and help needs no NumPy.
"""
