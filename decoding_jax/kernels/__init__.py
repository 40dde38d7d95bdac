"""Operations that have native CPU kernels, each next to its reference in JAX.

A call runs the kernel on a CPU where it knows the arguments, else the
reference, with equal numbers up to rounding and the reference's derivatives.
Nothing outside of this folder branches on a platform.
`DECODING_JAX_KERNELS=xla` makes the references compute everything.
"""

from decoding_jax.kernels.buffers import (commit, empty_like, take_along,
                                          write_slots, zeros)
from decoding_jax.kernels.cpu.bindings import available, is_tracing, prepare
from decoding_jax.kernels.dispatch import (compile_for, compiler_options,
                                           cores, host_device, is_cpu,
                                           reads_slices)
from decoding_jax.kernels.dot_product_attention import Span
from decoding_jax.kernels.dot_product_attention import attention, soft_cap
from decoding_jax.kernels.elementwise import add, swiglu
from decoding_jax.kernels.gumbel import gumbel_top_k, top_k
from decoding_jax.kernels.linear import dequantized, matmul, matmuls
from decoding_jax.kernels.mesh_axes import (is_split, split_by_compiler,
                                            SplitSlots)
from decoding_jax.kernels.norms import log_normalizer, rms_norm
from decoding_jax.kernels.random import threefry_hashes

__all__ = [
    "Span", "SplitSlots", "add", "attention", "available", "commit",
    "compile_for", "compiler_options", "cores", "dequantized", "empty_like",
    "gumbel_top_k", "host_device", "is_cpu", "is_split", "is_tracing",
    "log_normalizer", "matmul", "matmuls", "prepare", "reads_slices",
    "rms_norm", "soft_cap", "split_by_compiler", "swiglu", "take_along",
    "threefry_hashes", "top_k", "write_slots", "zeros",
]
