"""Language models; they know of the library only `decoding_jax.types`."""
