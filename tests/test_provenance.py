"""Generation settings and revisions: what two models say of where they come from."""

import json

import pytest
from tiny_subjects import write_subject

from fewbit.checkpoint import open_checkpoint
from fewbit.errors import IdentityError
from fewbit.evaluate.provenance import compare_generation, revision_of


def folder(tmp_path, name, settings):
    found = write_subject(tmp_path / name)
    if settings is not None:
        (found / "generation_config.json").write_text(json.dumps(settings))
    return open_checkpoint(found)


def test_equal_settings_are_counted_and_who_wrote_them_does_not_matter(tmp_path):
    one = folder(tmp_path, "a", {"temperature": 0.6, "transformers_version": "4.1"})
    other = folder(tmp_path, "b", {"temperature": 0.6, "transformers_version": "5.0"})
    assert compare_generation(one, other) == "1 settings"


@pytest.mark.parametrize("settings", [{"temperature": 0.7, "top_p": 0.9}, {"top_p": 0.9}, None])
def test_a_difference_is_refused_by_name(tmp_path, settings):
    one = folder(tmp_path, "a", {"temperature": 0.6, "top_p": 0.9})
    with pytest.raises(IdentityError, match=r"configuration's 'temperature' is 0\.6 in the source"):
        compare_generation(one, folder(tmp_path, "b", settings))


def test_a_revision_is_read_from_a_hub_s_cache_alone(tmp_path):
    place = tmp_path / "models--org--name" / "snapshots" / "abc123" / "model"
    place.mkdir(parents=True)
    assert revision_of(place) == revision_of(place.parent) == "abc123"
    assert revision_of(tmp_path) == ""
