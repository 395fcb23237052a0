"""Networks that predict a click, a conversion or a count from integers and tokens.

One module per network, built from the layers of ``dp_core.clipping.layers``; how a network is trained is not here.

Doors: ``spec`` (a network by its name and numbers, and the registry), ``mlp`` (the base class of all networks),
``plain`` (the same networks in NumPy, for released models) and ``digest`` (of parameters).
"""
