"""Puts a copy of configs/ into the package when it is built; pyproject.toml says everything else."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Where attree is installed for editing, it finds the folder itself, so that there is one copy."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            copy = Path(self.build_lib, "attree", "configs")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree("configs", copy)


setup(cmdclass={"build_py": BuildWithConfigs})
