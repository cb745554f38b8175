import pytest

import lossd


def pytest_addoption(parser):
    parser.addoption("--build-dir", help="build directory whose library and server are tested")


def pytest_configure(config):
    lossd.load(config.getoption("--build-dir"))


@pytest.fixture(scope="session")
def client():
    with lossd.connect(name="pytest") as client:
        yield client
