"""Language models; of the library they know `types` and `kernels` alone."""
