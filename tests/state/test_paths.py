"""Where the files of checkpoints lie: each name gives its parser what it was built from, and fits no other parser."""

from itertools import product

import pytest

from tailrace.state.paths import (
    checkpoint_folder,
    checkpoint_number,
    claim_name,
    closed_mark,
    incarnation_of,
    input_place,
    inputs_folder,
    is_fence,
    is_input,
    is_of_checkpoint,
    manifest_name,
    manifest_place,
    marked_manifest,
    means_manifest,
    means_state_file,
    published_mark,
    ready_mark,
    saved_input,
    saved_input_folder,
    slot_number,
    state_file,
    state_place,
    swept_mark,
)

NUMBERS = (0, 1, 9, 10, 12_345)
KINDS = ("fence", "manifest", "mark", "state", "input")


def kinds(name: str) -> list[str]:
    """Every kind of file that has this name."""
    message = (is_fence(name), manifest_place(name), marked_manifest(name), is_of_checkpoint(name), is_input(name))
    return [kind for kind, yes in zip(KINDS, message, strict=True) if yes not in (None, False)]


def test_the_names_are_those_of_the_format() -> None:
    """Checkpoints that were written by earlier versions are found under these."""
    assert manifest_name(3, 7) == "3/7.manifest"
    assert published_mark("3/7.manifest") == "3/7.published"
    assert state_file(3, 7, 1, 4) == "3/chk-7/w1-4.state"
    assert [name(3) for name in (claim_name, ready_mark, closed_mark, swept_mark, inputs_folder)] == [
        "3/claim", "3/ready", "3/closed", "3/swept", "3/inputs",
    ]  # fmt: skip


def test_a_manifest_says_its_place() -> None:
    for incarnation, number in product(NUMBERS, NUMBERS):
        name = manifest_name(incarnation, number)
        assert manifest_place(name) == (incarnation, number)
        assert slot_number(name.partition("/")[2]) == number
        assert marked_manifest(published_mark(name)) == name
        assert (incarnation_of(name), means_manifest(name)) == (incarnation, True)
        assert (kinds(name), kinds(published_mark(name))) == (["manifest"], ["mark"])


def test_a_state_file_says_its_place() -> None:
    for place in product(*[NUMBERS] * 4):
        name = state_file(*place)
        incarnation, checkpoint, _, _ = place
        assert state_place(name) == place
        assert checkpoint_number(name.split("/")[1]) == checkpoint == checkpoint_number(checkpoint_folder(checkpoint))
        assert (incarnation_of(name), means_state_file(name), kinds(name)) == (incarnation, True, ["state"])


@pytest.mark.parametrize("built", [claim_name, ready_mark, closed_mark, swept_mark])
def test_what_fences_an_incarnation_is_nothing_else(built: object) -> None:
    assert callable(built)
    assert [(incarnation_of(built(one)), kinds(built(one))) for one in NUMBERS] == [(one, ["fence"]) for one in NUMBERS]


def test_inputs_are_nothing_else() -> None:
    assert kinds(f"{inputs_folder(7)}/in-0/part-0.arrow") == ["input"]


def test_an_input_says_its_folder_and_a_saved_one_the_number_of_that() -> None:
    for place in ("/data/job", "s3://bucket/3/inputs/x/job"):
        folder = f"{place}/{inputs_folder(7)}/in-0"
        assert input_place(f"{folder}/part-0.arrow") == (folder, "part-0.arrow")
    for other in ("", "/data/job/7/inputs/part-0.arrow", "/data/job/x/inputs/in-0/part-0.arrow", "/7/inputs/a/b/c"):
        assert input_place(other) is None
    for number in NUMBERS:
        name = saved_input(number, "part-0.arrow")
        assert saved_input_folder(name) == number and kinds(name) == []


@pytest.mark.parametrize(
    "name",
    [
        "", "7", "7/", "claim", "7/claim/x", "x/claim", "7/claims", "7.manifest", "7/x.manifest", "7/1/2.manifest",
        "7/.1.manifest.0123456789abcdef0123456789abcdef.tmp", "7/1.manifest.bak", "x/1.manifest", "7/x.published",
        "7/chk-1", "7/chk-x/w0-1.state", "chk-1/w0-1.state", "7/chk-1x/w0-1.state", "inputs/a", "7/other/inputs/a",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_of_no_kind(name: str) -> None:
    assert kinds(name) == []
    assert state_place(name) is None


def test_only_numbers_are_checkpoints_and_incarnations() -> None:
    assert [checkpoint_number(folder) for folder in ("chk-", "chk-x", "chk-7/", "chk7", "7")] == [None] * 5
    assert [incarnation_of(name) for name in ("results/1", "-1/claim", "x7", "")] == [None] * 4
