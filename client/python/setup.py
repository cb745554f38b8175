"""Adds what was built to the wheel: liblossd_client.so, the libraries that it needs, the server, and the descriptors with comments.

They are taken from build/release of the source tree (`make` builds it), or where that is not there from another of its build directories, and keep
its layout inside the package. The libraries lie beside liblossd_client.so, which finds them, as the server does, by the relative run path that
they are linked with. Symbols for debuggers stay behind.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

BUILDS = Path(__file__).resolve().parents[2] / "build"
# Part of every Linux with the same or a newer glibc; two of one of them in a process do not go well together.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|cuda|nvidia-ml))\.so.*")


def needed_libraries(binary):
    """Paths of the shared libraries that the loader finds for a binary, by file name."""
    text = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True).stdout
    if "not found" in text:
        raise SystemExit(f"{binary} lacks libraries here:\n{text}")
    found = re.findall(r"^\s*(\S+) => (/\S+)", text, re.MULTILINE)
    return {name: path for name, path in found if not SYSTEM.fullmatch(name)}


def find_build():
    """The build directory to pack."""
    for build in [BUILDS / "release", *sorted(BUILDS.glob("*"))]:
        if all((build / path).exists() for path in ("lib/liblossd_client.so", "bin/lossd", "generated/ops.desc")):
            return build
    raise SystemExit(f"no library and server below {BUILDS}: run `make` in the source tree first")


def copy_stripped(source, target):
    shutil.copy(os.path.realpath(source), target)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", str(target)], check=True)


class BuildWithBinaries(build_py):
    def run(self):
        super().run()
        build = find_build()
        library, server = build / "lib" / "liblossd_client.so", build / "bin" / "lossd"
        package = Path(self.build_lib) / "lossd"
        for folder in ("lib", "bin", "generated"):
            (package / folder).mkdir(parents=True, exist_ok=True)
        copy_stripped(library, package / "lib" / library.name)
        copy_stripped(server, package / "bin" / "lossd")
        shutil.copy(build / "generated" / "ops.desc", package / "generated" / "ops.desc")
        for name, path in {**needed_libraries(library), **needed_libraries(server)}.items():
            shutil.copy(os.path.realpath(path), package / "lib" / name)


class WithBinaries(Distribution):
    def has_ext_modules(self):
        return True  # what is installed depends on the platform


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        # No extension module: any Python 3, on this platform.
        return "py3", "none", super().get_tag()[2]


setup(distclass=WithBinaries, cmdclass={"build_py": BuildWithBinaries, "bdist_wheel": PlatformWheel})
