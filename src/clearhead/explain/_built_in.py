"""Names of the examples that come with clearhead. Imports no torch: the command line lists them in its help."""

BUILT_IN = ("two-heads", "two-heads-projected", "song", "song-causal")
