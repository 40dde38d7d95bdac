"""What the tests of published heads share."""

import pytest

from support import published_heads, tiny_models as tiny


@pytest.fixture(scope="module")
def target():
  """Of the heads: a small Llama of random parameters."""
  return tiny.random_model(published_heads.TARGET)
