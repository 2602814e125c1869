"""What the latents of a COS-CVAE do: `coscap analyse`.

swap         z^m of one picture's caption on another picture: does the context come along, and whose objects?
traverse     one dimension of a latent moved, or one draw turned into another: which words change?
variance     how much of the captions' variance z^m explains, how much z^o, how much only both together
"""
