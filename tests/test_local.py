"""What is here already is found without what a network needs."""

import subprocess
import sys

from fewbit.checkpoint.catalogue import CATALOGUE
from fewbit.checkpoint.local import local_path, packaged_folder, packaged_path


def test_a_path_that_exists_is_here(tmp_path):
    assert local_path(str(tmp_path), tmp_path) == tmp_path
    assert local_path(str(tmp_path / "absent"), tmp_path) is None
    assert local_path("", tmp_path) is None


def test_a_model_of_the_catalogue_is_here_when_it_is_whole(tmp_path):
    name, model = next(iter(CATALOGUE.items()))
    target = packaged_path(model, packaged_folder(name, tmp_path))
    assert local_path(name, tmp_path) is None
    target.parent.mkdir(parents=True)
    target.write_bytes(b"cut")
    assert local_path(name, tmp_path) is None
    with target.open("r+b") as file:
        file.truncate(model.file_bytes)
    assert local_path(name, tmp_path) == target


def test_generating_imports_nothing_of_a_network():
    code = (
        "import sys, fewbit.engine.loaded, fewbit.engine.engine, fewbit.report.generation\n"
        "from fewbit.cli.pull import locate\n"
        "locate('.')\n"
        "print(sorted({'urllib.request', 'http.client', 'ssl', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
