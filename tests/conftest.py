"""One thread for torch, the shared data where there are any, and what an error must look like."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("trimtab", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("trimtab")

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
if DATA.is_dir():
    os.environ.setdefault("TRIMTAB_DATA", str(DATA))
os.environ["TRIMTAB_OFFLINE"] = "1"  # no test reaches the network
# Ray reads these when it is imported: it stays on the loopback's addresses, and tells nobody.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"


@contextmanager
def _refused(*words: str) -> Iterator[None]:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        yield
    text = str(caught.value)
    assert "\n" not in text, text
    assert text.endswith("."), f"no sentence: {text}"
    assert not re.search(r"[.!?] [A-Z]", text), f"more than one sentence: {text}"
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


@pytest.fixture(autouse=True)
def _start_of_global_rng() -> None:
    """Start every test alike, whichever ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager[None]]:
    """Expect a ValueError of one sentence that holds these words."""
    return _refused


@pytest.fixture
def real_data() -> Path:
    """Skip a test of real data where there are none."""
    folder = os.environ.get("TRIMTAB_DATA")
    if not folder:
        pytest.skip("needs real data: set TRIMTAB_DATA to a folder that has them")
    return Path(folder)


@pytest.fixture
def same_global_rng() -> Iterator[None]:
    """Fail a test that draws from torch's global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    code = (
        "import sys; from pathlib import Path; from trimtab._files import Lock\n"
        "with Lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.kill()


@pytest.fixture
def held() -> Callable[[Path], AbstractContextManager[None]]:
    """A folder that another process writes, until it is killed: `with held(folder): ...`."""
    return _held
