"""Whether the layers of a model are a loop of the compiled program: a flag."""

from absl import flags

from decoding_jax import kernels

_AUTO, _ON, _OFF = "auto", "on", "off"
# So many layers are unrolled in any case.
FEW = 8
_SCAN = flags.DEFINE_enum(
    "scan_layers", _AUTO, [_AUTO, _ON, _OFF],
    "Compile one layer, in a loop, instead of all: programs of many layers "
    f"compile in a part of the time. auto: on TPUs, with more than {FEW} "
    "layers; elsewhere layers are as they were saved, which is unrolled.")


def is_used(config) -> bool:
  """Returns whether layers are scanned: by the flag, or as saved."""
  # Who imports this without a command line gets the default.
  value = _SCAN.value if flags.FLAGS.is_parsed() else _AUTO
  if value != _AUTO:
    return value == _ON
  return config.scan_layers or (
      config.num_layers > FEW and not config.linear_key_heads
      and kernels.reads_slices())
