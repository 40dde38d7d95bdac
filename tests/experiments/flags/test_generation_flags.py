"""Values of sampling flags outside their ranges are refused by name."""

from absl import flags
import pytest

from experiments.flags import generation_flags  # noqa: F401, its flags


@pytest.mark.parametrize("name, value", [
    ("temperature", "-0.1"), ("top_p", "1.5"), ("top_p", "-1"), ("top_k", "-1"),
    ("min_p", "1.1"), ("min_p", "-0.1"), ("typical_p", "2"),
])
def test_values_outside_the_range(name, value):
  with pytest.raises(flags.IllegalFlagValueError,
                     match=f"^flag --{name}={value}: .* is not "):
    flags.FLAGS[name].parse(value)


def test_control_values_inside_the_range():
  for name, value in (("temperature", "0"), ("top_p", "0.9"), ("top_k", "40"),
                      ("min_p", "0.05"), ("typical_p", "1")):
    assert flags.FLAGS[name].parser.parse(value) == float(value)
