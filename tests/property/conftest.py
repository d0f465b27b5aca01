"""How many examples the property tests try: HYPOTHESIS_PROFILE=fast (default) for every run, deep for a long search.

``few`` is for mutants, each of which runs them again.
"""

import os

from hypothesis import HealthCheck, Phase, settings

# The machine that runs this may be busy: a slow example is not a wrong one.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# What varies without making a difference is explained in a long search only: it takes longer than the run itself.
_PHASES = [Phase.explicit, Phase.generate, Phase.shrink]

settings.register_profile("fast", _COMMON, max_examples=100, derandomize=True, phases=_PHASES)
settings.register_profile("few", _COMMON, max_examples=20, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.register_profile("deep", _COMMON, max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
