"""Models: configurations of the decoder families, the Program they give, and how one is run."""
