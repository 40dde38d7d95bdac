"""Origin of results, the first lines of each `summary.md`."""

import collections

from experiments.harness import store

# Fields of settings that have a line of their own.
_MODELS = ("target", "draft", "reward", "dtypes", "dtype", "draft_dtype",
           "weights", "draft_weights")
_DIGESTS = ("models", "used_prompts", "used_examples")


def markdown(settings) -> str:
  """Describes models, device, versions and settings of a run, as a list.

  Mappings among the settings, and long lists, are left to `run.json`.
  """
  others = [x for x in settings if x not in (*_MODELS, *_DIGESTS)]
  return "\n".join([f"- Models: {_fields(settings, _MODELS)}.",
                    f"- Device: {_device()}.", f"- Versions: {_versions()}.",
                    f"- Settings: {_fields(settings, others)}."])


def fields(settings) -> dict[str, str]:
  """Returns models, device and versions of a run, for each line of a file."""
  return {**{name: _text(settings[name]) for name in _MODELS
             if name in settings and _is_short(settings[name])},
          "device": _device(), "versions": _versions()}


def _device():
  environment = store.environment()
  counts = collections.Counter(environment["devices"])
  devices = ", ".join(f"{n} x {model}" for model, n in counts.items())
  return (f"{devices}; {environment['cpus']} CPU cores, "
          f"{environment['kernels']} kernels; {environment['platform']}")


def _versions():
  environment = store.environment()
  return ", ".join([f"Python {environment['python']}", *(
      f"{name} {version}" for name, version
      in environment["versions"].items())])


def _fields(settings, names):
  return ", ".join(f"{name}={_text(settings[name])}" for name in names
                   if name in settings and _is_short(settings[name]))


def _is_short(value):
  if isinstance(value, (list, tuple)):
    return all(isinstance(x, (str, int, float)) for x in value)
  return value not in ("", None) and not isinstance(value, dict)


def _text(value):
  if isinstance(value, (list, tuple)):
    return "/".join(map(str, value)) or "none"
  return str(value)
