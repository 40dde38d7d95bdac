"""Operations with native CPU kernels, each beside its pure-JAX reference."""
