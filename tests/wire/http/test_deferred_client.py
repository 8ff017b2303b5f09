"""aiohttp's server without its client: each case in an interpreter of its own, as ours has imported both."""

import subprocess
import sys

import pytest

from tests import ROOT

BEGIN = "import sys\nfrom wire.http.deferred_client import defer_http_client\n"
CLIENT = "print(*(name for name in ('aiohttp.client', 'aiohttp.connector') if name in sys.modules))\n"


def run_python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", BEGIN + code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_server_comes_without_the_client():
    assert run_python("defer_http_client()\nfrom aiohttp import typedefs, web\nweb.Application()\n" + CLIENT) == ""


def test_a_name_of_the_package_itself_brings_the_client_which_knows_the_server_that_is_there():
    code = (
        "defer_http_client()\nfrom aiohttp import web\nimport aiohttp\n"
        "assert aiohttp.ClientError is sys.modules['aiohttp.client_exceptions'].ClientError\n"
        "assert aiohttp.hdrs is sys.modules['aiohttp.hdrs'] and aiohttp.web is web\n"
        "assert aiohttp.__version__ == aiohttp.http.__version__ and 'ClientSession' in aiohttp.__all__\n"
    )
    assert run_python(code + CLIENT) == "aiohttp.client aiohttp.connector"


@pytest.mark.further
def test_a_name_that_is_none_is_an_attribute_error():
    code = "defer_http_client()\nimport aiohttp\nprint(hasattr(aiohttp, 'no_such_name'), hasattr(aiohttp, 'hdrs'))\n"
    assert run_python(code) == "False True"


@pytest.mark.further
def test_a_package_that_is_imported_already_stays_as_it_is():
    code = "import aiohttp\nbefore = aiohttp\ndefer_http_client()\nprint(sys.modules['aiohttp'] is before)\n"
    assert run_python(code) == "True"
