"""Outlast for Spack, built from a checkout.

    spack repo add packaging/spack
    spack dev-build --source-path $PWD outlast@0.1.0
"""

import os

from spack.package import *


class Outlast(Package):
    """A key-value store in the memories of the processes of a parallel program, which outlasts the
    death of any of them: for Rust, C, C++, Fortran and Python, with or without MPI."""

    version("0.1.0")
    license("MIT OR Apache-2.0")

    variant("mpi", default=True, description="Compile the plug-in for Open MPI 5 with ULFM")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    depends_on("openmpi@5:", when="+mpi")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("xtask", "install", "--prefix", prefix)
        if spec.satisfies("+mpi"):
            # The library and the command find the plug-in in the folder of libraries.
            os.environ["MPICC"] = os.path.join(spec["openmpi"].prefix.bin, "mpicc")
            outlast = Executable(os.path.join(prefix.bin, "outlast"))
            outlast("mpi", "setup", "--to", os.path.join(prefix.lib, "liboutlast_mpi.so"))
