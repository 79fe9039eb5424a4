"""The digest of a data set: equal for equal data wherever it lies, cheap for large files."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from torchft_x import describe_data
from torchft_x.errors import ConfigError
from torchft_x.train.context import data_digest


def test_the_same_bytes_anywhere_are_the_same_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    (tmp_path / "b.txt").write_bytes(b"hello")
    digests = {
        describe_data(source).digest
        for source in (
            tmp_path / "a.txt",
            str(tmp_path / "b.txt"),
            b"hello",
            memoryview(b"hello"),
            torch.tensor(list(b"hello"), dtype=torch.uint8),
        )
    }
    assert len(digests) == 1
    words = describe_data(tmp_path / "a.txt").words
    assert words.startswith("a.txt, 5 bytes, digest ")
    assert describe_data(b"hello", name="text").words.startswith("text, 5 bytes")


def test_other_bytes_are_other_data() -> None:
    sources = [b"", b"a", b"b", b"ab", torch.zeros(3), torch.ones(3), torch.zeros(0), torch.zeros(3, dtype=torch.int64)]
    assert len({describe_data(s).digest for s in sources}) == len(sources) - 1  # nothing is nothing
    assert describe_data(b"a", b"b").digest != describe_data(b"ab").digest


def test_a_directory_is_its_files_by_name(tmp_path: Path) -> None:
    for name, text in [("b/2.bin", "two"), ("a/1.bin", "one"), ("a/3.bin", "three")]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    described = describe_data(tmp_path)
    assert described.words.startswith("a/1.bin and 2 more, 11 bytes, digest ")
    assert [p.split(" digest")[0] for p in described.parts] == [
        "a/1.bin of 3 bytes,", "a/3.bin of 5 bytes,", "b/2.bin of 3 bytes,",
    ]  # fmt: skip
    (tmp_path / "b/2.bin").write_text("TWO")
    assert describe_data(tmp_path).digest != described.digest


def test_a_large_file_is_sampled_from_its_first_to_its_last_byte(tmp_path: Path) -> None:
    size = data_digest.WHOLE_BYTES + 1001
    path = tmp_path / "large.bin"

    def digest(at: int | None = None, length: int = size) -> str:
        with open(path, "wb") as f:
            f.truncate(length)  # a hole: nothing is written
            if at is not None:
                f.seek(at)
                f.write(b"x")
        return describe_data(path).digest

    empty = digest()
    assert digest(0) != empty
    assert digest(size - 1) != empty
    assert digest(length=size + 1) != empty
    spans = data_digest.spans(size)
    assert sum(end - start for start, end in spans) == data_digest.SAMPLES * data_digest.BLOCK_BYTES
    assert all(end <= other for (_, end), (other, _) in itertools.pairwise(spans))


def test_of_very_many_files_all_are_counted(tmp_path: Path) -> None:
    for i in range(300):
        (tmp_path / f"{i}.bin").write_bytes(b"x")
    described = describe_data(tmp_path)
    assert "and 299 more, 300 bytes" in described.words
    for i in range(0, 300, 30):
        (tmp_path / f"{i}.bin").write_bytes(b"xx")
        other = describe_data(tmp_path)
        assert other.digest != described.digest
        described = other


@pytest.mark.parametrize(
    ("source", "sentence"),
    [("/nowhere/at/all.bin", "/nowhere|all.bin can't be read"), (7, "not int"), (None, "not NoneType")],
)
def test_what_is_no_data_is_one_sentence(source: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        describe_data(source)  # type: ignore[arg-type]


def test_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a file"):
        describe_data()
    with pytest.raises(ConfigError, match="holds no files"):
        describe_data(tmp_path)
