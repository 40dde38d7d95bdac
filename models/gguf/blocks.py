"""Blocks of quantised types, as values in groups of inputs.

A block has the numbers of some inputs of one row. The layouts are of
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Products of a
scale and a number are exact in float32, so that values in groups are what the
package `gguf` dequantises, to the bit.
"""

from typing import NamedTuple

import numpy as np


class Groups(NamedTuple):
  """What `kernels.dequantized` takes, of rows `[..., out, in]`."""
  values: np.ndarray  # int8 `[..., in]`, or uint8 `[..., in / 2]`
  scales: np.ndarray  # `[..., groups]`, float16 or float32
  least: np.ndarray | None = None


def groups(ggml_type: str, rows: np.ndarray) -> Groups:
  """Returns rows `[..., bytes]` uint8 of a type of `TYPES` in groups."""
  size, read = TYPES[ggml_type]
  parts = read(rows.reshape(*rows.shape[:-1], -1, size))
  if len(parts) == 2 and rows.shape[-1] == size and parts[1].shape[-1] == 1:
    parts = *parts, 0 * parts[1]  # One scale alone is of int8 by rows.
  return Groups(*(None if x is None else np.ascontiguousarray(
      x.reshape(*rows.shape[:-1], -1)) for x in parts))


def _half(bytes_):
  return np.ascontiguousarray(bytes_).view(np.float16)


def _q4_0(x):
  scale = _half(x[..., :2])
  return x[..., 2:], scale, scale * np.float16(-8)


def _q4_1(x):
  return x[..., 4:], _half(x[..., :2]), _half(x[..., 2:4])


def _q5_0(x):
  return _five_bits(x[..., 2:6], x[..., 6:]) - np.int8(16), _half(x[..., :2])


def _q5_1(x):
  return (_five_bits(x[..., 4:8], x[..., 8:]), _half(x[..., :2]),
          _half(x[..., 2:4]))


def _q8_0(x):
  return x[..., 2:].view(np.int8), _half(x[..., :2])


def _five_bits(fifth, lower):
  upper = np.unpackbits(fifth, axis=-1, bitorder="little") << 4
  return (_halves(lower) | upper).astype(np.int8)


def _halves(x):
  """Returns numbers of 4 bits: of the lower halves of bytes, then the upper."""
  return np.concatenate([x & 15, x >> 4], -1)


def _q4_k(x):
  # Of 32 bytes the lower halves are a group, and the upper ones the next.
  four = _of_pairs(x[..., 16:])
  packed = four[..., :16] | (four[..., 16:] << 4)
  return packed, *_two_levels(x)


def _q5_k(x):
  fifth = x[..., 16:48]
  bits = (fifth[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
  four = _of_pairs(x[..., 48:])
  return (four | (bits << 4)).astype(np.int8), *_two_levels(x)


def _of_pairs(x):
  """Returns numbers `[..., 8, 32]` of 4 bits, of bytes `[..., 4 * 32]`."""
  x = x.reshape(*x.shape[:-1], 4, 1, 32)
  return np.concatenate([x & 15, x >> 4], -2).reshape(*x.shape[:-3], 8, 32)


def _two_levels(x):
  """Returns scales and least numbers of groups, of a block's own and 6 bits."""
  whole = _half(x[..., :4]).astype(np.float32)
  first, second, rest = (x[..., at:at + 4] for at in (4, 8, 12))
  scales = [first & 63, (rest & 15) | ((first >> 6) << 4)]
  least = [second & 63, (rest >> 4) | ((second >> 6) << 4)]
  return (whole[..., :1] * np.concatenate(scales, -1),
          -whole[..., 1:] * np.concatenate(least, -1))


def _q6_k(x):
  lower = x[..., :128].reshape(*x.shape[:-1], 2, 1, 2, 32)
  lower = np.concatenate([lower & 15, lower >> 4], -3)
  upper = x[..., 128:192].reshape(*x.shape[:-1], 2, 1, 32)
  upper = (upper >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
  values = lower | (upper << 4).reshape(lower.shape)
  scales = x[..., 192:208].view(np.int8) * _half(x[..., 208:]).astype(
      np.float32)
  return values.astype(np.int8) - np.int8(32), scales


# Bytes of a block, and how they are read.
TYPES = {"Q4_0": (18, _q4_0), "Q4_1": (20, _q4_1), "Q5_0": (22, _q5_0),
         "Q5_1": (24, _q5_1), "Q8_0": (34, _q8_0), "Q4_K": (144, _q4_k),
         "Q5_K": (176, _q5_k), "Q6_K": (210, _q6_k)}
