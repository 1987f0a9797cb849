"""What the package itself offers: its version, its command, its exceptions, and where its notices go."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from jobs import command, environment

import farandole
from farandole import exceptions


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *arguments]
    variables = environment(FARANDOLE_COMMAND=command())
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=100, check=False)


def test_the_version_is_that_of_the_command() -> None:
    said = subprocess.run([command(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert farandole.__version__ in said.stdout.split()


def test_python_m_farandole_is_the_command() -> None:
    expected = subprocess.run([command(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert python("-m", "farandole", "--version").stdout == expected.stdout
    wrong = python("-m", "farandole", "run", "--no-such-flag")
    assert wrong.returncode == 2 and "--no-such-flag" in wrong.stderr, wrong


@pytest.mark.parametrize("name", ["RankLostError", "MismatchError", "StallError"])
def test_who_catches_horovods_exception_catches_ours(name: str) -> None:
    kind = getattr(farandole, name)
    assert issubclass(kind, farandole.FarandoleError)
    assert issubclass(farandole.FarandoleError, exceptions.HorovodInternalError)
    error = pickle.loads(pickle.dumps(kind("rank 1 is gone")))
    assert type(error) is kind and exceptions.class_of(error) is kind and str(error) == "rank 1 is gone"
    assert exceptions.named_in(f"UNKNOWN: farandole.{name}: rank 1 raised MismatchError: no") == (
        kind,
        "rank 1 raised MismatchError: no",
    )
    assert exceptions.named_in(f"UNKNOWN: {name}: of another library") is None


def test_a_notice_reaches_a_user_who_has_not_configured_logging_and_one_who_has() -> None:
    script = """if True:
        import logging, sys
        if sys.argv[1] == "configured":
            logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
        from farandole.torch.elastic import training
        training._say("the training goes on with 2 rank(s)")
    """
    plain = python("-c", script, "plain")
    assert (plain.stdout, plain.stderr) == ("", "farandole: the training goes on with 2 rank(s)\n")
    configured = python("-c", script, "configured").stdout
    assert configured == "farandole.torch.elastic.training WARNING farandole: the training goes on with 2 rank(s)\n"
