"""What the digest of a result sees, and when."""

import pytest
import torch

from torchft_x.train.context.tensor_digest import BLOCK_BYTES, TURNS, WHOLE_BYTES, digest, fold

LARGE = (
    WHOLE_BYTES + 3 * TURNS * BLOCK_BYTES
) // 4 + 1001  # float32 values: some blocks are left over, and half a word


def values(n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.complex64, torch.bool]
)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (33, 5), (2, 3, 4)])
def test_it_reads_bits_whatever_the_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = values(torch.Size(shape).numel()).mul(50).to(dtype).view(shape)
    raw = tensor.reshape(-1).view(torch.uint8)
    words = raw.numel() // 8 * 8
    expected = int(raw[:words].view(torch.int64).sum()) + sum(raw[words:].tolist())
    assert digest(tensor, 3) == digest(tensor) == expected % 2**64


def test_where_it_lies_does_not_matter() -> None:
    data = values(LARGE)
    shifted = torch.cat([torch.zeros(1), data])[1:]
    strided = torch.stack([data, data], dim=1)[:, 0]
    for turn in (None, *range(TURNS)):
        assert digest(shifted, turn) == digest(strided, turn) == digest(data, turn)


def test_each_word_of_a_large_tensor_is_read_in_one_turn_or_in_each() -> None:
    data = values(LARGE)
    before = [digest(data, turn) for turn in range(TURNS)]
    left_over = LARGE * 4 // (TURNS * BLOCK_BYTES) * (TURNS * BLOCK_BYTES) // 4
    for at in (0, 1, 1023, 1024, 5000, 12345, left_over - 1, left_over, LARGE - 2, LARGE - 1):
        changed = data.clone()
        changed.view(torch.int32)[at] ^= 1 << 7
        seen = [turn for turn in range(TURNS) if digest(changed, turn) != before[turn]]
        assert seen == (list(range(TURNS)) if at >= left_over else [at * 4 // BLOCK_BYTES % TURNS]), at
        assert digest(changed) != digest(data)


def test_what_differs_in_64_kib_on_end_is_seen_in_each_turn() -> None:
    data = values(LARGE)
    for start in (0, 1, 777, 20_000):
        changed = data.clone()
        changed[start : start + TURNS * BLOCK_BYTES // 4] += 0.5
        assert all(digest(changed, turn) != digest(data, turn) for turn in range(100, 100 + TURNS))


def test_a_small_tensor_is_read_in_whole_each_time() -> None:
    data = values(WHOLE_BYTES // 4)
    for at in (0, 1024, 9999, WHOLE_BYTES // 4 - 1):
        changed = data.clone()
        changed.view(torch.int32)[at] ^= 1
        assert all(digest(changed, turn) != digest(data, turn) for turn in range(TURNS))


def test_a_fold_depends_on_each_digest_and_on_their_order() -> None:
    assert len({fold(x) for x in ([0, 0], [1, 2], [2, 1], [1, 3], [1, 1], [3, 3])}) == 6
