"""Checks of what a method is made with."""

import math
import numbers


def check_number(name, value, low=-math.inf, high=math.inf):
  """Raises ValueError naming the option unless it is a number in a range.

  Args:
    name: of the option.
    value: what was given.
    low: the smallest number that is allowed.
    high: the largest one.
  """
  if not isinstance(value, numbers.Real) or not low <= value <= high:
    raise ValueError(f"{name}={value!r}: a number from {low} to {high} is "
                     "needed.")
