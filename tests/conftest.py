"""What holds for all tests."""

import os

# Threads of GNU OpenMP wait for each other by spinning. The operations of the tests are small, and
# as soon as another program wants the cores they take ten times as long. To be said before torch.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
