"""What DeepSpeed and the parts of torch it uses warn about on every start, silenced for tests of the learner alone."""

import pytest

SILENCED = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:.*torch.distributed.*is deprecated:FutureWarning",
    "ignore::ResourceWarning",
)
