"""What is compared, and how a difference is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core import fingerprint as t
from torchft_x.core.fingerprint import CUT, Fingerprint, Trait, describe, difference, merge, release
from torchft_x.errors import ConfigError


def declared(*items: Trait) -> Fingerprint:
    return Fingerprint(items)


def told(mine: Fingerprint, theirs: Fingerprint) -> str:
    found = difference(mine, theirs)
    return "" if found is None else found.clause("group 0's")


def model(*parts: str) -> Trait:
    return describe("model", f"{len(parts)} tensors", parts)


@pytest.mark.parametrize(
    ("mine", "theirs", "clause"),
    [
        (model("w (2, 3)", "b (3,)"), model("w (2, 3)", "b (3,)"), ""),
        (
            model("w (2, 3) float32", "b (3,) float32"),
            model("w (2, 4) float32", "b (4,) float32"),
            "its model has w (2, 3) float32 where group 0's has w (2, 4) float32",
        ),
        (
            model("w (2, 3)", "b (3,)"),
            model("w (2, 3)"),
            "its model has b (3,) where group 0's has nothing more (2 tensors; group 0's 1 tensors)",
        ),
        (
            model("w (2, 3)"),
            model("v (2, 3)", "w (2, 3)"),
            "its model has w (2, 3) where group 0's has v (2, 3) (1 tensors; group 0's 2 tensors)",
        ),
        (
            describe("group world size", "4"),
            describe("group world size", "2"),
            "its group world size is 4 where group 0's is 2",
        ),
        (
            describe("data set", "a.txt", digest="1" * 32),
            describe("data set", "a.txt", digest="2" * 32),
            "its data set is a.txt (digest 111111111111) where group 0's has the digest 222222222222",
        ),
        (describe("data set", "here/a.txt", digest="1"), describe("data set", "there/a.txt", digest="1"), ""),
        (
            release("torchft_x", "0.2.0"),
            release("torchft_x", "0.1.7"),
            "its torchft_x is 0.2.0 where group 0's is 0.1.7",
        ),
        (release("torchft_x", "0.1.0"), release("torchft_x", "0.1.7"), ""),
        (release("PyTorch", "2.13.0+cpu"), release("PyTorch", "2.13.1+cu130"), ""),
        (
            release("PyTorch", "2.14.0.dev20260101"),
            release("PyTorch", "2.14.0"),
            "its PyTorch is 2.14.0.dev20260101 where group 0's is 2.14.0",
        ),
        (model("w (1,)"), describe("data set", "another name"), ""),
    ],
)
def test_the_first_difference_is_named_on_both_sides(mine: Trait, theirs: Trait, clause: str) -> None:
    assert told(declared(mine), declared(theirs)) == clause


@pytest.mark.parametrize(
    ("mine", "theirs", "only"),
    [
        (("_orig_mod.w (2,)", "_orig_mod.b (2,)"), ("w (2,)", "b (2,)"), True),
        (("0.w (2,)", "1.w (2,)"), ("0.w (2,)", "1._orig_mod.w (2,)"), True),
        (("_orig_mod.w (2,)",), ("w (3,)",), False),
        (("w (2,)", "_orig_mod.b (2,)"), ("w (3,)", "b (2,)"), False),
        (("w (2,)",), ("w (2,)", "_orig_mod.b (2,)"), False),
        (("_orig_mod.w (2,)", CUT), (CUT,), False),
    ],
)
def test_a_model_that_is_only_compiled_is_known(mine: tuple[str, ...], theirs: tuple[str, ...], only: bool) -> None:
    for a, b in ((mine, theirs), (theirs, mine)):
        found = difference(declared(model(*a)), declared(model(*b)))
        assert found.is_compiling() == only


def test_a_release_is_its_minor_series_and_any_other_version_itself() -> None:
    assert release("PyTorch", "2.13.1+cu130") == Trait("PyTorch", "2.13", "2.13.1+cu130")
    assert release("PyTorch", "2.14.0.dev20260101+cpu") == Trait(
        "PyTorch", "2.14.0.dev20260101", "2.14.0.dev20260101+cpu"
    )
    assert release("torchft_x", "unknown") == Trait("torchft_x", "unknown", "unknown")


def test_a_digest_that_is_given_is_kept_as_it_is() -> None:
    assert describe("data set", "a.txt", ["x"], digest="1" * t.MAX_TEXT).digest == "1" * t.MAX_TEXT
    for odd in ("1" * (t.MAX_TEXT + 1), "a\nb"):
        made = describe("data set", "a.txt", ["x"], digest=odd).digest
        assert made != describe("data set", "a.txt", ["x"]).digest
        assert len(made) == 32
        assert made.isprintable()


def test_traits_are_compared_in_the_order_of_mine_and_only_if_both_declare_them() -> None:
    mine = declared(describe("a", "1"), describe("b", "1"), describe("c", "1"))
    assert told(mine, declared(describe("c", "2"), describe("b", "2"))) == "its b is 1 where group 0's is 2"


class TestRanks:
    """A rank meets its own rank in the other groups."""

    def test_ranks_that_agree_speak_as_one(self) -> None:
        one = declared(model("w (1,)"))
        assert merge([one, one, one]) == one
        assert merge([one, declared()]) == one  # a rank that says nothing disagrees with nobody
        here = Fingerprint((Trait("data", "1", "rows", ranks=(1,)), Trait("model", "2", "parts", ranks=(2,))))
        assert here.ranks("data") == {1}

    def test_stages_of_a_pipeline_fit_the_same_stages(self) -> None:
        stages = merge([declared(model("first (1,)")), declared(model("last (1,)"))])
        again = merge([declared(model("first (1,)")), declared(model("last (1,)"))])
        assert stages == again
        assert told(stages, again) == ""
        swapped = merge([declared(model("last (1,)")), declared(model("first (1,)"))])
        assert told(stages, swapped) == "the model of its rank 0 has first (1,) where group 0's has last (1,)"

    def test_one_rank_with_another_model_is_seen_from_both_sides(self) -> None:
        right = merge([declared(model("w (1,)"))] * 3)
        wrong = merge([declared(model("w (1,)")), declared(model("w (2,)")), declared(model("w (1,)"))])
        assert told(wrong, right) == "the model of its rank 1 has w (2,) where group 0's has w (1,)"
        assert told(right, wrong) == "the model of its rank 1 has w (1,) where group 0's has w (2,)"

    def test_very_many_kinds_are_one_digest(self) -> None:
        ranks = [declared(model(f"w ({i},)")) for i in range(100)]
        merged = merge(ranks)
        assert len(merged.items) == 1
        assert told(merged, merge(ranks[::-1])).startswith("its model is 100 different ones among the group's ranks")
        assert told(merged, merge(ranks)) == ""

    def test_a_few_kinds_are_told_apart_and_one_more_is_a_digest(self) -> None:
        ranks = [declared(model(f"w ({i},)")) for i in range(t.MAX_KINDS)]
        assert len(merge(ranks).items) == t.MAX_KINDS
        more = merge([*ranks, declared(), declared(model("v"))])  # one rank declares nothing
        assert [trait.words for trait in more.items] == ["17 different ones among the group's ranks"]


class TestLimits:
    def test_ten_thousand_parameters(self) -> None:
        parts = [f"layers.{i}.weight (64, 64) float32" for i in range(10_000)]
        a, b = model(*parts), model(*parts[:-1], "layers.9999.weight (64, 32) float32")
        assert len(a.parts) <= t.MAX_PARTS
        assert a.parts[-1] == CUT
        assert a.digest != b.digest  # of all of them
        assert "(digest " in told(declared(a), declared(b))
        c = model("layers.0.weight (64, 32) float32", *parts[1:])
        assert told(declared(c), declared(a)).startswith("its model has layers.0.weight (64, 32)")

    def test_texts_become_short_and_printable(self) -> None:
        trait = describe("n" * 300, "a\nb\x1b[31m", ["p" * 300])
        assert len(trait.name) == len(trait.parts[0]) == t.MAX_TEXT
        assert trait.words == "a?b?[31m"
        assert describe("data set", "").words == "undescribed"
        with pytest.raises(ConfigError, match="name"):
            describe(" ", "x")

    def test_of_lists_that_were_cut_only_the_words_are_told(self) -> None:
        short = Trait("model", "1", "9 tensors", ("a", CUT))
        long = Trait("model", "2", "8 tensors", ("a", "b", CUT))
        assert told(declared(short), declared(long)) == "its model is 9 tensors where group 0's is 8 tensors"
        cut, longer = model(*["x" * 100] * 2000), model(*["x" * 100] * 3000)
        assert told(declared(cut), declared(longer)) == "its model is 2000 tensors where group 0's is 3000 tensors"
        parts = describe("model", "big", ["x" * 150] * 1000).parts
        assert t.MAX_CHARACTERS // 2 - 150 < sum(map(len, parts)) <= t.MAX_CHARACTERS // 2
        assert parts[-1] == CUT

    def test_what_just_fits_is_not_cut(self) -> None:
        most = t.MAX_CHARACTERS // 2 // 128
        for parts in (["p"] * t.MAX_PARTS, ["x" * 128] * most, ["p" * t.MAX_TEXT]):
            assert describe("model", "m", parts).parts == tuple(parts)

    def test_the_mark_of_a_cut_counts_too(self) -> None:
        most = t.MAX_CHARACTERS // 2 // 128
        assert describe("model", "m", ["p"] * (t.MAX_PARTS + 1)).parts == ("p",) * (t.MAX_PARTS - 1) + (CUT,)
        assert describe("model", "m", ["x" * 128] * (most + 1)).parts == ("x" * 128,) * (most - 1) + (CUT,)
        exactly = ["x" * 128] * (most - 1) + ["y" * (128 - len(CUT))]  # just room for the mark
        assert describe("model", "m", [*exactly, "too much"]).parts == (*exactly, CUT)

    @pytest.mark.parametrize(
        ("lengths", "kept"),
        [((1000, 1000, 1000, 1000), [1000, 1000, 48, 0]), ((1024, 1023, 5), [1024, 1023, 1]), ((1024, 1024, 1), [1024, 1024, 0])],
    )  # fmt: skip
    def test_traits_share_the_parts_a_group_may_declare(self, lengths: tuple[int, ...], kept: list[int]) -> None:
        items = t.within_limits(Trait(str(i), "d", "w", ("p",) * n) for i, n in enumerate(lengths)).items
        assert [len(trait.parts) for trait in items] == kept
        assert all(trait.parts[-1] == CUT for trait, n in zip(items, lengths, strict=True) if 0 < len(trait.parts) < n)

    def test_traits_share_the_characters_a_group_may_declare(self) -> None:
        half = ("x" * 128,) * (t.MAX_CHARACTERS // 2 // 128)
        items = t.within_limits(Trait(str(i), "d", "w", half) for i in range(3)).items
        assert [trait.parts for trait in items] == [half, half, ()]

    def test_a_group_of_many_ranks_stays_within_the_limits(self) -> None:
        big = [model(*(f"r{rank}.{i} {'x' * 90}" for i in range(2000))) for rank in range(12)]
        merged = merge([declared(m) for m in big])
        assert sum(len(p) for trait in merged.items for p in trait.parts) <= t.MAX_CHARACTERS
        assert sum(len(trait.parts) for trait in merged.items) <= t.MAX_ALL_PARTS
        assert len(merged.items) == 12


# --- any declarations ------------------------------------------------------------------------------------------------

names = st.sampled_from(["model", "data set", "x"])
parts = st.lists(st.sampled_from(["a 1", "a 2", "b 1", CUT, "c" * 250]), max_size=4)
one_trait = st.builds(describe, names, st.sampled_from(["", "w", "v"]), parts)
one_rank = st.lists(one_trait, max_size=3, unique_by=lambda x: x.name).map(lambda x: Fingerprint(tuple(x)))
groups = st.lists(one_rank, min_size=1, max_size=4)


@given(groups, groups)
def test_a_difference_is_mutual_and_has_words(mine: list[Fingerprint], theirs: list[Fingerprint]) -> None:
    a, b = merge(mine), merge(theirs)
    assert (told(a, b) == "") == (told(b, a) == "")
    assert told(a, merge(list(mine))) == ""
    clause = told(a, b)
    assert clause == "" or ("group 0's" in clause and clause.isprintable() and len(clause) < 1500)


@given(groups, groups)
def test_a_difference_is_found_exactly_where_two_ranks_differ(
    mine: list[Fingerprint], theirs: list[Fingerprint]
) -> None:
    """Against the simple rule, for groups of one size in which every rank declares every name."""
    size = min(len(mine), len(theirs))
    full = [
        Fingerprint(tuple(r.find(n, None) or describe(n, "-") for n in ("model", "data set", "x")))
        for r in (*mine[:size], *theirs[:size])
    ]
    a, b = full[:size], full[size:]
    expected = any(
        x.digest != y.digest for p, q in zip(a, b, strict=True) for x, y in zip(p.items, q.items, strict=True)
    )
    assert (difference(merge(a), merge(b)) is not None) == expected
