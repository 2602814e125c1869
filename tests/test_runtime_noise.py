"""The NumPy noise is torch's: the same bits, the same normals."""

import numpy as np
import pytest
import torch

from coscap import noise
from coscap.models import noise as torch_noise

KEYS = np.array([0, 1, 2**32 - 1, 123456789, 7])


@pytest.mark.parametrize("seed", [0, 5, -1, 2**63, 2**64 - 1])
def test_keys_and_bits_are_equal(seed: int) -> None:
    ours = noise.row_keys(seed, KEYS, range(4))
    theirs = torch_noise.row_keys(seed, torch.from_numpy(KEYS), 4)
    assert ours.astype(np.int64).tolist() == theirs.tolist()
    assert noise.row_keys(seed, KEYS, range(2, 4)).tolist() == ours.reshape(5, 4)[:, 2:].ravel().tolist()
    for step in (0, 17, np.arange(20)):
        also = torch.from_numpy(step) if isinstance(step, np.ndarray) else step
        found = noise.uniforms(ours, 2, step, 9)
        assert np.array_equal(found, torch_noise.uniforms(theirs, 2, also, 9).numpy())


@pytest.mark.parametrize("width", [1, 2, 31, 64])
def test_normals_are_equal_to_rounding(width: int) -> None:
    ours, theirs = noise.row_keys(3, KEYS, range(100)), torch_noise.row_keys(3, torch.from_numpy(KEYS), 100)
    found = noise.normals(ours, 1, 4, width)
    expected = torch_noise.normals(theirs, 1, 4, width).numpy()
    assert found.shape == (500, width) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_noise_of_several_steps_at_once_is_that_of_each() -> None:
    keys = noise.row_keys(7, np.array([3, 11], np.int64), range(3))
    blocks = noise.normal_blocks(keys, noise.CONTEXT_NOISE, 5, 9)
    each = [noise.normals(keys, noise.CONTEXT_NOISE, step, 9) for step in range(5)]
    np.testing.assert_array_equal(blocks, np.stack(each, axis=1))
