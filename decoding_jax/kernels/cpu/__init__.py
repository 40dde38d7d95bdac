"""Native CPU kernels in C++, called through `jax.ffi`."""
