"""Number formats in plain NumPy: spec, encode, decode, pack; kernels are tested against them."""
